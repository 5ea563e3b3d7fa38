"""A port or folder that cannot be used ends a process with one line, and leaves nothing behind."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.ports import HOST
from infra.local.stack import environment_of, private_settings
from services.settings import Settings
from services.start_up import StartUpError, require_port, require_writable

ROOT = Path(__file__).parents[2]
METRICS_PORTS = {
    "pipelines": "metrics_port",
    "api": "api_port",
    "services.ledger": "ledger_metrics_port",
    "services.webhooks": "webhooks_metrics_port",
}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def refusal(module: str, settings: Settings) -> str:
    """The line that a process prints when it refuses to start with status 2."""
    command = [sys.executable, "-m", module]
    run = subprocess.run(
        command, env=environment_of(settings), cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (2, "") == (run.returncode, run.stdout), run.stderr
    (line,) = run.stderr.splitlines()
    return line


@pytest.mark.program
@pytest.mark.parametrize("module", METRICS_PORTS)
def test_a_taken_port_is_named(module: str, taken_port: int, tmp_path: Path) -> None:
    """The line names the port and the variable. No folder and no file appears."""
    setting = METRICS_PORTS[module]
    settings = private_settings(tmp_path, **{setting: taken_port})
    endpoint = "{name: shop, url: 'https://shop.example/hook', secret-file: secret}"
    settings.webhooks_file.write_text(f"endpoints: [{endpoint}]\n")
    (tmp_path / "secret").write_text("whsec_" + "A" * 44)
    before = sorted(tmp_path.iterdir())

    line = refusal(module, settings)

    assert f"cannot listen on {HOST}:{taken_port} (Address already in use)" in line
    assert f"set LOYALTY_{setting.upper()} to another port" in line
    assert before == sorted(tmp_path.iterdir())


@pytest.mark.program
@pytest.mark.parametrize(("module", "setting"), [("pipelines", "checkpoint_dir"), ("api", "state_dir")])
def test_a_folder_that_cannot_be_written_is_named(module: str, setting: str, tmp_path: Path) -> None:
    """The line names the folder and the variable. No folder and no file appears, also in the other folders."""
    (tmp_path / "file").touch()
    settings = private_settings(tmp_path, **{setting: str(tmp_path / "file" / "below")})

    line = refusal(module, settings)

    assert f"cannot write to {tmp_path / 'file' / 'below'}" in line
    assert f"set LOYALTY_{setting.upper()} to another folder" in line
    assert [tmp_path / "file"] == list(tmp_path.iterdir())


@pytest.mark.program
def test_the_folder_of_the_ledger_is_checked(tmp_path: Path) -> None:
    """The folder of a SQLite file is part of a URL."""
    (tmp_path / "file").touch()
    settings = private_settings(tmp_path, ledger_url=f"sqlite:///{tmp_path / 'file' / 'ledger.sqlite'}")

    line = refusal("services.ledger", settings)

    assert f"cannot write to {tmp_path / 'file'} ({tmp_path / 'file'} is not a folder)" in line
    assert "set LOYALTY_LEDGER_URL to another folder" in line


def test_a_read_only_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest folder that exists decides. An administrator may write everywhere, so the test asks for another."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (tmp_path / "writable").mkdir()

    require_writable(tmp_path / "writable" / "new" / "folder", "LOYALTY_STATE_DIR")
    with pytest.raises(StartUpError, match=rf"cannot write to .*/new \({tmp_path} is read-only\): .*LOYALTY_STATE_DIR"):
        require_writable(tmp_path / "new", "LOYALTY_STATE_DIR")


def test_a_folder_that_takes_no_files_is_refused() -> None:
    """An administrator may write to /proc by its rights, and still cannot create a folder there."""
    with pytest.raises(
        StartUpError, match=r"cannot write to /proc/x \(/proc (takes no new files: .+|is read-only)\): "
    ):
        require_writable(Path("/proc/x"), "LOYALTY_STATE_DIR")


def test_a_free_port_stays_free(tmp_path: Path) -> None:
    """The check does not keep the port. An address of another machine is refused too."""
    settings = private_settings(tmp_path)
    require_port(HOST, settings.api_port, "LOYALTY_API_PORT")
    socket.create_server((HOST, settings.api_port)).close()
    with pytest.raises(StartUpError, match=r"192\.0\.2\.1:9 .*LOYALTY_API_PORT"):
        require_port("192.0.2.1", 9, "LOYALTY_API_PORT")


def test_an_address_of_ip_version_6_is_checked_too() -> None:
    """A process may listen on ::1. Where the machine has no such address, the process could not listen either."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
            port = server.getsockname()[1]
            with pytest.raises(StartUpError, match=f"::1:{port} .*in use"):
                require_port("::1", port, "LOYALTY_API_PORT")
        require_port("::1", port, "LOYALTY_API_PORT")
    except OSError:
        with pytest.raises(StartUpError, match="::1:9 "):
            require_port("::1", 9, "LOYALTY_API_PORT")


@pytest.mark.program
@pytest.mark.parametrize(("module", "command"), [("api", "loyalty api"), ("pipelines", "loyalty pipeline")])
def test_the_help_names_the_command_that_users_type(module: str, command: str) -> None:
    """The command `loyalty` replaces itself by these programs."""
    run = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)

    assert f"Usage: {command} [OPTIONS]" in run.stdout


@pytest.mark.program
def test_the_local_stack_checks_the_settings_first() -> None:
    """A table of parts before an error looks as if the error had no effect."""
    run = subprocess.run(
        [sys.executable, "-m", "infra.local", "status"],
        env=os.environ | {"LOYALTY_FOO": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (2, "") == (run.returncode, run.stdout)
    assert run.stderr.startswith("error: LOYALTY_FOO: no such setting.")
