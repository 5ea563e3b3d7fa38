"""An open-loop HTTP load: the latency of each request counts from its scheduled time (no coordinated omission)."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from urllib.parse import urlsplit

import uvloop


@dataclass
class Measured:
    """The measurements of a load.

    Attributes:
        latencies: milliseconds from the scheduled time of a request to the last byte of its response.
        statuses: number of responses by status.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, percent: int) -> float:
        return quantiles(self.latencies, n=100)[percent - 1]


def run(
    url: str,
    paths: Sequence[str],
    *,
    rate: float | None,
    seconds: float,
    connections: int = 32,
    tokens: Sequence[str] = (),
) -> Measured:
    """GET the paths in turn, with ``rate`` requests per second. Without a rate, as fast as the connections allow.

    Args:
        tokens: the bearer tokens to send in turn. Without tokens, requests have no credentials.
    """
    lines = [f"Authorization: Bearer {token}\r\n" for token in tokens] or [""]
    heads = (
        f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n{line}\r\n".encode()
        for path, line in zip(itertools.cycle(paths), itertools.cycle(lines), strict=True)
    )
    return uvloop.run(_run(url, heads, rate, seconds, connections))


async def _run(url: str, heads: Iterator[bytes], rate: float | None, seconds: float, connections: int) -> Measured:
    measured = Measured()
    start = time.perf_counter() + 0.05
    schedule = _schedule(start, rate, seconds)
    await asyncio.gather(*(_connection(url, heads, schedule, start + seconds, measured) for _ in range(connections)))
    measured.seconds = time.perf_counter() - start
    return measured


def _schedule(start: float, rate: float | None, seconds: float) -> Iterator[float]:
    """The scheduled time of each request. Without a rate, endless zeros, which mean: now."""
    if rate is None:
        return itertools.repeat(0.0)
    return iter([start + number / rate for number in range(int(rate * seconds))])


async def _connection(
    url: str, heads: Iterator[bytes], schedule: Iterator[float], end: float, measured: Measured
) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    for due in schedule:
        now = time.perf_counter()
        if due > now:
            await asyncio.sleep(due - now)
        elif not due and now > end:
            break
        begun = due or now
        writer.write(next(heads))
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        measured.latencies.append((time.perf_counter() - begun) * 1000)
        measured.statuses[int(head[9:12])] += 1
    writer.close()
