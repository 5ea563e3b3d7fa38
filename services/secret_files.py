"""Files with secrets that the processes of a machine share."""

import os
import tempfile
from pathlib import Path


def create(file: Path, secret: bytes) -> None:
    """Create a file that only its owner can read. It keeps an existing file, even if another process has just created
    it. Raises OSError.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp creates a file that only its owner can read. The link then makes the whole content visible at once, and
    # fails if the file exists.
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(secret)
            temporary.flush()
            os.fsync(temporary.fileno())
        os.link(name, file)
    except FileExistsError:
        return
    finally:
        Path(name).unlink()


def lines_of(file: Path) -> list[bytes]:
    """The secrets in a file with one secret in each line. Raises OSError."""
    return [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
