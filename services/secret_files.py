"""Files with secrets that the processes of a machine share."""

import os
import tempfile
from pathlib import Path


def create(file: Path, secret: bytes) -> None:
    """Create a file that only its owner can read. An existing file does not change, also if it appears meanwhile.

    Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Only the owner can read a file of mkstemp. The link appears with its content, or fails if the file exists.
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "wb") as unnamed:
            unnamed.write(secret)
            unnamed.flush()
            os.fsync(unnamed.fileno())
        os.link(name, file)
    except FileExistsError:
        return
    finally:
        Path(name).unlink()


def lines_of(file: Path) -> list[bytes]:
    """The secrets in a file with one secret in each line. Raises OSError."""
    return [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
