"""The topic configurations of the catalogue."""

import pytest

from schemas import topics
from schemas.topics import Topic


@pytest.mark.parametrize(
    ("topic", "policy", "retention"),
    [
        (topics.POS_INVOICES, "delete", "604800000"),
        (topics.LOYALTY_BALANCES, "compact", None),
        (topics.STORE_SALES, "compact,delete", "604800000"),
        (topics.STORES, "compact", None),
    ],
)
def test_cleanup_is_what_the_topic_is_for(topic: Topic, policy: str, retention: str | None) -> None:
    """Events have a retention, changelogs keep the latest record of each key, and windows do both."""
    assert (policy, retention) == (topic.config["cleanup.policy"], topic.config.get("retention.ms"))
