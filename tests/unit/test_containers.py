"""The images and the compose file, checked without a container engine."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from infra.docker.healthy import is_healthy
from services.cli import app
from services.settings import Settings
from tests.support.http_server import QuietHandler, serving
from tests.support.registry import CONFIGURATION, VERSION

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "infra" / "docker").glob("*.Dockerfile"))
EVERY_DOCKERFILE = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
VARIABLES = {f"LOYALTY_{name.upper()}" for name in Settings.model_fields}


LONG_RUNNING = {"kafka", "postgres", "pipeline", "ledger", "api"}
"""The services that run after `docker-compose up` without a profile."""


def interpolated(text: str) -> str:
    """The compose file as Compose reads it when no variable is set."""
    return re.sub(r"\$\{\w+(?::?-([^}]*))?\}", lambda found: found[1] or "", text)


@pytest.fixture
def compose() -> dict[str, Any]:
    """The compose file with default values and merged anchors."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.load(interpolated(text), yaml.CSafeLoader)
    return parsed


@pytest.fixture
def built(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services whose images this project builds."""
    return {name: service for name, service in compose["services"].items() if "build" in service}


def dockerfile_of(service: dict[str, Any]) -> Path:
    return ROOT / str(service["build"]["dockerfile"])


def test_images_are_built_by_the_project_or_pinned(compose: dict[str, Any], built: dict[str, dict[str, Any]]) -> None:
    """Services of one image build it from the same file and target. Images of others have a version."""
    by_image: dict[str, set[tuple[Path, str | None]]] = {}
    for service in built.values():
        by_image.setdefault(service["image"], set()).add((dockerfile_of(service), service["build"].get("target")))
    assert set(DOCKERFILES) == {file for made in by_image.values() for file, _ in made}
    assert all(1 == len(made) for made in by_image.values())
    assert all(image.endswith(":latest") for image in by_image), "IMAGE_TAG keeps the images of the old version"
    others = [service["image"] for name, service in compose["services"].items() if name not in built]
    assert others
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in others)


def test_profiles_only_add_services(compose: dict[str, Any]) -> None:
    """Without a profile exactly the whole stack starts. These are all profiles."""
    services = compose["services"]
    assert {*LONG_RUNNING, "topics", "keys"} == {
        name for name, service in services.items() if "profiles" not in service
    }
    profiles = {profile for service in services.values() for profile in service.get("profiles", ())}
    assert {"simulate", "cluster", "observability", "webhooks", "audit", "registry"} == profiles


def test_no_container_has_more_rights_than_it_needs(built: dict[str, dict[str, Any]]) -> None:
    """A container has no capability, cannot gain one, and writes only to volumes and /tmp."""
    for service in built.values():
        assert (["ALL"], ["no-new-privileges:true"]) == (service["cap_drop"], service["security_opt"])
        assert service["read_only"]
        assert "/tmp" in [*(mount.partition(":")[0] for mount in service["tmpfs"]), *service.get("volumes", ())]  # noqa: S108


def test_settings_of_containers_exist() -> None:
    """Every LOYALTY_ variable in the compose file, the images and their scripts is a setting."""
    docker = ROOT / "infra" / "docker"
    paths = [ROOT / "docker-compose.yml", *DOCKERFILES, *docker.glob("*.sh")]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    assert set() == {name for text in texts for name in re.findall(r"LOYALTY_[A-Z_]+", text)} - VARIABLES


NOT_IN_X_SETTINGS = {
    "the compose file has the address": {"KAFKA_BOOTSTRAP_SERVERS", "LEDGER_URL", "METRICS_HOST"},
    "one service runs all queries": {"PIPELINE_DRIVERS", "BACKGROUND_METRICS_PORT"},
    "the file with a secured Kafka has them": {
        "KAFKA_SECURITY_PROTOCOL",
        "KAFKA_SSL_CA_LOCATION",
        "KAFKA_SASL_MECHANISM",
        "KAFKA_SASL_PASSWORD_FILE",
        "KAFKA_SASL_PASSWORD",
        "KAFKA_SASL_USERNAME",
    },
    "volumes are mounted at these paths": {
        "CHECKPOINT_DIR",
        "EXPORT_DIR",
        "ARCHIVE_DIR",
        "STATE_DIR",
        "METRICS_KEY_FILE",
        "API_KEY_FILE",
        "INSTANCE_SECRET_FILE",
        "PSEUDONYM_KEY_FILE",
        "WEBHOOKS_FILE",
    },
    "the images have the file, the host or the port": {
        "SPARK_JARS_DIR",
        "API_HOST",
        "API_PORT",
        "APPLICATION_SERVER",
        "METRICS_PORT",  # in the compose file, it is the port on this machine
        "LEDGER_METRICS_PORT",
        "WEBHOOKS_METRICS_PORT",
    },
    "the files need a mount, so the guide uses an override": {
        "API_CERTIFICATE_FILE",
        "API_CERTIFICATE_KEY_FILE",
        "API_CA_FILE",
        "API_CLIENT_CA_FILE",
    },
    "the images have no packages for analysts": {"TABLES_DIR", "CUSTOMER_KEY_FILE"},
    "only some services get them": {"SPARK_MASTER", "STATUS_URLS", "API_ACCESS"},
}
"""By reason, the settings that not every container gets from a variable of the same name."""


def test_an_operator_can_set_every_setting_of_the_containers(compose: dict[str, Any]) -> None:
    """Compose ignores a variable that the file does not name. Each service gets all settings but the exceptions."""
    exceptions = [f"LOYALTY_{name}" for names in NOT_IN_X_SETTINGS.values() for name in names]
    assert len(exceptions) == len({*exceptions} & VARIABLES), "each exception is a setting and has one reason"
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (block,) = re.findall(r"^x-settings: &settings\n((?:  .*\n)+)", text, re.MULTILINE)
    passed = re.findall(r"^  (LOYALTY_\w+): \$\{\1:-\w*\}$", block, re.MULTILINE)
    assert sorted(VARIABLES - {*exceptions}) == sorted(passed)
    own = {name for name, service in compose["services"].items() if "LOYALTY_" in str(service.get("environment"))}
    spark = {"spark-master", "spark-worker"}
    assert {*passed} <= set.intersection(*({*compose["services"][name]["environment"]} for name in own - spark))
    for name in ("LOYALTY_SPARK_MASTER", "LOYALTY_STATUS_URLS", "LOYALTY_API_ACCESS", "FORWARDED_ALLOW_IPS"):
        assert f"${{{name}:-" in text


def test_empty_values_of_the_compose_file_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unset variable reaches a container as an empty string, which must mean the default."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    with_empty = Settings()
    for name in VARIABLES:
        monkeypatch.delenv(name)
    assert Settings() == with_empty


@pytest.mark.program
@pytest.mark.parametrize("image", ["kafka", "pipeline"])
def test_an_image_downloads_its_jars_with_the_modules_that_it_copies(image: str, tmp_path: Path) -> None:
    """The first stage copies each module that infra.setup imports, and the jars come to /app/var/jars."""
    stage = (ROOT / "infra" / "docker" / f"{image}.Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1]
    for files, target in re.findall(r"^COPY (infra/\S+\.py.*) (\S+/)$", stage, re.MULTILINE):
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for file in files.split():
            shutil.copy(ROOT / file, tmp_path / target)
    code = re.findall(r"^RUN touch (\S+) && \.venv/bin/python -c '(from infra import setup);", stage, re.MULTILINE)
    assert [("pyproject.toml", "from infra import setup")] == code
    (tmp_path / "pyproject.toml").touch()
    command = [sys.executable, "-c", f"{code[0][1]}; print(setup.jars.folder('{image}'))"]
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONSAFEPATH"}}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert f"{tmp_path / 'var' / 'jars' / image}\n" == run.stdout, run.stderr


def test_services_wait_for_health_checks(compose: dict[str, Any]) -> None:
    """A service waits only for services that exist, and that have a health check or end by themselves."""
    services = compose["services"]
    for service in services.values():
        for name, wait in service.get("depends_on", {}).items():
            needed = services[name]
            if wait["condition"] == "service_healthy":
                own = "test" in needed.get("healthcheck", {})
                assert own or "\nHEALTHCHECK --" in dockerfile_of(needed).read_text(encoding="utf-8")
            else:
                assert ("service_completed_successfully", True) == (wait["condition"], "command" in needed)
                assert "restart" not in needed


def test_nothing_is_published_beyond_this_machine(compose: dict[str, Any], built: dict[str, dict[str, Any]]) -> None:
    """Every published port is bound to the loopback address and leads to a port that the image exposes."""
    published = [(name, port) for name, service in compose["services"].items() for port in service.get("ports", ())]
    assert published
    for name, port in published:
        host, _, inside = port.rsplit(":", 2)
        assert "127.0.0.1" == host
        if name in built:
            exposed = re.findall(r"^EXPOSE (.*)$", dockerfile_of(built[name]).read_text(), re.MULTILINE)
            assert inside in exposed[0].split()


def test_maintenance_has_the_folders_and_settings_of_the_pipeline(compose: dict[str, Any]) -> None:
    """A rebuild and a backfill write where the pipeline writes. A cluster gets the memory and cores that users set."""
    pipeline, maintenance = (compose["services"][name] for name in ("pipeline", "maintenance"))
    assert {*pipeline["volumes"], "access:/data/access:ro"} == {*maintenance["volumes"]}
    variables = set(re.findall(r"\$\{(SPARK_EXECUTOR_\w+)", (ROOT / "infra" / "docker" / "pipeline.sh").read_text()))
    assert {"SPARK_EXECUTOR_MEMORY", "SPARK_EXECUTOR_CORES"} == variables
    assert variables <= pipeline["environment"].keys()


def test_the_guide_adds_the_webhooks_to_the_status(compose: dict[str, Any]) -> None:
    """A profile cannot change the other services. So a variable adds the part, with the port of its health check."""
    guide = (ROOT / "docs" / "how-to" / "run-webhooks.md").read_text(encoding="utf-8")
    (urls,) = re.findall(r"^ +LOYALTY_STATUS_URLS=(.*)$", guide, re.MULTILINE)
    assert f"{compose['x-status']['LOYALTY_STATUS_URLS']} webhooks=http://webhooks:9110" == urls
    assert "http://127.0.0.1:9110/readyz" in compose["services"]["webhooks"]["healthcheck"]["test"]
    assert "${LOYALTY_STATUS_URLS:-" in (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def test_no_variable_of_another_program_is_empty(compose: dict[str, Any]) -> None:
    """The settings ignore empty variables. Spark does not: its driver ends if SPARK_EXECUTOR_MEMORY is empty."""
    ignored = {"OTEL_EXPORTER_OTLP_ENDPOINT", "FORWARDED_ALLOW_IPS"}  # tests of the traces and of the server
    for name, service in compose["services"].items():
        empty = {key for key, value in service.get("environment", {}).items() if value in (None, "")}
        assert all(key.startswith("LOYALTY_") for key in empty - ignored), name


def test_the_api_can_be_scaled(compose: dict[str, Any]) -> None:
    """Instances share no name, no port and only the volumes of keys, because RocksDB allows one process a folder."""
    api = compose["services"]["api"]
    assert "container_name" not in api
    assert all(re.search(r":\d+-\d+:\d+$", port) for port in api["ports"])
    shared = ["keys:/data/keys", "access:/data/access", "scrape:/data/scrape:ro"]
    assert shared == [volume for volume in api["volumes"] if ":" in volume]


def test_the_documented_stop_leaves_no_volume_without_a_name(compose: dict[str, Any]) -> None:
    """After `down`, a new container gets a new volume, and nothing deletes the old one. It has cards."""
    nameless = {
        (name, volume)
        for name, service in compose["services"].items()
        for volume in service.get("volumes", ())
        if ":" not in volume
    }
    assert {("api", "/data/state"), ("pipeline", "/tmp")} <= nameless  # noqa: S108
    guide = (ROOT / "docs" / "how-to" / "start-and-stop.md").read_text(encoding="utf-8")
    stops = re.findall(r"^\| stop and keep the data \| `make down` \| `(.*)` \|$", guide, re.MULTILINE)
    assert ["docker-compose --profile '*' stop"] == stops


def test_named_volumes_are_declared_and_owned(compose: dict[str, Any], built: dict[str, dict[str, Any]]) -> None:
    """The image contains the folder of each volume, which gives it its owner. Mounted user files are read-only."""
    for service in built.values():
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert volume.endswith(":ro")
                continue
            name, _, folder = volume.removesuffix(":ro").rpartition(":")
            assert not name or name in compose["volumes"]
            made = "".join(re.findall(r"mkdir -p .*", dockerfile_of(service).read_text()))
            assert folder == "/tmp" or f" {folder}" in made  # noqa: S108


@pytest.mark.program
@pytest.mark.parametrize("master", ["", "local[2]"])
def test_a_cluster_without_a_spark_master_setting_does_not_start(master: str) -> None:
    """A master on one machine is none of a cluster. The exit status is 2, and the error names the setting."""
    script = ROOT / "infra" / "docker" / "spark.sh"
    environment = {"PATH": os.defpath, "LOYALTY_SPARK_MASTER": master}
    run = subprocess.run(["bash", script, "master"], env=environment, capture_output=True, text=True, check=False)
    assert 2 == run.returncode
    assert "set LOYALTY_SPARK_MASTER to spark://spark-master:7077" in run.stderr


@EVERY_DOCKERFILE
def test_images_are_built_alike(dockerfile: Path) -> None:
    """Each image has a base by build argument, packages by hash, a user other than root, and a health check."""
    text = dockerfile.read_text(encoding="utf-8")
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    assert ({"${BASE}"}, 1) == (bases - stages, text.count("ARG BASE=debian:bookworm-slim\n"))
    installs = re.findall(r"pip install .*", text)
    assert [] == [line for line in installs if not re.search("--require-hashes|--no-deps --no-index", line)]
    last = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE)[-1] in ("loyalty", "postgres")
    assert "useradd --system --uid 10001 " in text
    assert "\nHEALTHCHECK --" in last


@EVERY_DOCKERFILE
def test_copied_files_exist(dockerfile: Path) -> None:
    """Every source of a COPY exists and passes .dockerignore, or another stage creates it."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() and source.split("/")[0] in allowed for source in sources)


@pytest.mark.parametrize("image", ["api", "pipeline"])
def test_clients_trust_the_authorities_of_the_system(image: str) -> None:
    """They connect to brokers with public certificates. Debian's Java depends on the package ca-certificates."""
    text = (ROOT / "infra" / "docker" / f"{image}.Dockerfile").read_text(encoding="utf-8")
    kept = text.partition("AS cli\n")[2] or text.rpartition("\nFROM ${BASE}\n")[2]
    assert re.search(r"apt-get install [^&]* (ca-certificates|openjdk-17-jre-headless)\b", kept)


def test_the_images_that_need_jars_share_a_stage() -> None:
    """The stage has the same text in both images, so the builder runs it once."""
    texts = [(ROOT / "infra" / "docker" / f"{name}.Dockerfile").read_text() for name in ("kafka", "pipeline")]
    stages = {text.partition("AS jars\n")[2].partition("\nFROM ")[0] for text in texts}
    assert 1 == len(stages)
    assert "setup.jars.STACK.ensure" in stages.pop()


def test_code_is_copied_after_its_dependencies() -> None:
    """No slow layer follows a layer that a change of code rebuilds."""
    for path in DOCKERFILES:
        last = path.read_text(encoding="utf-8").partition("\nFROM ${BASE}\n")[2] or path.read_text(encoding="utf-8")
        code = re.search(r"^COPY (schemas|services|api|infra/docker/\w+\.sh) ", last, re.MULTILINE)
        assert code
        slow = ("apt-get install", "pip install", "COPY --from=")
        assert [] == [step for step in slow if step in last[code.start() :]]


@pytest.fixture
def served() -> Iterator[str]:
    """The URL of a server that answers / with 200 and any other path with 404."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.end_headers()

    with serving(Handler) as url:
        yield url


def test_a_container_is_healthy_if_it_responds_with_success(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another status, or no response, means that it is not healthy. A proxy is not used."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert is_healthy(f"{served}/")
    assert not is_healthy(f"{served}/missing")
    assert not is_healthy("http://127.0.0.1:1/")


@pytest.mark.program
@pytest.mark.parametrize(("certificate", "scheme"), [("", "http"), ("/run/tls/api.pem", "https")])
def test_an_api_container_uses_the_scheme_of_its_settings(certificate: str, scheme: str) -> None:
    """Health check and advertised URL begin with https if the instance has a certificate."""
    text = (ROOT / "infra" / "docker" / "api.Dockerfile").read_text(encoding="utf-8")
    scripts = [json.loads(found)[2] for found in re.findall(r"CMD (\[\"sh\", \"-c\", .*\])$", text, re.MULTILINE)]
    variables = {"PATH": os.defpath, "HOSTNAME": "one", "LOYALTY_API_CERTIFICATE_FILE": certificate}
    said = [
        subprocess.run(
            ["sh", "-c", f"exec echo {script.removeprefix('exec ')}"],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[-1]
        for script in scripts
    ]
    assert [f"{scheme}://127.0.0.1:8080/readyz", f"{scheme}://one:8080"] == said


DRIVER = """bash -c "trap 'echo ended; exit 3' TERM; echo started; while :; do sleep 0.01; done" "$@" """
NO_DRIVER_YET = """echo started; read <> "$0.pipe" """


@pytest.mark.parametrize(("runs", "end", "status"), [(DRIVER, "ended", 3), (NO_DRIVER_YET, "killed", 1)])
def test_only_the_driver_is_stopped(tmp_path: Path, runs: str, end: str, status: int) -> None:
    """The driver ends its batches while Spark still runs, and spark-submit ends with the status of the driver.

    Before the driver starts, spark-submit itself is stopped.
    """
    submit = tmp_path / "spark-submit"
    submit.write_text(f"#!/bin/bash\ntrap 'echo killed; exit 1' TERM\n{runs}\n")
    submit.chmod(0o755)
    os.mkfifo(f"{submit}.pipe")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", ROOT / "infra" / "docker" / "submit.sh", "driver.py"]
    with subprocess.Popen(command, env={"PATH": path}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "started\n" == process.stdout.readline()
        process.terminate()
        assert f"{end}\n" == process.stdout.read()
    assert status == process.returncode


def test_containers_demand_credentials(compose: dict[str, Any], built: dict[str, dict[str, Any]]) -> None:
    """The API knows its callers. Whoever serves metrics to other containers compares the key that Prometheus sends."""
    services = compose["services"]
    assert "authenticated" == services["api"]["environment"]["LOYALTY_API_ACCESS"]
    key = {job["authorization"]["credentials_file"] for job in prometheus_jobs()}
    variables = {name: service.get("environment", {}) for name, service in built.items()}
    serving = {name for name, environment in variables.items() if "LOYALTY_METRICS_HOST" in environment}
    assert {"pipeline", "ledger", "webhooks"} == serving
    for name in serving:
        assert key == {variables[name]["LOYALTY_METRICS_KEY_FILE"]}
        assert "keys" in services[name]["depends_on"]
    readers = {name for name, service in services.items() if "scrape:/data/scrape:ro" in service.get("volumes", ())}
    assert {*serving, "api", "audit", "maintenance", "prometheus"} == readers
    pseudonyms = {name for name, environment in variables.items() if "LOYALTY_PSEUDONYM_KEY_FILE" in environment}
    assert {"pipeline", "api", "ledger", "audit", "maintenance"} == pseudonyms
    assert pseudonyms == {name for name, service in services.items() if "keys:/data/keys" in service.get("volumes", ())}
    # With the secret of the instances, a process could send requests in the name of any caller.
    accessing = {name for name, each in services.items() if "access:" in " ".join(each.get("volumes", ()))}
    assert {"keys", "api", "audit", "maintenance"} == accessing
    (script,) = services["keys"]["command"]
    assert {*key, services["audit"]["environment"]["LOYALTY_API_KEY_FILE"]} == set(
        re.findall(r" (/\S+\.key) --", script)
    )


def prometheus_jobs() -> list[dict[str, Any]]:
    text = (ROOT / "infra" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = yaml.safe_load(text)["scrape_configs"]
    assert {"pipeline", "api", "ledger", "webhooks"} == {job["job_name"] for job in found}
    return found


def test_the_command_line_accepts_the_commands_of_the_service_keys(compose: dict[str, Any]) -> None:
    """Each command ends at the settings, which lack a user here."""
    (script,) = compose["services"]["keys"]["command"]
    lines = [line.split()[1:] for line in script.splitlines() if line.startswith("loyalty ")]
    assert 2 == len(lines)
    for line in lines:
        result = CliRunner().invoke(app, [*line, "--json"], env={"LOYALTY_KAFKA_SECURITY_PROTOCOL": "SASL_SSL"})
        assert (2, True) == (result.exit_code, "LOYALTY_KAFKA_SASL" in result.stderr), result.stderr


def test_the_schema_registry_is_the_tested_one(compose: dict[str, Any]) -> None:
    """The profile runs the version of Apicurio Registry that the tests download, in their configuration."""
    service = compose["services"]["registry"]
    assert f"apicurio/apicurio-registry:{VERSION}" == service["image"]
    addresses = {"APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": "kafka:9092"}
    assert CONFIGURATION | addresses == service["environment"]
