"""Deduplication and replay of dead letters, on the broker that librdkafka contains for tests."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, Producer

from services.domain.validation import INVOICE_TOO_LARGE
from services.messaging import dead_letters, headers, replaying
from services.messaging.dead_letters import (
    DeadLetter,
    DeadLettersError,
    RecordPosition,
    deduplicated,
    newest_of,
    positions_text,
)
from services.messaging.publishing import PublishError
from services.messaging.replaying import replay, replayed_since, select
from services.messaging.topic_reader import records_of
from services.settings import Settings
from tests.support.mock_kafka import refuse_next

_PRODUCE = 0
LETTER = DeadLetter(RecordPosition(0, 4), 1, "pos-invoices", RecordPosition(1, 7), "StoreID is missing", b"STR1", b"{}")


def test_a_second_dead_letter_of_a_record_is_dropped() -> None:
    """The first dead letter of an origin is kept. Position, time and reason of the second one do not matter."""
    again = replace(LETTER, position=RecordPosition(2, 9), time=2, reason="another")

    assert [LETTER] == list(deduplicated([LETTER, again, again]))


def test_each_reason_can_be_kept() -> None:
    """Two webhooks refuse a notification. Both dead letters are shown, and the notification is replayed once."""
    other = replace(LETTER, reason="webhook crm: 410")

    assert [LETTER, other] == list(deduplicated([LETTER, other, LETTER], by_reason=True))
    assert [LETTER] == list(deduplicated([LETTER, other]))


def test_all_reasons_are_counted_and_only_the_newest_letters_are_kept() -> None:
    """The newest first. Of two letters of one millisecond, the one with the higher position is newer. The next page has
    the letters that are older than the last one of this page, and counts all of them.
    """
    old, twin = replace(LETTER, time=0, reason="not-json"), replace(LETTER, position=RecordPosition(0, 5))

    reasons, newest = newest_of(iter([LETTER, old, twin]), 2)

    assert {"StoreID is missing": 2, "not-json": 1} == reasons
    assert [twin, LETTER] == newest
    assert (reasons, [LETTER, old]) == newest_of(iter([LETTER, old, twin]), 2, before=twin.age)


def test_a_selection_is_counted_by_topic_and_its_unknown_positions_are_listed() -> None:
    wanted = [RecordPosition(1, 0), LETTER.position, RecordPosition(0, 9)]

    found = select(Settings(), [LETTER, replace(LETTER, topic="loyalty")], wanted, since=0)

    assert ({"pos-invoices": 1, "loyalty": 1}, [RecordPosition(0, 9), RecordPosition(1, 0)], 0) == (
        found.topics,
        found.missing,
        found.left_out,
    )


def test_positions_fit_into_a_record_of_the_audit_trail() -> None:
    """The text has the exact positions, unless they are too many ranges. Then each range has positions that are not
    selected.
    """
    some = [RecordPosition(1, 3), *(RecordPosition(0, offset) for offset in (21, 17, 20, 22))]
    assert "0:17 0:20-22 1:3" == positions_text(some)
    assert "" == positions_text([])

    thousand = [RecordPosition(2, offset) for offset in range(0, 2_000, 2)]
    assert " ".join(map(str, thousand)) == positions_text(thousand)
    assert "1:3 2:0-1998" == positions_text([*thousand, RecordPosition(1, 3)])


def test_dead_letters_of_different_records_are_kept() -> None:
    """A different topic, partition, offset, key or value means a different record."""
    others = [
        replace(LETTER, topic="till-invoices"),
        replace(LETTER, origin=RecordPosition(2, 7)),
        replace(LETTER, origin=RecordPosition(1, 8)),
        replace(LETTER, key=None),
        replace(LETTER, value=None),  # a topic that was created again uses the same offset for another record
    ]

    assert [LETTER, *others] == list(deduplicated([LETTER, *others]))


def test_dead_letters_without_an_origin_are_kept() -> None:
    """Without an origin nothing shows that two dead letters are of the same record."""
    unknown = [replace(LETTER, origin=None), replace(LETTER, topic=None)]

    assert [*unknown, *unknown] == list(deduplicated([*unknown, *unknown]))


@pytest.mark.parametrize("reason", [headers.TOO_LARGE, INVOICE_TOO_LARGE, INVOICE_TOO_LARGE + headers.WITHOUT_HEADERS])
def test_a_record_whose_value_was_too_large_is_not_replayed(reason: str) -> None:
    """The dead letter has no value. The error comes before anything is published, and names the original record."""
    without_value = replace(LETTER, position=RecordPosition(0, 5), value=None, reason=reason)

    with pytest.raises(PublishError, match="dead letter 0:5 has no value, because the value of the record at 1:7"):
        select(Settings(), [LETTER, without_value], [], since=0)
    with pytest.raises(PublishError, match="0:4 has no header dead_letter_topic"):
        select(Settings(), [replace(LETTER, topic=None)], [], since=0)


@pytest.mark.parametrize("topic", ["api-keys", "staging-pos-invoices"])
def test_a_record_is_only_replayed_to_a_topic_whose_records_become_dead_letters(topic: str) -> None:
    """Everybody who can write dead letters can write any topic into their header, also that of the API keys."""
    with pytest.raises(PublishError, match=f"0:4 names {topic}, which is no topic of this deployment"):
        select(Settings(), [LETTER, replace(LETTER, topic=topic)], [], since=0)
    staging = Settings(topic_prefix="staging-")
    found = select(staging, [replace(LETTER, topic="staging-pos-invoices")], [], since=0)
    assert {"staging-pos-invoices": 1} == found.topics


def test_a_replay_keeps_all_headers(mocked_broker: tuple[Settings, Producer]) -> None:
    """A record can have several headers of one name, for example of two proxies on its way. The replay adds the time
    at which the record became a dead letter.
    """
    settings, producer = mocked_broker
    producer.list_topics("pos-invoices", timeout=10)  # creates it
    pairs = [("via", b"one"), ("via", b"two"), ("empty", None)]
    origin = [(name, b"0") for name in headers.OF_DEAD_LETTERS[1:]]
    producer.produce("dead-letters", b"{}", headers=[*pairs, ("dead_letter_topic", b"pos-invoices"), *origin])
    producer.flush(10)
    letters = dead_letters.DeadLetters(settings)

    (letter,) = letters
    added = ("dead_letter_first_time", str(letter.time).encode())

    assert 1 == replay(settings, letters, ["pos-invoices"], since=0)
    assert [[*pairs, added]] == [each.headers() for each in records_of(settings, "pos-invoices", "test")]


def test_a_replay_leaves_out_what_the_pipeline_may_have_forgotten(mocked_broker: tuple[Settings, Producer]) -> None:
    """The pipeline remembers records for two horizons. A record may wait in its topic for one of them. A till can send
    any time as the first one, and a later time does not count.
    """
    settings, producer = mocked_broker
    producer.list_topics("pos-invoices", timeout=10)  # creates it
    since = replayed_since(settings, older=False)
    young = replace(LETTER, time=since + 60_000)
    old = replace(LETTER, time=since - 60_000, position=RecordPosition(0, 5), origin=RecordPosition(1, 8))
    again = replace(young, origin=RecordPosition(1, 9), headers=(("dead_letter_first_time", f"{old.time}".encode()),))
    strange = replace(young, origin=RecordPosition(2, 7), headers=(("dead_letter_first_time", b"yesterday"),))
    later = replace(old, origin=RecordPosition(2, 8), headers=(("dead_letter_first_time", f"{young.time}".encode()),))
    letters = [young, old, again, strange, later]

    found = select(settings, letters, [young.position, old.position], since)
    assert ({"pos-invoices": 2}, [young.position, strange.position], [], 3) == found
    assert 2 == replay(settings, letters, ["pos-invoices"], since)
    assert 5 == replay(settings, letters, ["pos-invoices"], replayed_since(settings, older=True))
    horizon = settings.repeat_horizon // timedelta(milliseconds=1)
    assert time.time() * 1_000 - horizon == pytest.approx(since, abs=60_000)


def test_a_replay_publishes_a_young_letter_of_a_record_that_also_has_an_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dry run counts the young letter. The replay publishes it once."""
    published = published_by(monkeypatch)
    young = replace(LETTER, time=1_000, position=RecordPosition(0, 5))

    assert ({"pos-invoices": 1}, [young.position], [], 1) == select(Settings(), [LETTER, young], [], since=500)
    assert 1 == replay(Settings(), [LETTER, young], ["pos-invoices"], since=500)
    assert [[("dead_letter_first_time", "1000")]] == published


def test_a_selection_by_reason_also_has_the_young_letter_of_a_record_with_an_old_one(
    mocked_broker: tuple[Settings, Producer],
) -> None:
    """The selection leaves out the second young letter, which a restart of the pipeline can write."""
    settings, producer = mocked_broker
    since = replayed_since(settings, older=False)
    origin = [(name, b"7") for name in headers.OF_DEAD_LETTERS]
    for time_ms in (since - 60_000, since + 60_000, since + 60_000):
        first_time = ("dead_letter_first_time", f"{time_ms}".encode())
        producer.produce("dead-letters", b"{}", partition=0, headers=[first_time, *origin])
    producer.flush(10)

    found, of_replay = (
        [letter.first_time for letter in dead_letters.DeadLetters(settings, dead_letters.DeadLetterFilter("7"), each)]
        for each in (0, since)
    )

    assert [since - 60_000] == found  # a list has each record once
    assert [since - 60_000, since + 60_000] == of_replay


def test_a_record_that_is_replayed_again_has_one_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first replay has added the header. The other headers keep their order."""
    published = published_by(monkeypatch)
    replayed = (("via", b"one"), ("dead_letter_first_time", b"5"), ("via", b"two"))

    assert 1 == replay(Settings(), [replace(LETTER, time=9, headers=replayed)], ["pos-invoices"], since=0)
    assert [[("via", b"one"), ("via", b"two"), ("dead_letter_first_time", "5")]] == published


def published_by(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The headers of each record that a replay publishes from now on, without a broker."""
    published: list[object] = []
    publisher = SimpleNamespace(publish=lambda *record: published.append(record[3]))
    monkeypatch.setattr(replaying, "connected_producer", lambda *_, **__: None)
    monkeypatch.setattr(replaying, "Publisher", lambda _: nullcontext(publisher))
    return published


def test_an_error_within_a_replay_says_how_many_records_were_published(
    mocked_broker: tuple[Settings, Producer],
) -> None:
    settings, producer = mocked_broker
    producer.list_topics("pos-invoices", timeout=10)  # creates it

    def letters() -> Iterator[DeadLetter]:
        yield LETTER
        raise DeadLettersError("topic dead-letters: the broker is away")

    with pytest.raises(DeadLettersError, match="1 records were published before"):
        replay(settings, letters(), ["pos-invoices"], since=0)


def test_an_error_names_the_dead_letter_that_is_larger_than_its_topic_allows(
    mocked_broker: tuple[Settings, Producer],
) -> None:
    """The same replay would fail again, so the error does not advise it."""
    settings, producer = mocked_broker
    producer.list_topics("pos-invoices", timeout=10)  # creates it
    refuse_next(producer, _PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)

    with pytest.raises(PublishError, match=r"dead letter 0:4 was not delivered.*max\.message\.bytes"):
        replay(settings, [LETTER], ["pos-invoices"], since=0)


def test_a_replay_keeps_no_dead_letters_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay publishes the first record before it reads the second one."""
    steps: list[str] = []

    class Letters:
        def __iter__(self) -> Iterator[DeadLetter]:
            for offset in range(3):
                steps.append(f"read {offset}")
                yield replace(LETTER, origin=RecordPosition(1, offset), value=f"{offset}".encode())

    publisher = SimpleNamespace(publish=lambda *record: steps.append(f"publish {record[2].decode()}"))
    monkeypatch.setattr(replaying, "connected_producer", lambda *_, **__: None)
    monkeypatch.setattr(replaying, "Publisher", lambda _: nullcontext(publisher))

    assert 3 == replay(Settings(), Letters(), ["pos-invoices"], since=0)
    assert [step for offset in range(3) for step in (f"read {offset}", f"publish {offset}")] == steps
