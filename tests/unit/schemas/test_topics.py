"""The topic configurations of the catalogue."""

import pytest

from pipelines.deduplication.stream import longest_memory
from schemas import topics
from schemas.topics import Topic
from services.messaging.headers import LARGEST_VALUE
from services.settings import Settings


@pytest.mark.parametrize(
    ("topic", "policy", "retention"),
    [
        (topics.POS_INVOICES, "delete", "604800000"),
        (topics.LOYALTY_BALANCES, "compact", None),
        (topics.STORE_SALES, "compact,delete", "604800000"),
        (topics.STORES, "compact", None),
    ],
)
def test_the_cleanup_of_a_topic_suits_its_use(topic: Topic, policy: str, retention: str | None) -> None:
    """Events have a retention, changelogs keep the latest record of each key, and windows do both."""
    assert (policy, retention) == (topic.config["cleanup.policy"], topic.config.get("retention.ms"))


def test_compacted_topics_with_cards_forget_an_erased_customer_within_a_week() -> None:
    """Otherwise Kafka waits until half of the log is new, which can be months."""
    lags = {topic.name: topic.config.get("max.compaction.lag.ms") for topic in topics.ALL}
    week = "604800000"
    assert {"loyalty-balances": week, "loyalty-decisions": week} == {name: lag for name, lag in lags.items() if lag}


def test_a_decision_is_kept_for_longer_than_the_memory_of_its_command() -> None:
    """Otherwise the loyalty query would drop a repeated command whose decision no instance can find."""
    retention = topics.LOYALTY_DECISIONS.retention
    assert retention is not None
    assert retention > longest_memory(Settings())


def test_a_forwarded_invoice_fits_into_its_command() -> None:
    """A till may compress better than the pipeline does. A larger value becomes a dead letter without it."""
    for topic in (topics.LOYALTY_COMMANDS, topics.DEAD_LETTERS):
        assert topic.largest_batch > LARGEST_VALUE
