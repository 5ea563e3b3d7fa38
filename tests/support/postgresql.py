"""A PostgreSQL server for one test run, from system packages."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

DEADLINE_SECONDS = 120.0
# Test data need not survive a power cut.
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=50")


def programs() -> Path | None:
    """The folder of initdb and postgres. On Debian it is not part of PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    found = shutil.which("initdb")
    candidates = [*([Path(found).resolve().parent] if found else []), *reversed(debian)]
    return next((each for each in candidates if (each / "initdb").exists() and (each / "postgres").exists()), None)


@contextmanager
def server(bin_folder: Path, settings: Sequence[str] = FAST) -> Iterator[str]:
    """Run a server that listens only on its own Unix socket. Yields the superuser's URL."""
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="loyalty-postgresql-"))
    try:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        as_user: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        data = folder / "data"
        initdb: list[str | Path] = [
            bin_folder / "initdb",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
            "--username=postgres",
            data,
        ]
        done = subprocess.run(initdb, capture_output=True, text=True, cwd=folder, check=False, **as_user)
        assert 0 == done.returncode, done.stderr
        options = [f"-c{option}" for option in ("listen_addresses=", f"unix_socket_directories={folder}", *settings)]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [bin_folder / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=folder, **as_user
            )
        try:
            _wait(process, folder)
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            process.terminate()
            process.wait(DEADLINE_SECONDS)
    finally:
        shutil.rmtree(folder)


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """Create a database on the server, whose superuser has this URL. Yields its URL, and drops it at the end."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _user() -> pwd.struct_passwd | None:
    """The user for PostgreSQL, which refuses to run as root. None: the current user."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not _answers(folder):
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()


def _answers(folder: Path) -> bool:
    try:
        psycopg.connect(host=str(folder), user="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
