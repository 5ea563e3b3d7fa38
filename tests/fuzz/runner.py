"""Runs the inputs of a door in chunks. The number of a chunk is its seed, so each input can be made again.

A chunk runs in its own process. So the end of the process is found too, and memory is measured.
"""

import faulthandler
import gc
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import psutil

from tests.fuzz.door import Door, Enter

HANG_SECONDS = 20.0
"""An input that takes longer is a hang. A thousand times as long as the slowest, also on a busy machine."""

_LONGEST_CHUNK_SECONDS = 1200.0
"""A process whose chunk takes longer hangs where no signal ends it. It prints its stack and ends."""

_KEPT = 20
"""The largest number of failures of a chunk that are saved."""


class _HangError(BaseException):
    """The input took too long. It is no Exception, because a handler for all of them must not catch it."""


@dataclass
class Chunk:
    """The results of some inputs.

    Attributes:
        outcomes: number of inputs by outcome; ``crash`` and ``hang`` besides those of Outcome.
        failures: the input and the error of the first crashes and hangs.
        slowest_seconds: the longest time for one input.
        rss: the memory of the process after the chunk, in bytes. None if the process has ended.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    rss: int | None = None


def run_inputs(inputs: Iterator[Any], enter: Enter, hang_seconds: float = HANG_SECONDS) -> Chunk:
    """Give inputs to a door. Only the main thread can call it, because it uses a signal."""
    chunk, started = Chunk(), time.perf_counter()
    before = signal.signal(signal.SIGALRM, _hang)
    try:
        for number, each in enumerate(inputs):
            begin = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, hang_seconds)
            try:
                outcome = str(enter(each))
            except (Exception, SystemExit, _HangError) as error:  # noqa: BLE001 - every error is a result here
                outcome = "hang" if isinstance(error, _HangError) else "crash"
                if len(chunk.failures) < _KEPT:
                    chunk.failures.append(f"input {number}: {each!r}\n{traceback.format_exc()}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            chunk.outcomes[outcome] += 1
            chunk.slowest_seconds = max(chunk.slowest_seconds, time.perf_counter() - begin)
    finally:
        signal.signal(signal.SIGALRM, before)
    chunk.seconds = time.perf_counter() - started
    return chunk


def _hang(*_: object) -> None:
    raise _HangError


def run_chunk(door: Door, number: int, count: int) -> Chunk:
    """The first inputs of a chunk, in this process."""
    rng = Random(f"{door.name}/{number}")
    with door.opened() as enter:
        return run_inputs(islice(door.inputs(rng), count), enter)


_Work = Callable[[int, int], Chunk]


@contextmanager
def process_for(door: Callable[[], Door]) -> Iterator[_Work]:
    """A process that runs chunks of a door: number and count. It starts again after it has ended.

    Args:
        door: finds the door. A new process can import it.
    """
    context = get_context("spawn")
    pools = [ProcessPoolExecutor(1, context)]

    def run(number: int, count: int) -> Chunk:
        future: Future[Chunk] = pools[-1].submit(partial(_in_process, door), number, count)
        try:
            return future.result()
        except BrokenProcessPool:
            pools.append(ProcessPoolExecutor(1, context))
            text = "the process ended. The last lines of its output name the place; the chunk makes it again\n"
            return Chunk(Counter({"crash": 1}), [text])

    try:
        yield run
    finally:
        for pool in pools:
            pool.shutdown()


def _in_process(door: Callable[[], Door], number: int, count: int) -> Chunk:
    faulthandler.enable()
    faulthandler.dump_traceback_later(_LONGEST_CHUNK_SECONDS, exit=True)
    chunk = run_chunk(door(), number, count)
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    chunk.rss = psutil.Process().memory_info().rss
    return chunk


def save(folder: Path, door: str, number: int, chunk: Chunk) -> None:
    """Write the failures of a chunk into a file, each with its input."""
    if chunk.failures:
        folder.mkdir(parents=True, exist_ok=True)
        text = f"door {door}, chunk {number}\n\n" + "\n".join(chunk.failures)
        (folder / f"{door}-{number}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
