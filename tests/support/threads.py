"""Threads that run while a context is open."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Self


class BackgroundThreads:
    """Runs each target in a thread.

    The end of the context sets ``stopping`` and waits for the threads. Then it raises the first error that ended a
    thread.
    """

    def __init__(self, *targets: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        self._errors: list[Exception] = []
        self._threads = [threading.Thread(target=partial(self._run_in_thread, each), daemon=True) for each in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run_in_thread(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:  # noqa: BLE001 - leaving the context raises it
            self._errors.append(error)

    @property
    def are_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)
