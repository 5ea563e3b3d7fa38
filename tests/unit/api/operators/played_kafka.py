"""What the routes for operators read from Kafka. The test plays it."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from services.messaging.dead_letters import DeadLetter, DeadLetterFilter, RecordPosition
from services.settings import Settings
from services.status_figures import Lag, Part, QueryWork, Status

LETTERS = [
    DeadLetter(
        RecordPosition(0, number), 1_000 + number, "pos-invoices", RecordPosition(2, number), reason, b"K", value
    )
    for number, (reason, value) in enumerate([("not-json", b"\xff{"), ("no-total-amount", b"{}"), ("not-json", b"x")])
]


class Selected(NamedTuple):
    """Dead letters that can be read several times."""

    letters: Iterable[DeadLetter]
    letter_filter: DeadLetterFilter

    def __iter__(self) -> Iterator[Any]:
        return (letter for letter in self.letters if letter in self.letter_filter)


class Kafka:
    """Plays the dead letters, and two moments of the system."""

    def __init__(self) -> None:
        self.letters: Iterable[DeadLetter] = LETTERS
        self.replayed: list[RecordPosition] = []
        self.looks = self.reads = 0

    def read(self, _: Settings, letter_filter: DeadLetterFilter) -> Iterable[DeadLetter]:
        self.reads += 1
        return Selected(self.letters, letter_filter)

    def replay(self, _: Settings, letters: Iterable[DeadLetter], __: object, since: int) -> int:
        self.replayed += (letter.position for letter in letters if letter.first_time >= since)
        return len(self.replayed)

    def status(self, _: Settings, __: Any, api: Any) -> Status:
        self.looks += 1
        appended = {"pos-invoices": 100 * self.looks}
        buckets = dict.fromkeys((0.5, float("inf")), 10 * self.looks)
        work = {"loyalty": QueryWork(80 * self.looks, self.looks, 1.5 * self.looks)}
        lags = [Lag("query loyalty", "pos-invoices", 20)]
        parts = [Part("kafka", "127.0.0.1:9092", None)]
        return Status(10.0 * self.looks, parts, appended, work, buckets, appended, lags, api.instances)
