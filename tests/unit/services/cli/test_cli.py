import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import typer
from typer.testing import CliRunner, Result

from schemas.access import USERS
from services.cli import app, deployment, export, processes
from services.settings import Settings
from tests.support.kafka import NO_BROKER, NOBODY
from tests.support.programs import LOYALTY

EXAMPLE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "programme-example.yaml"


def loyalty(*arguments: str, **environment: str) -> Result:
    variables = {"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": NOBODY, **environment}
    return CliRunner().invoke(app, arguments, env=variables)


@pytest.mark.parametrize(
    "command",
    [
        ["simulate"],
        ["replay", "-"],
        ["topics", "create"],
        ["trail"],
        ["programme", "publish", str(EXAMPLE)],
        ["programme", "show"],
        ["dead-letters", "list"],
        ["dead-letters", "replay", "--all"],
    ],
)
def test_no_broker_is_one_clear_line(command: list[str]) -> None:
    """The exit code is 1, stdout is empty, and stderr names the address."""
    result = loyalty(*command)

    assert (1, "") == (result.exit_code, result.stdout)
    assert NO_BROKER == result.stderr


@pytest.mark.program
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_output_that_cannot_be_written_is_one_clear_line(options: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "from services.cli import app; app()", "topics", "list", *options]
        result = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    says = "stdout: No space left on device: the output is not complete. Free disk space, or write to another place"
    assert (1, f"error: {says}\n") == (result.returncode, result.stderr)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["simulate", "--repeats", "0.6", "--broken", "0.6"], "repeats and broken together must not be more than 1"),
        (["simulate", "--stores", "0"], "stores must be from 1 to"),
        (["dead-letters", "replay"], "select dead letters with --reason or --offset or both, or use --all alone"),
        (["dead-letters", "replay", "--all", "--reason", "x"], "or use --all alone"),
        (["dead-letters", "replay", "--reason", ""], "--reason is blank, which would select every dead letter"),
        (["dead-letters", "replay", "--reason", " ", "--offset", "0:7"], "--reason is blank"),
        (["dead-letters", "replay", "--offset", "7"], "--offset '7' is not PARTITION:OFFSET"),
        (["dead-letters", "replay", "--offset", "0:" + "7" * 5000], "is not PARTITION:OFFSET: use for example 0:42"),
        (["import", "--name", "opening \udcff", "b.csv"], "--name, --reason and --actor must be UTF-8"),
    ],
)
def test_wrong_options_are_one_clear_line(command: list[str], says: str) -> None:
    """The exit code is 2, and no broker is contacted."""
    result = loyalty(*command)

    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert says in result.stderr


@pytest.mark.parametrize("command", [["simulate", "--prime", "1.5"], ["replay"], ["replay", "x", "--as", "xml"]])
def test_wrong_usage_shows_no_traceback(command: list[str]) -> None:
    """The exit code for errors that typer finds is also 2."""
    result = loyalty(*command)

    assert (2, "") == (result.exit_code, result.stdout)
    assert "Traceback" not in result.stderr


def test_a_wrong_setting_names_its_variable() -> None:
    """The exit code is 2, and the error names the variable."""
    result = loyalty("settings", LOYALTY_API_PORT="many")

    assert 2 == result.exit_code
    assert result.stderr.startswith("error: LOYALTY_API_PORT: ")


def test_a_missing_file_stops_the_replay_before_it_begins(tmp_path: Path) -> None:
    """A missing file is found also if it is not the first one. No broker is contacted."""
    good = tmp_path / "good.jsonl"
    good.write_text('{"InvoiceNumber": "1"}\n')

    result = loyalty("replay", str(good), str(tmp_path / "gone.jsonl"))

    assert (1, "") == (result.exit_code, result.stdout)
    assert f"error: {tmp_path / 'gone.jsonl'}: No such file or directory\n" == result.stderr


def test_settings_shows_every_setting() -> None:
    """Each setting has its variable, its value and its description."""
    shown = json.loads(loyalty("settings", "--json", LOYALTY_API_PORT="8123").stdout)

    assert {f"LOYALTY_{name.upper()}" for name in Settings.model_fields} == set(shown)
    assert 8123 == shown["LOYALTY_API_PORT"]["value"]
    assert all(entry["description"] for entry in shown.values())


def test_settings_shows_no_password() -> None:
    """Users copy the output into tickets and logs."""
    shown = loyalty("settings", "--json", LOYALTY_SCHEMA_REGISTRY_URL="http://me:pass-6789@registry:8081")

    assert "pass-6789" not in shown.stdout
    assert "http://me:…@registry:8081" in shown.stdout


@pytest.mark.parametrize(
    ("content", "mechanism", "says"),
    [
        (b"\n", "SCRAM-SHA-512", "admin is empty: write the password of the user admin into it"),
        (b"\xff", "SCRAM-SHA-512", "admin is not UTF-8: write the password of the user admin into it"),
        (b"secret", "PLAIN", "Kafka keeps no passwords of PLAIN"),
    ],
)
def test_passwords_that_cannot_be_set_are_one_clear_line(
    tmp_path: Path, content: bytes, mechanism: str, says: str
) -> None:
    for user in USERS:
        (tmp_path / user).write_bytes(content)
    result = loyalty("access", "apply", "--passwords", str(tmp_path), LOYALTY_KAFKA_SASL_MECHANISM=mechanism)

    assert 2 == result.exit_code
    assert says in " ".join(result.stderr.split())


def test_an_unusable_ca_file_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("x")
    result = loyalty("topics", "create", LOYALTY_KAFKA_SECURITY_PROTOCOL="SSL", LOYALTY_KAFKA_SSL_CA_LOCATION=str(file))

    assert 1 == result.exit_code
    assert "ssl.ca.location" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.program
def test_a_signal_ends_the_program_of_a_command_too() -> None:
    """The program signals the command, and then waits until the command ends it."""
    code = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    before = signal.getsignal(signal.SIGTERM)

    assert 128 + signal.SIGTERM == processes.exit_status([sys.executable, "-c", code])
    assert before == signal.getsignal(signal.SIGTERM)
    assert 7 == processes.exit_status([sys.executable, "-c", "raise SystemExit(7)"])


@pytest.mark.program
def test_a_killed_program_has_the_status_of_a_shell() -> None:
    """The status is 137 after SIGKILL, for example at the limit of memory."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    assert 128 + signal.SIGKILL == processes.exit_status([sys.executable, "-c", code])


def test_topics_list_is_the_catalogue() -> None:
    """The names have the prefix of the topics on the broker. The numbers of partitions are those of the settings."""
    variables = {"LOYALTY_TOPIC_PREFIX": "t-", "LOYALTY_PARTITIONS": "12"}
    shown = json.loads(loyalty("topics", "list", "--json", **variables).stdout)["topics"]

    first = {"name": "t-pos-invoices", "key": "StoreID", "value": "PosInvoice", "partitions": 12}
    assert first.items() <= shown[0].items()
    assert {"loyalty-balances": "compact"}.items() <= {
        row["name"].removeprefix("t-"): row["cleanup_policy"] for row in shown
    }.items()


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["pipeline", "--query", "loyalty", "--help"], ["pipelines", "--query", "loyalty", "--help"]),
        (["api", "--state-dir", "x y", "z"], ["api", "--state-dir", "x y", "z"]),
        (["export", "--to", "d"], ["pipelines", "--query", "export", "--to", "d", "--available-now"]),
        (["export", "--to", "d", "--continuous"], ["pipelines", "--query", "export", "--to", "d"]),
        (["export", "run", "--to", "d"], ["pipelines", "--query", "export", "--to", "d", "--available-now"]),
        (
            ["export", "backfill", "line_items"],
            ["pipelines", "--query", "export", "--to", "var/here", "--available-now", "--backfill"],
        ),
        (["export"], ["pipelines", "--query", "export", "--to", "var/here", "--available-now"]),
    ],
)
def test_processes_are_started_with_their_own_options(
    command: list[str], program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CLI becomes `python -m …`, and passes all other options unchanged."""
    started: list[list[str]] = []

    def execv(path: str, arguments: list[str]) -> None:
        started.append([path, *arguments])
        raise SystemExit

    monkeypatch.setattr(processes.os, "execv", execv)
    monkeypatch.setattr(processes, "announce", lambda *_, **__: None)
    loyalty(*command, LOYALTY_EXPORT_DIR="var/here")

    assert [[sys.executable, sys.executable, "-m", *program]] == started


@pytest.mark.program
def test_a_program_ignores_the_packages_of_the_working_directory(tmp_path: Path) -> None:
    """A project of a user can have a package `services` or a module `json`. Python alone would run their code."""
    for name in ("api", "schemas", "services"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "json.py").write_text("raise SystemExit('the working directory has run')")
    environment = {**os.environ, "PYTHONSAFEPATH": ""}
    command = [LOYALTY, "api", "--help"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (0, "") == (run.returncode, run.stderr)
    assert "Usage: loyalty api [OPTIONS]" in run.stdout


@pytest.mark.parametrize(
    ("tables", "folder", "says"),
    [(["line_items", "liabilty"], "tables", "liabilty"), ([], "export/tables", "LOYALTY_TABLES_DIR")],
)
def test_a_backfill_checks_its_tables_before_it_starts(
    tables: list[str], folder: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backfill of the line items can take hours, so a wrong table ends it before."""
    started: list[list[str]] = []
    monkeypatch.setattr(export, "announce_command", lambda *_, **__: None)
    monkeypatch.setattr(export, "exit_status", lambda command: started.append(command) or 1)
    settings = {"LOYALTY_EXPORT_DIR": f"{tmp_path}/export", "LOYALTY_TABLES_DIR": str(tmp_path / folder)}

    refused = loyalty("export", "backfill", *tables, **settings)
    assert (2, []) == (refused.exit_code, started)
    assert says in refused.stderr
    assert 1 == loyalty("export", "backfill", **settings | {"LOYALTY_TABLES_DIR": f"{tmp_path}/tables"}).exit_code
    assert 1 == len(started)


@pytest.mark.parametrize("command", ["up", "kafka", "down"])
def test_the_local_stack_needs_no_checkout(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel has no Makefile. Kafka alone is for a rebuild and a backfill."""
    started: list[list[str]] = []
    monkeypatch.setattr(processes.os, "execv", lambda _, arguments: started.append(arguments))
    loyalty(command, "--dir", "data", "--json")
    assert [["-m", "infra.local", command, "--dir=data", "--json"]] == [each[1:] for each in started]


def commands(found: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands with their words."""
    found = found or typer.main.get_command(app)
    for name, each in getattr(found, "commands", {}).items():
        yield from commands(each, (*path, name))
    if not hasattr(found, "commands"):
        yield path, found


@pytest.mark.parametrize("command", [pytest.param(each, id=" ".join(path)) for path, each in commands()])
def test_every_command_has_json(command: Any) -> None:
    """With --json results are one JSON object, and the log of a process is JSON lines."""
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


def test_with_json_warnings_are_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout is one JSON object. Structlog alone would write there."""

    def read_settings() -> Settings:
        structlog.get_logger("services.tls").warning("cannot read the file")
        return Settings()

    monkeypatch.setattr(deployment, "read_settings", read_settings)
    for _ in range(2):
        result = loyalty("settings", "--json")
        assert json.loads(result.stdout)
        assert 1 == result.stderr.count("cannot read the file")


@pytest.mark.parametrize("command", ["pipeline", "api", "export", "archive", "webhooks", "ledger run"])
def test_json_makes_the_log_of_a_process_json(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option of the command is the setting of the program."""
    formats: list[str] = []

    def execv(*_: object) -> None:
        formats.append(os.environ["LOYALTY_LOG_FORMAT"])
        raise SystemExit

    monkeypatch.setattr(processes.os, "execv", execv)
    monkeypatch.setattr(processes, "announce", lambda *_, **__: None)
    for options in ([], ["--json"]):
        loyalty(*command.split(), *options, LOYALTY_LOG_FORMAT="console")

    assert ["console", "json"] == formats


def test_a_program_that_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of the command line has no pipeline."""
    monkeypatch.setattr(processes, "find_spec", lambda _: None)
    result = loyalty("pipeline")

    assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert "this installation has no pipelines" in result.stderr


@pytest.mark.program
@pytest.mark.parametrize(("words", "found"), [("loyalty ke", {"keys"}), ("loyalty keys re", {"revoke"})])
def test_bash_completes_commands(words: str, found: set[str]) -> None:
    """The script of the documentation completes the words of a command line."""
    program = str(Path(sys.executable).with_name("loyalty"))
    script = subprocess.run(
        [program], env={**os.environ, "_LOYALTY_COMPLETE": "source_bash"}, capture_output=True, text=True, check=True
    ).stdout
    place = len(words.split()) - 1
    ask = f'COMP_WORDS=({words}); COMP_CWORD={place}; _loyalty_completion {program}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)

    assert found == set(done.stdout.split())


@pytest.mark.parametrize(
    ("url", "by_pipx", "expected"),
    [
        ("file:///a%20folder/loyalty.whl", True, "pipx install --force '/a folder/loyalty.whl[stack]'"),
        ("file:///loyalty.whl", False, f"{sys.executable} -m pip install '/loyalty.whl[stack]'"),
        (None, False, f"{sys.executable} -m pip install 'retail-loyalty[stack]'"),
    ],
)
def test_a_wheel_without_the_stack_says_what_to_type(
    *, url: str | None, by_pipx: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the missing package and the whole command, with the wheel that is installed."""
    (tmp_path / "pipx_metadata.json" if by_pipx else tmp_path / "pyvenv.cfg").touch()
    origin = None if url is None else json.dumps({"url": url})
    monkeypatch.setattr(processes, "distribution", lambda _: SimpleNamespace(read_text=lambda _: origin))
    monkeypatch.setattr(processes, "find_spec", lambda name: None if name == "pyspark" else name)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))

    result = CliRunner().invoke(app, ["up"])

    assert (2, f"error: pyspark is not installed: run {expected}\n") == (result.exit_code, result.stderr)
