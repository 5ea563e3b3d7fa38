"""The audit of dependencies against an OSV export, and the SBOMs of the images."""

import json
import re
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from typer.testing import CliRunner, Result

from infra.local import jars
from infra.local.folders import ROOT
from infra.supply_chain import __main__ as supply_chain
from infra.supply_chain.advisories import Advisories, ExportError, is_affected, read_exports
from infra.supply_chain.components import MAVEN, NPM, PYPI, Component, locked_jars, packages
from infra.supply_chain.images import images, sbom

# One process hashes the jars.
pytestmark = pytest.mark.xdist_group("supply chain")

EPOCH = "1700000000"
REQUIREMENTS = ROOT / "requirements"
VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)
"""It reads the schema of CycloneDX at its first use."""


def advisory(name: str, ecosystem: str = PYPI, **fields: Any) -> dict[str, Any]:
    """An OSV record about all versions of a package, unless the fields say otherwise."""
    ranges = fields.pop("ranges", [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}])
    affected = {"package": {"ecosystem": ecosystem, "name": name}, "ranges": ranges}
    return {"id": "GHSA-test", "summary": "A planted problem", "affected": [affected], **fields}


HARMLESS = [
    advisory("no-such-package", id="GHSA-1"),
    advisory("no.such:jar", MAVEN, id="GHSA-2"),
    advisory("fastapi", NPM, id="GHSA-3"),
]


def export(folder: Path, *records: dict[str, Any]) -> Path:
    """An archive as OSV publishes it, with one file for each record."""
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for record in records:
            archive.writestr(f"{record['id']}.json", json.dumps(record))
    return path


@pytest.fixture(scope="module")
def locked() -> list[Component]:
    return supply_chain.locked()


@pytest.fixture(autouse=True)
def locked_once(locked: list[Component], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash the jars once for all tests."""
    monkeypatch.setattr(supply_chain, "locked", lambda: locked)


def audit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(supply_chain.app, ["audit", *map(str, arguments)], env={"COLUMNS": "200"})


def version_of(locked: list[Component], name: str) -> str:
    return next(each.version for each in locked if each.name == name)


@pytest.mark.parametrize(
    ("ecosystem", "name"),
    [
        (PYPI, "FastAPI"),
        (PYPI, "pytest"),
        (MAVEN, "org.apache.kafka:kafka-clients"),
        (MAVEN, "org.apache.derby:derby"),
        (NPM, "htmx.org"),
    ],
)
def test_a_planted_advisory_fails_the_audit(tmp_path: Path, ecosystem: str, name: str) -> None:
    """The audit names component, advisory and fix. A jar without a group is found by its artifact."""
    events = [{"introduced": "0"}, {"fixed": "9999"}]
    planted = advisory(name, ecosystem, aliases=["CVE-2026-1"], ranges=[{"type": "ECOSYSTEM", "events": events}])
    result = audit(export(tmp_path, *HARMLESS, planted))

    assert 1 == result.exit_code, result.output
    assert all(text in result.stdout for text in ("GHSA-test, CVE-2026-1", "9999", "A planted problem"))
    assert name.rpartition(":")[2].lower() in result.stdout


def test_without_an_advisory_the_audit_passes(tmp_path: Path, locked: list[Component]) -> None:
    """Advisories about other packages, about other versions and withdrawn ones do not count."""
    fixed = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": version_of(locked, "fastapi")}]}]
    others = [
        advisory("fastapi", id="GHSA-4", ranges=fixed),
        advisory("fastapi", id="GHSA-5", withdrawn="2026-01-01T00:00:00Z"),
        advisory("fastapi", id="GHSA-6", ranges=[{"type": "GIT", "events": [{"introduced": "0"}]}]),
    ]
    result = audit(export(tmp_path, *HARMLESS, *others))

    assert (0, True) == (result.exit_code, f"{len(locked)} components checked; 0 advisories" in result.stdout)


def test_an_export_without_an_ecosystem_is_refused(tmp_path: Path) -> None:
    """An export about other packages must not look like success. --ecosystem leaves the others out."""
    only_pypi = export(tmp_path, HARMLESS[0])

    assert (2, True) == (audit(only_pypi).exit_code, "no advisory about Maven and npm" in audit(only_pypi).stderr)
    assert 0 == audit(only_pypi, "--ecosystem", "PyPI").exit_code
    (tmp_path / "empty").mkdir()
    assert 2 == audit(tmp_path / "empty").exit_code


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"summary": "no id"}'])
def test_a_damaged_export_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "export.json"
    file.write_text(content)

    result = audit(file)
    assert (2, True) == (result.exit_code, str(file) in result.stderr)
    assert 2 == audit(tmp_path / "missing.zip").exit_code


def test_exports_are_archives_folders_or_files(tmp_path: Path) -> None:
    archive = export(tmp_path, *HARMLESS)
    folder = tmp_path / "folder" / "inner"
    folder.mkdir(parents=True)
    (folder / "one.json").write_text(json.dumps(HARMLESS[0]))

    assert HARMLESS == list(read_exports([archive]))
    assert [HARMLESS[0]] * 2 == list(read_exports([tmp_path / "folder", folder / "one.json"]))


@pytest.mark.parametrize(
    ("events", "affected", "safe"),
    [
        ([{"introduced": "0"}], ["0.0.1", "99"], []),
        ([{"introduced": "0"}, {"fixed": "2.0"}], ["1.9", "2.0rc1"], ["2.0", "2.0.1"]),
        ([{"introduced": "1.0"}, {"last_affected": "1.5"}], ["1.0", "1.5"], ["0.9", "1.5.1", "1.10"]),
        ([{"fixed": "2.3"}, {"introduced": "2"}, {"fixed": "1.2"}, {"introduced": "1"}], ["1.1", "2.2"], ["1.5", "3"]),
        ([{"introduced": "0"}, {"limit": "2.0"}], ["1.9"], ["2.0", "2.1"]),
    ],
)
@pytest.mark.parametrize("ecosystem", [PYPI, MAVEN, NPM])
def test_versions_are_compared_as_osv_says(
    ecosystem: str, events: list[dict[str, str]], affected: list[str], safe: list[str]
) -> None:
    """Events count in the order of their versions. Each ecosystem has its own order."""
    entry = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}
    assert [True] * len(affected) == [is_affected(Component(ecosystem, "a", each), entry) for each in affected]
    assert [False] * len(safe) == [is_affected(Component(ecosystem, "a", each), entry) for each in safe]


def test_listed_versions_and_versions_that_cannot_be_compared_are_affected() -> None:
    """A person should look at what the audit cannot decide."""
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "1.0"}]}]
    assert is_affected(Component(PYPI, "a", "0.5"), {"versions": ["0.5"], "ranges": ranges})
    assert not is_affected(Component(PYPI, "a", "0.6"), {"versions": ["0.5"], "ranges": ranges})
    assert is_affected(Component(PYPI, "a", "no version"), {"ranges": ranges})


def test_an_advisory_counts_once() -> None:
    """A record can have several entries about one package."""
    twice = advisory("fastapi")
    twice["affected"] *= 2
    fastapi = Component(PYPI, "fastapi", "1.0")
    assert 1 == len([*Advisories([twice], [fastapi]).about(fastapi)])


def test_accepted_advisories_need_a_reason_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accepted advisory passes until its last day, by its id or an alias. The file of the project is valid."""
    accepted = tmp_path / "accepted.yaml"
    monkeypatch.setattr(supply_chain, "ACCEPTED", accepted)
    planted = export(tmp_path, *HARMLESS, advisory("fastapi", aliases=["CVE-2026-1"]))

    accepted.write_text("CVE-2026-1: {reason: not reachable, until: 2999-12-31}")
    assert (0, True) == (audit(planted).exit_code, "0 advisories apply, 1 accepted" in audit(planted).stdout)
    accepted.write_text("CVE-2026-1: {reason: not reachable, until: 2020-12-31}")
    assert 1 == audit(planted).exit_code
    accepted.write_text("CVE-2026-1: {until: 2999-12-31}")
    assert (2, True) == (audit(planted).exit_code, "CVE-2026-1 needs a reason" in audit(planted).stderr)
    project = ROOT / "infra" / "accepted-advisories.yaml"
    assert set() == supply_chain.accepted_ids(project, date(2999, 1, 1))


def test_the_audit_reads_every_lock_file(locked: list[Component]) -> None:
    """Each lock file of the repository is read. Each pinned line for Linux is a component."""
    assert {*supply_chain.LOCKS} == {path.stem for path in REQUIREMENTS.glob("*.txt")}
    pinned = [line for line in (REQUIREMENTS / "api.txt").read_text().splitlines() if line[:1].isalnum()]
    found = packages("api")
    assert len(found) == len([line for line in pinned if "win32" not in line and "python_full_version >=" not in line])
    assert {*found} <= {*locked}
    names = {Path(name).name for name in jars.STACK.locked()}
    assert len(names) <= len([each for each in locked if each.ecosystem == MAVEN])


def test_locked_jars_have_a_group(locked: list[Component]) -> None:
    """All jars of the lock, and most of those in pyspark, can be looked up by group and artifact."""
    of_lock = [each for name in jars.STACK.configurations for each in locked_jars(name)]
    assert len(jars.STACK.locked()) == len(of_lock)
    assert [] == [each.name for each in of_lock if ":" not in each.name]
    of_spark = [each for each in locked if each.ecosystem == MAVEN]
    assert len([each for each in of_spark if ":" not in each.name]) < len(of_spark) / 5


@pytest.fixture(scope="module")
def sboms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the command has written."""
    folder = tmp_path_factory.mktemp("sboms") / "new"
    result = CliRunner().invoke(supply_chain.app, ["sbom", "--to", str(folder)], env={"SOURCE_DATE_EPOCH": EPOCH})
    assert 0 == result.exit_code, result.output
    return folder


@pytest.mark.parametrize("image", sorted(images()))
def test_each_image_has_a_valid_sbom(image: str, sboms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SBOM follows the schema of CycloneDX, and two runs give the same bytes."""
    text = (sboms / f"{image}.cdx.json").read_text(encoding="utf-8")
    document = json.loads(text)
    root = document["metadata"]["component"]

    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    assert text == sbom(image, root["version"])
    assert VALIDATOR.validate_str(text) is None
    assert image == root["name"]
    assert "pkg:docker/debian@bookworm-slim" in {each["purl"] for each in document["components"]}


def test_sboms_have_what_the_images_install(sboms: Path) -> None:
    """Python packages, jars and scripts with checksums, and the packages of Debian. Build tools are not in an image."""
    documents = {image: json.loads((sboms / f"{image}.cdx.json").read_text(encoding="utf-8")) for image in images()}
    purls = {image: {each["purl"]: each for each in found["components"]} for image, found in documents.items()}
    api, cli, pipeline, kafka, postgres = (
        purls[f"retail-loyalty-{name}"] for name in ("api", "cli", "pipeline", "kafka", "postgres")
    )

    assert {"htmx.org", "uplot"} == {api[purl]["name"] for purl in api.keys() - cli.keys()}
    scripts = {each["name"]: each["version"] for purl, each in api.items() if purl.startswith("pkg:npm/")}
    assert {"htmx.org", "swagger-ui-dist", "uplot"} == scripts.keys()
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in scripts.values())
    assert not [purl for purl in pipeline if purl.startswith("pkg:npm/")]
    assert {"pkg:deb/debian/postgresql-15?distro=bookworm"} == {purl for purl in postgres if purl.startswith("pkg:deb")}
    java = "pkg:deb/debian/openjdk-17-jre-headless?distro=bookworm"
    assert (True, True, False) == (java in pipeline, java in kafka, java in api)
    assert not [purl for purl in api if purl.startswith(("pkg:maven", "pkg:pypi/setuptools", "pkg:pypi/pytest"))]
    of_lock = {checksum for name, checksum in jars.STACK.locked().items() if name.startswith("kafka/")}
    assert of_lock == {each["hashes"][0]["content"] for purl, each in kafka.items() if purl.startswith("pkg:maven")}
    assert any(purl.startswith("pkg:pypi/pyspark@4.2.1") for purl in pipeline)
    assert len([purl for purl in pipeline if purl.startswith("pkg:maven/org.apache.spark/")]) > 10


def test_the_command_writes_a_file_for_each_image(sboms: Path) -> None:
    assert {f"{image}.cdx.json" for image in images()} == {path.name for path in sboms.iterdir()}


def test_changed_jars_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit is about the locked jars. If others are there, it says what to do."""
    monkeypatch.setattr(jars.JarSet, "locked", lambda _: {"spark/other.jar": "0"})
    with pytest.raises(jars.JarsError, match="run make setup"):
        locked_jars("spark")


def test_an_export_without_advisories_is_refused() -> None:
    with pytest.raises(ExportError, match="PyPI"):
        Advisories([], [Component(PYPI, "fastapi", "1.0")])
