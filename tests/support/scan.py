"""Searches all files of a folder, in any format."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from pyarrow import parquet


def files_with(folder: Path, *texts: str) -> list[str]:
    """The names of the files that contain one of the texts. Parquet is decoded, and zip files are unpacked."""
    wanted = [text.encode() for text in texts]
    files = sorted(filter(Path.is_file, folder.rglob("*")))
    return [file.name for file in files if any(text in part for part in _contents(file) for text in wanted)]


def _contents(file: Path) -> Iterator[bytes]:
    yield file.read_bytes()
    if file.suffix == ".parquet":
        yield str(parquet.ParquetFile(file).read().to_pydict()).encode()
    elif zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            yield from map(archive.read, archive.namelist())
