"""Disks that fail: damaged files, and a small disk that can be full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DAMAGED_BYTES = 64


def flip(file: Path, start: int | None = None) -> None:
    """Flip all bits of 64 bytes: from ``start`` on, or from the middle of the file on."""
    content = bytearray(file.read_bytes())
    first = len(content) // 2 if start is None else start
    part = slice(first, first + _DAMAGED_BYTES)
    content[part] = bytes(byte ^ 0xFF for byte in content[part])
    file.write_bytes(content)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Create a folder and mount a small file system on it. Only root can do this.

    Args:
        folder: the new folder.
        size: the size of the file system, for example ``64m``.

    Raises subprocess.CalledProcessError if this machine does not allow it.
    """
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(filler: Path) -> None:
    """Fill the disk completely with this file. Delete the file to free the disk."""
    with suppress(OSError), filler.open("wb", buffering=0) as full:
        while True:
            full.write(b"\0" * 65_536)
    with suppress(OSError), filler.open("ab", buffering=0) as full:
        while True:
            full.write(b"\0")
