"""The watch misses no new version of the programme, also after an outage of Kafka or a suspended process."""

from collections.abc import Iterator
from datetime import timedelta
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from structlog.testing import capture_logs

from pipelines.driver import programme_watch
from pipelines.driver.programme_watch import ProgrammeUnknownError, ProgrammeWatch
from pipelines.queries.query_table import QUERIES
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings


class Broker:
    """A broker with one topic, and the time.

    Attributes:
        is_away: whether requests fail.
        versions: the published versions of the programme.
    """

    def __init__(self) -> None:
        self.end = 5
        self.versions = 1
        self.is_away = False
        self.now = 1_000.0

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return 0, self.end

    def close(self) -> None: ...


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker()
    monkeypatch.setattr(programme_watch, "consumer", lambda *_: broker)
    monkeypatch.setattr(programme_watch, "find_topic", lambda *_: None)
    monkeypatch.setattr(programme_watch, "published_versions", lambda _: [None] * broker.versions)
    monkeypatch.setattr(programme_watch, "boot_seconds", lambda: broker.now)
    monkeypatch.setattr("services.messaging.clients.has_lost_all_brokers", lambda *_: False)
    return broker


def test_a_new_version_is_reported_once(broker: Broker) -> None:
    """This includes the first version that is published after the watch began."""
    watch = ProgrammeWatch(Settings())
    assert not watch.has_changed()
    broker.end += 2
    broker.versions += 1
    assert watch.has_changed()
    assert not watch.has_changed()


def test_a_registry_that_does_not_answer_delays_a_version_until_the_notice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that was published meanwhile takes effect only after the notice, so the pipeline can wait so long."""
    watch = ProgrammeWatch(Settings())
    broker.end += 2

    def fail(_: Settings) -> list[None]:
        raise SchemaRegistryUnavailableError("no registry")

    monkeypatch.setattr(programme_watch, "published_versions", fail)
    broker.now += 59
    assert not watch.has_changed()
    monkeypatch.setattr(programme_watch, "published_versions", lambda _: [None] * 2)
    assert watch.has_changed()
    broker.end += 2
    monkeypatch.setattr(programme_watch, "published_versions", fail)
    broker.now += 61
    with pytest.raises(ProgrammeUnknownError, match="no registry"):
        watch.has_changed()


def test_a_consumer_that_has_lost_all_brokers_is_replaced(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch then finds the next version, and does not end the process."""
    lost = Broker()
    lost.is_away = True
    watch = ProgrammeWatch(Settings())
    watch._consumer = cast(Consumer, lost)
    monkeypatch.setattr("services.messaging.clients.has_lost_all_brokers", lambda client, _: client is lost)
    broker.end += 2
    broker.versions += 1

    assert not watch.has_changed()
    assert watch.has_changed()


def test_a_refused_publication_changes_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its aborted transaction moves the end of the topic, and no query starts again. The topic is read once."""
    watch = ProgrammeWatch(Settings())
    broker.end += 2
    assert not watch.has_changed()
    monkeypatch.setattr(programme_watch, "published_versions", pytest.fail)
    assert not watch.has_changed()


@pytest.mark.parametrize(("notice", "tolerated"), [(60, 60), (1, 10)])
def test_errors_are_tolerated_for_the_notice_only(broker: Broker, notice: int, tolerated: int) -> None:
    """The watch must not swallow errors for longer: a version could take effect without anyone knowing.

    But a broker that starts again needs ten seconds, also with a shorter notice.
    """
    watch = ProgrammeWatch(Settings(programme_notice=timedelta(seconds=notice)))
    broker.is_away = True
    broker.now += tolerated - 1
    assert not watch.has_changed()
    broker.now += 2
    with pytest.raises(ProgrammeUnknownError, match=f"for {tolerated + 1} s.*Start the pipeline again"):
        watch.has_changed()


def test_an_outage_begins_with_the_last_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has run for days tolerates the restart of a broker. It may also fail during a read."""
    watch = ProgrammeWatch(Settings(programme_notice=timedelta(seconds=60)))
    for broker.is_away in (False, False, True):
        broker.now += 50
        assert not watch.has_changed()
    broker.is_away = False
    assert not watch.has_changed()
    broker.end += 1

    def fail(_: Settings) -> None:
        raise PublishError("no broker")

    monkeypatch.setattr(programme_watch, "published_versions", fail)
    assert not watch.has_changed()


def test_a_lost_version_is_a_change(broker: Broker) -> None:
    """The queries must not continue with it. They are refused when they start again."""
    watch = ProgrammeWatch(Settings())
    broker.end, broker.versions = broker.end - 2, broker.versions - 1
    assert watch.has_changed()


@pytest.mark.parametrize(("seconds", "new", "expected"), [(59, 1, 0), (61, 1, 1), (61, 0, 0)])
def test_a_version_that_took_effect_unseen_is_logged(broker: Broker, seconds: int, new: int, expected: int) -> None:
    """A process that was suspended for longer than the notice may have decided by the former version."""
    watch = ProgrammeWatch(Settings(programme_notice=timedelta(seconds=60)))
    broker.now += seconds
    broker.end += 1
    broker.versions += new
    with capture_logs() as logs:
        assert bool(new) == watch.has_changed()
    assert expected == len([log for log in logs if log["log_level"] == "error" and "loyalty audit" in log["event"]])


@pytest.mark.parametrize("reads", [1, 2])
def test_a_slow_read_of_the_versions_counts_as_a_pause(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """The queries run while the watch reads, and decide by the former version. A version that is published during a
    read comes with the next one.
    """
    watch = ProgrammeWatch(Settings(programme_notice=timedelta(seconds=60)))

    def read(_: Settings) -> list[None]:
        broker.now += 61 / reads
        return [None] * broker.versions

    monkeypatch.setattr(programme_watch, "published_versions", read)
    with capture_logs() as logs:
        for broker.versions in range(3 - reads, 3):
            broker.end += 1
            is_new = watch.has_changed()
    assert is_new
    assert [("error", 61)] == [(log["log_level"], log["seconds"]) for log in logs]


def test_a_version_that_is_published_while_the_watch_begins_is_new(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queries load the programme afterwards, and may have read it before."""
    first = [None] * broker.versions

    def read(_: Settings) -> list[None]:
        broker.end += 2
        broker.versions += 1
        return first

    with monkeypatch.context() as patch:
        patch.setattr(programme_watch, "published_versions", read)
        watch = ProgrammeWatch(Settings())
    assert watch.has_changed()


def test_queries_that_select_by_customer_type_start_again() -> None:
    """The archive too: with the types of an old version it would skip customers of a new type."""
    assert {"loyalty", "archive"} == {name for name, query in QUERIES.items() if query.reads_programme}


def test_an_outage_is_logged_once_at_its_begin_and_at_its_end(broker: Broker) -> None:
    """Kafka's own clients in Java would log each attempt to connect. pipelines/runtime/log4j2.properties drops that."""
    watch = ProgrammeWatch(Settings())
    with capture_logs() as lines:
        for is_away in (False, True, True, False, False, True):
            broker.is_away = is_away
            watch.has_changed()
    assert ["Kafka does not answer", "Kafka answers again", "Kafka does not answer"] == [
        each["event"] for each in lines
    ]
