"""Checks of a process before it starts: the ports and folders that its settings name."""

import os
import socket
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit
from urllib.request import url2pathname

from services.errors import UserError


class StartUpError(UserError):
    """A port or folder cannot be used. The message names it, the cause, and what to do."""

    exit_status = 2


def require_port(host: str, port: int, variable: str) -> None:
    """Raise StartUpError if this process cannot listen on the port. The message names the variable of the setting."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StartUpError(
            f"cannot listen on {host}:{port} ({reason}): stop the other program, or set {variable} to another port"
        ) from error


def require_writable(folder: Path, variable: str) -> None:
    """Raise StartUpError if this process cannot create the folder or write to it. It leaves no file and no folder."""
    present = next(each for each in (folder, *folder.parents) if each.exists())
    if not present.is_dir():
        reason = "is not a folder"
    elif not os.access(present, os.W_OK | os.X_OK):
        reason = "is read-only"
    else:
        try:
            # A check of the rights is not enough: root has them in /proc too, and a disk can be full.
            TemporaryFile(dir=present).close()
        except OSError as error:
            reason = f"takes no new files: {error.strerror}"
        else:
            return
    raise StartUpError(
        f"cannot write to {folder} ({present} {reason}): give this process the right to write, or set {variable} to "
        "another folder"
    )


def local_folder(uri: str) -> Path | None:
    """The local folder of a Hadoop URI, or None if it is not local."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        return None
    return Path(url2pathname(parts.path)) if parts.scheme else Path(uri)
