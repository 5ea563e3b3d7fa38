"""Finds the advisories of an OSV export that apply to a component. Nothing here uses the network."""

import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from packaging.utils import canonicalize_name
from univers.versions import InvalidVersion, MavenVersion, PypiVersion, SemverVersion, Version

from infra.supply_chain.components import MAVEN, NPM, PYPI, Component

_VERSIONS: Mapping[str, type[Version]] = {PYPI: PypiVersion, MAVEN: MavenVersion, NPM: SemverVersion}


class ExportError(ValueError):
    """The export cannot be read, or has nothing about an ecosystem. The message says what to do."""


class Finding(NamedTuple):
    """An advisory applies to a component.

    Attributes:
        ids: the id of the advisory and its aliases.
        fixed: the versions that no longer have the problem, as the advisory lists them.
    """

    component: Component
    ids: tuple[str, ...]
    summary: str
    fixed: tuple[str, ...]


class Advisories:
    """The advisories of an OSV export about these components. Those about other components need no memory."""

    def __init__(self, records: Iterable[Mapping[str, Any]], components: Collection[Component]) -> None:
        ecosystems = {each.ecosystem for each in components}
        wanted = {(each.ecosystem, each.name) for each in components}
        self._of: defaultdict[tuple[str, str], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = defaultdict(list)
        seen = set()
        for record in records:
            for affected in () if "withdrawn" in record else record.get("affected", ()):
                # An ecosystem may have a suffix: Maven:https://repository.example.
                ecosystem = affected.get("package", {}).get("ecosystem", "").partition(":")[0]
                if ecosystem in ecosystems:
                    seen.add(ecosystem)
                    for key in _keys(ecosystem, affected["package"]["name"]) & wanted:
                        self._of[key].append((record, affected))
        if missing := sorted(ecosystems - seen):
            raise ExportError(
                f"the export has no advisory about {' and '.join(missing)}, so nothing would be checked: give the "
                "export of each ecosystem, or name the ecosystems with --ecosystem"
            )

    def about(self, component: Component) -> Iterator[Finding]:
        """The advisories that apply to a component, each once."""
        found = {}
        for record, affected in self._of.get((component.ecosystem, component.name), ()):
            if is_affected(component, affected):
                ids = (record["id"], *record.get("aliases", ()))
                summary = record.get("summary") or record.get("details", "").partition("\n")[0]
                found[record["id"]] = Finding(component, ids, summary, tuple(_fixes(affected)))
        yield from found.values()


def _keys(ecosystem: str, name: str) -> set[tuple[str, str]]:
    """The components that an advisory applies to. For a jar whose group is not known, any group matches."""
    names = {canonicalize_name(name)} if ecosystem == PYPI else {name, name.rpartition(":")[2]}
    return {(ecosystem, each) for each in names}


def is_affected(component: Component, affected: Mapping[str, Any]) -> bool:
    """Whether the version is affected (https://ossf.github.io/osv-schema/#evaluation).

    A version that cannot be compared counts as affected, so that a person checks it.
    """
    if component.version in affected.get("versions", ()):
        return True
    ranges = [each["events"] for each in affected.get("ranges", ()) if each["type"] in {"ECOSYSTEM", "SEMVER"}]
    try:
        return any(_is_inside(component, events) for events in ranges)
    except InvalidVersion:
        return True


def _is_inside(component: Component, events: Sequence[Mapping[str, str]]) -> bool:
    parse = _VERSIONS[component.ecosystem]
    version = parse(component.version)
    steps = [(kind, text) for event in events for kind, text in event.items() if text != "0"]
    # The version 0 means all versions from the first one.
    inside = any(event.get("introduced") == "0" for event in events)
    for kind, text in sorted(steps, key=lambda step: parse(step[1])):
        bound = parse(text)
        if kind == "introduced" and version >= bound:
            inside = True
        elif (kind in {"fixed", "limit"} and version >= bound) or (kind == "last_affected" and version > bound):
            inside = False
    return inside


def _fixes(affected: Mapping[str, Any]) -> Iterator[str]:
    for each in affected.get("ranges", ()):
        if each["type"] != "GIT":
            yield from (event["fixed"] for event in each["events"] if "fixed" in event)


def read_exports(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The records of OSV exports: archives (all.zip), folders of JSON files, or JSON files. Raises ExportError."""
    for path in paths:
        try:
            for name, content in _contents(path):
                record = orjson.loads(content)
                if not isinstance(record, dict) or "id" not in record:
                    raise ExportError(f"{path}: {name} is no OSV record: it has no id")
                yield record
        except (OSError, zipfile.BadZipFile, orjson.JSONDecodeError) as error:
            raise ExportError(f"{path}: {error}. Download the export again") from error


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        yield from ((file.name, file.read_bytes()) for file in sorted(path.rglob("*.json")))
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from ((name, archive.read(name)) for name in archive.namelist() if name.endswith(".json"))
    else:
        yield path.name, path.read_bytes()
