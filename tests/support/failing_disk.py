"""Damage to files, as a failing disk causes it."""

from pathlib import Path

_DAMAGED_BYTES = 64


def flip(file: Path, start: int | None = None) -> None:
    """Flip all bits of 64 bytes: from a position, or in the middle of the file."""
    content = bytearray(file.read_bytes())
    first = len(content) // 2 if start is None else start
    part = slice(first, first + _DAMAGED_BYTES)
    content[part] = bytes(byte ^ 0xFF for byte in content[part])
    file.write_bytes(content)
