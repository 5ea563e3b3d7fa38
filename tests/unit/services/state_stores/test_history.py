"""The read of one key of a changelog, on the broker that librdkafka contains for tests."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest

from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings
from services.state_stores import catalogue, history
from tests.support.mock_kafka import mock_broker

DEFINITION = catalogue.stores(FolderSchemaIds())[0]
CARD = b"9265846829"


@pytest.fixture
def settings() -> Iterator[Settings]:
    """A broker whose changelog partition 0 has the card at the offsets 0, 2 and 4, and another card between them."""
    with mock_broker() as (made, producer):
        for offset in range(5):
            key = b"other" if offset % 2 else CARD
            producer.produce(made.name_of(DEFINITION.changelog), b"value %d" % offset, key, partition=0)
        assert 0 == producer.flush(10)
        yield made


@pytest.mark.parametrize(
    ("span", "offsets"),
    [(range(5), [0, 2, 4]), (range(2, 4), [2]), (range(1, 5), []), (range(7, 3), [])],
    ids=["all", "a part", "the first record is of another key", "no offsets"],
)
def test_the_records_of_a_key_in_their_order(settings: Settings, span: range, offsets: list[int]) -> None:
    found = history.read_key(settings, DEFINITION, 0, CARD, span)

    assert [(offset, CARD, b"value %d" % offset) for offset in offsets] == [
        (each.offset, each.key, each.value) for each in found
    ]


def test_a_read_that_takes_too_long_finds_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two records before the deadline may not be all, so nobody may take them for the whole history."""
    four_seconds_later = count(0, 4)
    monkeypatch.setattr(history, "time", SimpleNamespace(monotonic=lambda: float(next(four_seconds_later))))

    assert [] == history.read_key(settings, DEFINITION, 0, CARD, range(5))
