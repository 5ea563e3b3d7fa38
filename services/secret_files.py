"""Files with secrets that the processes of a machine share."""

import os
import tempfile
from pathlib import Path


def create(file: Path, secret: bytes) -> bool:
    """Create a file that only its owner can read, and return whether it is new.

    An existing file stays, even if another process has just created it. After an error there is no file, not an empty
    one. Raises OSError.
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
        return False
    finally:
        Path(name).unlink()
    return True


def lines_of(file: Path) -> list[bytes]:
    """The secrets in a file with one secret in each line. Raises OSError."""
    return [line.strip() for line in file.read_bytes().splitlines() if line.strip()]
