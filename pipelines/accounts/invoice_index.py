"""The index of invoices of one bucket, in Spark's state: who bought a number, and the returns that wait for a purchase.

The domain decides (services.domain.invoice_index). Spark removes a number when ``index_memory`` has passed since its
last write. A bucket of the loyalty query holds cards and numbers. A card and its numbers are usually in different
buckets. So a forwarded return is sent through loyalty-commands.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from pipelines.accounts.records import forwarded_row, step_rows
from pipelines.columns.types import struct
from pipelines.runtime.state_calls import MapCalls, StateMaps
from schemas.topics import Topic
from services.domain.account.model import EVENT_MEMORY
from services.domain.invoice_index import Bought, Forgotten, IndexedInvoice, Returned, apply_news
from services.domain.programme import Programmes

BOUGHT, RETURNED, FORGOTTEN = "bought", "returned", "forgotten"
"""The kinds of news about a number."""

WAITING = 80_000
"""The largest number of returns that wait in a shuffle partition. A further one replaces the oldest of its bucket."""

INVOICES = "invoices"
"""The state variable: a map from number to the card that bought (empty: unknown) and the waiting returns."""

_NUMBER = struct(number="string")
_INVOICE = struct(card="string", waiting="binary")
_SLOT = struct(slot="long")
_COUNTER = -1
"""The key of a counter: the number of all slots that were ever taken."""

_encode_waiting = msgspec.msgpack.Encoder().encode
_decode_waiting = msgspec.msgpack.Decoder(tuple[Returned, ...]).decode


def encode_waiting(waiting: Sequence[Returned]) -> bytes:
    """Returns the stored form of waiting returns. ``invoice`` is a framed Purchase."""
    return _encode_waiting(waiting) if waiting else b""


def decode_waiting(stored: bytes) -> Sequence[Returned]:
    """Returns the waiting returns; ``invoice`` is a framed Purchase."""
    return _decode_waiting(stored) if stored else ()


def index_memory(programmes: Programmes) -> int:
    """Returns the shortest time for which the index keeps a number, in milliseconds.

    It is the longest return window (at least ``EVENT_MEMORY``), and the time for which a return may wait in its topic:
    an account counts from the append time of the purchase, and Spark counts from the time of the micro-batch.
    """
    return max(EVENT_MEMORY, *(version.return_window for version in programmes.versions)) + EVENT_MEMORY


class News(NamedTuple):
    """A row of the query about a number."""

    kind: str
    number: str
    append_time: int
    card: str | None
    event: bytes | None
    traceparent: str | None = None


class InvoiceIndex:
    """The numbers of one bucket."""

    def __init__(
        self,
        handle: StatefulProcessorHandle,
        maps: StateMaps,
        programmes: Programmes,
        writer_ids: Mapping[Topic, int],
        most_waiting: int,
    ) -> None:
        """Args: most_waiting: the largest number of returns that wait in the bucket."""
        memory = index_memory(programmes)
        self._invoices = MapCalls(handle.getMapState(INVOICES, _NUMBER, _INVOICE, ttlDurationMs=memory))
        self._slots = maps.open("invoice-slots", _SLOT, _NUMBER)
        self._writer_ids = writer_ids
        self._most_waiting = most_waiting

    def process(self, news: Iterable[News]) -> Iterator[Row]:
        """Apply news, and yield the commands that forward returns."""
        by_number: dict[str, list[Any]] = defaultdict(list)
        traces = {}
        for each in news:
            by_number[each.number].append(_decoded(each))
            traces[bytes(each.event or b"")] = each.traceparent
        numbers = sorted(by_number)
        changed, removed, waiting = {}, [], []
        counts: Counter[str] = Counter()
        for number, found in zip(numbers, self._read(numbers), strict=True):
            outcome = apply_news(found, by_number[number])
            if outcome.invoice == IndexedInvoice():
                removed.append(number)
            elif outcome.invoice != found or any(isinstance(each, Bought) for each in by_number[number]):
                # A purchase is written also if nothing changes, because only a write renews the time to live.
                changed[number] = outcome.invoice
            waiting += [number] * outcome.began
            for card, returned in outcome.forwarded:
                yield forwarded_row(card, returned, self._writer_ids, traces.get(returned.invoice))
            counts["waiting"] += outcome.began
            counts["settled"] += outcome.settled
            counts["forwarded"] += len(outcome.forwarded)
            counts["dropped"] += outcome.refused
        self._write(changed)
        if removed:
            self._invoices.remove((number,) for number in removed)
        counts["dropped"] += self._take_slots(waiting)
        yield from step_rows(counts)

    def add(self, number: str, invoice: IndexedInvoice) -> None:
        """Add a number to a new checkpoint."""
        self._write({number: invoice})
        self._take_slots([number] * len(invoice.waiting))

    def _read(self, numbers: Sequence[str]) -> Iterator[IndexedInvoice]:
        for value in self._invoices.get([(number,) for number in numbers]):
            yield IndexedInvoice(value[0], tuple(decode_waiting(bytes(value[1])))) if value else IndexedInvoice()

    def _write(self, invoices: Mapping[str, IndexedInvoice]) -> None:
        self._invoices.update(
            ((number,), (card, encode_waiting(waiting))) for number, (card, waiting) in invoices.items()
        )

    def _take_slots(self, numbers: Sequence[str]) -> int:
        """Give the next slots to returns that began to wait. Returns how many older returns no longer wait.

        The slots form a ring. Each has the number for which its return waits. If a slot is given to another return, the
        oldest return that waits for the former number of the slot no longer waits. ``numbers`` has the number for which
        each new return waits.
        """
        lost = 0
        for start in range(0, len(numbers), self._most_waiting):
            new = numbers[start : start + self._most_waiting]
            (counter,) = self._slots.get([(_COUNTER,)])
            taken = int(counter[0]) if counter else 0
            slots = [((taken + place) % self._most_waiting,) for place in range(len(new))]
            former = [value[0] for value in self._slots.get(slots) if value]
            pairs = zip(slots, ((number,) for number in new), strict=True)
            self._slots.update([*pairs, ((_COUNTER,), (str(taken + len(new)),))])
            invoices = dict(zip(former, self._read(former), strict=True))
            slots_of = Counter(former)
            waiting = {number: each for number, each in invoices.items() if each.waiting}
            self._write(
                {number: each._replace(waiting=each.waiting[slots_of[number] :]) for number, each in waiting.items()}
            )
            lost += sum(min(slots_of[number], len(each.waiting)) for number, each in waiting.items())
        return lost


def _decoded(news: News) -> Bought | Returned | Forgotten:
    if news.kind == BOUGHT:
        return Bought(news.append_time, str(news.card))
    if news.kind == FORGOTTEN:
        return Forgotten(news.append_time, str(news.card))
    return Returned(news.append_time, news.card or "", bytes(news.event or b""))
