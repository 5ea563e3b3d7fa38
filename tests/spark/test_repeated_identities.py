"""Which records count if a till uses a number again, as the live queries decide."""

from types import SimpleNamespace

import pytest

from pipelines.reconciliation.rebuild import _remembered
from pipelines.reconciliation.repeats import effective_events, repeated_identities
from services.domain.programme import DAY
from services.settings import Settings

HOUR = DAY // 24
COPIES = (
    "identity string, pseudonym string, card string, append_time long, topic string, partition int, offset long, "
    "event binary"
)
ENTRIES = "pseudonym string, event_id string, entry_time long"

AGAIN = int(18.5 * DAY)

# By number: the copies and the entries (each a customer and a time), the copies that count (with whether they have an
# entry), and the first copy that a rebuilt query remembers. The horizon is 9 days, so a query forgets a number after 18
# to 19.1 days.
CASES = {
    "of another customer": (
        [("X", 0), ("Y", 365 * DAY)],
        [("X", 0)],
        [("X", 0, True), ("Y", 365 * DAY, False)],
        365 * DAY,
    ),
    "of the same customer": (
        [("X", 0), ("X", 365 * DAY)],
        [("X", 0)],
        [("X", 0, True), ("X", 365 * DAY, False)],
        365 * DAY,
    ),
    "only the second has an entry": (
        [("X", 0), ("X", 40 * DAY)],
        [("X", 40 * DAY)],
        [("X", 0, False), ("X", 40 * DAY, True)],
        40 * DAY,
    ),
    "a repeat": (
        [("X", 0), ("Y", 17 * DAY)],
        [("X", 0)],
        [("X", 0, True)],
        0,
    ),
    "a repeat for the same customer": (
        [("X", 0), ("X", 17 * DAY)],
        [("X", 0)],
        [("X", 0, True)],
        0,
    ),
    "a repeat of the second": (
        [("X", 0), ("Y", 30 * DAY), ("Z", 31 * DAY)],
        [],
        [("X", 0, False), ("Y", 30 * DAY, False)],
        30 * DAY,
    ),
    "a repeat does not prolong the memory": (
        [("X", 0), ("X", 15 * DAY), ("Y", 25 * DAY)],
        [("X", 0)],
        [("X", 0, True), ("Y", 25 * DAY, False)],
        25 * DAY,
    ),
    "only the entry shows that the second counts": (
        [("X", 0), ("Y", AGAIN), ("Y", 20 * DAY)],
        [("X", 0), ("Y", AGAIN)],
        [("X", 0, True), ("Y", AGAIN, True)],
        AGAIN,
    ),
    "the later one was read first": (
        [("X", 0), ("X", HOUR)],
        [("X", HOUR)],
        [("X", HOUR, True)],
        0,
    ),
    "the archive has another copy": (
        [("X", HOUR), ("Y", 2 * HOUR)],
        [("X", 0)],
        [("X", HOUR, True)],
        HOUR,
    ),
}


@pytest.fixture(scope="module")
def found(spark):
    """By number, the records that count, the time from which on a rebuilt query remembers it, and the known cards.

    The first copy of each number is archived, so it has no card.
    """
    copies = [
        (f"#{number}", customer, f"card of {customer}" if offset else None, time, "pos-invoices", 0, offset, b"e")
        for number, (all_copies, *_) in CASES.items()
        for offset, (customer, time) in enumerate(all_copies)
    ]
    entries = [(customer, number, time) for number, (_, entries, *_) in CASES.items() for customer, time in entries]
    records, recorded = spark.createDataFrame(copies, COPIES), spark.createDataFrame(entries, ENTRIES)
    repeated = repeated_identities(records, recorded, Settings())
    counted, cards = {number: [] for number in CASES}, {}
    for row in effective_events(records, recorded, repeated).collect():
        cards[row.event_id, row.append_time] = row.card
        counted[row.event_id].append((row.pseudonym, row.append_time, row.is_recorded))
    snapshot = SimpleNamespace(events=SimpleNamespace(records=records), repeated=repeated)
    first = _remembered(snapshot).groupBy("identity").agg({"timestamp": "min"}).toDF("identity", "since")
    since = {
        row.identity[1:]: row.millis for row in first.selectExpr("identity", "unix_millis(since) millis").collect()
    }
    return counted, since, cards


@pytest.mark.parametrize("number", CASES)
def test_a_number_counts_again_after_the_memory_of_the_queries(found, number):
    """An entry belongs to the generation of its time, also if its own copy is gone."""
    *_, expected, since = CASES[number]
    counted, remembered, _ = found
    assert expected == sorted(counted[number], key=lambda each: each[1])
    assert since == remembered[number]


def test_an_archived_event_gets_the_card_of_its_repeat(found):
    """So a rebuild knows the card of a customer whose only event Kafka deleted, if the till publishes it again."""
    *_, cards = found
    assert "card of X" == cards["a repeat for the same customer", 0]
    assert cards["of the same customer", 0] is None, "this is another invoice with this number"
