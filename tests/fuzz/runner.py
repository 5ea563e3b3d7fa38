"""Runs the inputs of a target in chunks. The number of a chunk is its seed, so each input can be reproduced.

The chunks of a target run in a separate process. So the runner survives the end of that process, and measures memory.
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

from tests.fuzz.target import Feed, FuzzTarget

HANG_SECONDS = 20.0
"""An input that takes longer is a hang. This is far more than the slowest input needs, also on a busy machine."""

_LONGEST_CHUNK_SECONDS = 1200.0
"""If a chunk takes longer, the process hangs in code that no signal interrupts. It then prints its stack and ends."""

_KEPT = 20
"""The largest number of failures of a chunk that are saved."""


class _HangError(BaseException):
    """The input took too long. It is not an Exception, so that ``except Exception`` does not catch it."""


@dataclass
class Chunk:
    """The results of some inputs.

    Attributes:
        outcomes: number of inputs by outcome; ``crash`` and ``hang`` besides those of Outcome.
        failures: the inputs and errors of the first crashes and hangs.
        slowest_seconds: the longest time for one input.
        rss: the memory of the process after the chunk, in bytes. None if the process has ended.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    rss: int | None = None


def run_inputs(inputs: Iterator[Any], feed: Feed, hang_seconds: float = HANG_SECONDS) -> Chunk:
    """Feed inputs to a target. Only the main thread can call this, because it uses a signal."""
    chunk, started = Chunk(), time.perf_counter()
    before = signal.signal(signal.SIGALRM, _hang)
    try:
        for number, each in enumerate(inputs):
            begin = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, hang_seconds)
            try:
                outcome = str(feed(each))
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


def run_chunk(target: FuzzTarget, number: int, count: int) -> Chunk:
    """Run the first inputs of a chunk in this process."""
    rng = Random(f"{target.name}/{number}")
    with target.prepare() as feed:
        return run_inputs(islice(target.inputs(rng), count), feed)


_Work = Callable[[int, int], Chunk]


@contextmanager
def process_for(target: Callable[[], FuzzTarget]) -> Iterator[_Work]:
    """A process that runs chunks of a target. Yields a function that takes the number of the chunk and of its inputs.

    If the process ends, the next chunk gets a new one.

    Args:
        target: returns the target. The new process must be able to import this function.
    """
    context = get_context("spawn")
    pools = [ProcessPoolExecutor(1, context)]

    def run(number: int, count: int) -> Chunk:
        future: Future[Chunk] = pools[-1].submit(partial(_in_process, target), number, count)
        try:
            return future.result()
        except BrokenProcessPool:
            pools.append(ProcessPoolExecutor(1, context))
            text = "the process ended: its last lines of output name the place. Run the chunk again to reproduce it\n"
            return Chunk(Counter({"crash": 1}), [text])

    try:
        yield run
    finally:
        for pool in pools:
            pool.shutdown()


def _in_process(target: Callable[[], FuzzTarget], number: int, count: int) -> Chunk:
    faulthandler.enable()
    faulthandler.dump_traceback_later(_LONGEST_CHUNK_SECONDS, exit=True)
    chunk = run_chunk(target(), number, count)
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    chunk.rss = psutil.Process().memory_info().rss
    return chunk


def save(folder: Path, target: str, number: int, chunk: Chunk) -> None:
    """Write the failures of a chunk, with their inputs, into a file."""
    if chunk.failures:
        folder.mkdir(parents=True, exist_ok=True)
        text = f"target {target}, chunk {number}\n\n" + "\n".join(chunk.failures)
        (folder / f"{target}-{number}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
