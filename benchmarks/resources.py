"""Helps to measure the resources of processes and folders."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def every(seconds: float, sample: Callable[[], None]) -> Iterator[None]:
    """Call a function in a thread again and again, with this pause before each call, until the block ends."""
    ended = threading.Event()

    def until_the_end() -> None:
        while not ended.wait(seconds):
            sample()

    thread = threading.Thread(target=until_the_end, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def file_bytes(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
