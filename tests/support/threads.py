"""Threads that run while a context is open."""

import threading
from collections.abc import Callable
from typing import Self


class BackgroundThreads:
    """Runs each target in a thread. Leaving the context sets ``stopping`` and waits for the threads."""

    def __init__(self, *targets: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)
