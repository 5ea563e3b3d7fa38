"""``make test-install``: the wheel works in an environment and a folder that have nothing of the checkout.

The folder has packages and a module of a user, whose names are also names of this project and of the standard library.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from infra.local.folders import ROOT
from infra.local.java import find_java_home
from infra.local.ports import HOST, free_port
from infra.release import build

_UV = Path(sys.executable).with_name("uv")
_ENDS = "raise SystemExit('the working directory has run')"
"""A program that imports this text ends."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="loyalty-install-") as folder:
        root = Path(folder)
        environment = _environment(root)
        project = root / "project"
        for package in ("api", "infra", "pipelines", "schemas", "services"):
            (project / package).mkdir(parents=True)
            (project / package / "__init__.py").write_text(_ENDS)
        (project / "json.py").write_text(_ENDS)
        before = sorted(project.rglob("*"))
        loyalty = _install(root, environment)

        def run(*arguments: str) -> str:
            print("$ loyalty", *arguments, flush=True)
            output = subprocess.run(
                [loyalty, *arguments], cwd=project, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            print(output.stdout, flush=True)
            return output.stdout

        run("demo", "--invoices", "500")
        run("up")
        try:
            url = f"http://{HOST}:{environment['LOYALTY_API_PORT']}"
            assert httpx.get(f"{url}/readyz").json()["ready"]
            assert 404 == httpx.get(f"{url}/v1/customers/9265846829/balance").status_code
        finally:
            run("down")
        assert before == sorted(project.rglob("*")), "the working directory stays as it was"
        assert (root / "data" / "retail-loyalty" / "var").is_dir()
    print("The installed package works: the demo found no mismatch, and the stack starts and stops.")


def _install(root: Path, environment: dict[str, str]) -> Path:
    """Install the wheel of the current commit, with the locked versions. Returns the command.

    The wheel without an extra must say what to type, and the client must work without the packages of the command line.
    """
    wheel = next(file for file in build(root / "dist") if file.suffix == ".whl")
    locked = ["-c", str(ROOT / "requirements" / "all.txt")]

    def install(venv: Path, *packages: str) -> Path:
        if not venv.exists():
            subprocess.run([_UV, "venv", "-q", "--python", sys.executable, venv], check=True)
        python = venv / "bin" / "python"
        subprocess.run([_UV, "pip", "install", "-q", "--python", python, *packages, *locked], check=True)
        return venv / "bin"

    install(root / "client", "--no-deps", str(wheel))
    client = install(root / "client", "httpx", "msgspec")
    subprocess.run([client / "python", "-c", "import api.client.clients"], cwd=root, check=True)

    loyalty = install(root / "venv", str(wheel)) / "loyalty"
    refused = subprocess.run([loyalty, "up"], cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert 2 == refused.returncode, refused
    assert refused.stderr.endswith(f" -m pip install '{wheel}[stack]'\n"), refused.stderr
    install(root / "venv", f"{wheel}[stack]")
    return loyalty


def _environment(root: Path) -> dict[str, str]:
    """An environment with free ports, own user folders, and nothing of the checkout."""
    inherited = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    ports = ("API_PORT", "METRICS_PORT", "BACKGROUND_METRICS_PORT", "LEDGER_METRICS_PORT", "WEBHOOKS_METRICS_PORT")
    return {
        **inherited,
        "JAVA_HOME": str(find_java_home()),
        "XDG_DATA_HOME": str(root / "data"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{free_port()}",
        **{f"LOYALTY_{name}": str(free_port()) for name in ports},
    }


if __name__ == "__main__":
    main()
