"""``make test-install``: the wheel works in an environment and a folder that have nothing of the checkout."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from infra.local import jars
from infra.local.java import find_java_home
from infra.local.ports import HOST, free_port
from infra.release import build

_UV = Path(sys.executable).with_name("uv")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="loyalty-install-") as folder:
        root = Path(folder)
        loyalty = _install(root)
        empty = root / "empty"
        empty.mkdir()
        environment = _environment(root)

        def run(*arguments: str) -> str:
            print("$ loyalty", *arguments, flush=True)
            output = subprocess.run(
                [loyalty, *arguments], cwd=empty, env=environment, stdout=subprocess.PIPE, text=True, check=True
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
        assert [] == list(empty.iterdir()), "the working directory stays empty"
        assert (root / "data" / "retail-loyalty" / "var").is_dir()
    print("The installed package works: the demo found no mismatch, and the stack starts and stops.")


def _install(root: Path) -> Path:
    """Install the wheel of the current commit, with the locked versions. Returns the command."""
    wheel = next(file for file in build(root / "dist") if file.suffix == ".whl")
    subprocess.run([_UV, "venv", "-q", "--python", sys.executable, root / "venv"], check=True)
    python = root / "venv" / "bin" / "python"
    locked = ["-c", str(jars.ROOT / "requirements" / "all.txt")]
    subprocess.run([_UV, "pip", "install", "-q", "--python", python, f"{wheel}[stack]", *locked], check=True)
    return root / "venv" / "bin" / "loyalty"


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
