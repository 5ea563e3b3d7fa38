"""Versions of the programme, without Kafka. tests/integration/test_programmes.py has the other tests."""

import re

import pytest
from confluent_kafka import KafkaError, Producer

from schemas import topics
from services.clock import now
from services.domain.formats import LAST_TIME
from services.domain.programme import DAY, Programme
from services.messaging.publishing import PublishError
from services.programmes import topic
from services.programmes.file import ProgrammeError, parse_programme
from services.programmes.topic import UncertainPublicationError, Version, _next, publish_programme
from services.settings import Settings
from tests.support.mock_kafka import refuse_next, requests_to

FILE = "loyalty-factor: 0.02\n"
PRODUCE, END_TRANSACTION = 0, 26


@pytest.fixture
def broker_with_topics(mocked_broker: tuple[Settings, Producer]) -> tuple[Settings, Producer]:
    settings, broker = mocked_broker
    for each in (topics.POS_INVOICES, topics.LOYALTY_COMMANDS, topics.LOYALTY_PROGRAMMES):
        broker.list_topics(settings.name_of(each), timeout=10)  # creates it
    return mocked_broker


def test_a_published_version_keeps_a_time_zone_that_is_no_longer_accepted() -> None:
    """Nobody can withdraw it, and without it no process could decide."""
    file = FILE + "time-zone: Factory\n"

    version = Version.of({"Version": 1, "EffectiveTime": 0, "PublishedTime": 0, "Programme": file})

    assert "Factory" == version.rules.time_zone
    with pytest.raises(ProgrammeError, match="'Factory' is not a time zone of the package tzdata"):
        parse_programme(file)


def test_the_same_file_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline reads all versions again for each new one. Large files take seconds each."""
    parsed = []
    monkeypatch.setattr(topic, "parse_programme", lambda text, **_: parsed.append(text) or Programme())
    topic._parse_once.cache_clear()
    record = {"EffectiveTime": 0, "PublishedTime": 0, "Programme": FILE}

    assert [1, 2] == [Version.of({**record, "Version": number}).rules.version for number in (1, 2)]
    assert [FILE] == parsed
    topic._parse_once.cache_clear()


def test_no_version_takes_effect_before_1970() -> None:
    """The first version has no latest one that the error could name."""
    with pytest.raises(ProgrammeError, match=r"before 1970\. Nothing was published\. Publish with a later time"):
        _next(FILE, Programme(), [], effective_time=-1, notice=0)


@pytest.mark.parametrize(
    ("time", "text"),
    [(7_453_641_600_000, "2206-03-14T00:00:00Z"), (LAST_TIME + 18_000_000, "9999-12-31T23:59:59.999Z")],
)
def test_no_version_takes_effect_after_more_than_400_days(time: int, text: str) -> None:
    """A mistyped year would block all later versions. Times without a text have the last one that has a text."""
    with pytest.raises(ProgrammeError, match=f"^{re.escape(text)} is more than 400 days ahead.*Nothing was published"):
        _next(FILE, Programme(), [], effective_time=time, notice=0)


def test_a_version_can_be_planned_a_year_ahead() -> None:
    """Beyond 400 days, a time is most probably a typing error."""
    days = {number: now() + number * DAY for number in (399, 401)}

    assert days[399] == _next(FILE, Programme(), [], effective_time=days[399], notice=0).effective_time
    with pytest.raises(ProgrammeError, match="is more than 400 days ahead"):
        _next(FILE, Programme(), [], effective_time=days[401], notice=0)


def test_a_version_can_follow_one_that_takes_effect_too_late() -> None:
    """An older release can have published any time. The next version takes effect at that time, and not later."""
    far = LAST_TIME + 18_000_000
    before = [Version(1, far, 0, FILE, Programme())]

    assert [far, far] == [_next(FILE, Programme(), before, time, notice=0).effective_time for time in (None, far)]
    with pytest.raises(ProgrammeError, match=r"version 1 takes effect at 9999-12-31T23:59:59\.999Z, and the next"):
        _next(FILE, Programme(), before, far - 1, notice=0)
    with pytest.raises(ProgrammeError, match="more than 400 days ahead"):
        _next(FILE, Programme(), before, far + 1, notice=0)


def test_a_publication_that_is_not_delivered_ends_its_transaction(
    broker_with_topics: tuple[Settings, Producer],
) -> None:
    """Readers wait behind an open transaction until the broker ends it after a minute."""
    settings, broker = broker_with_topics
    refuse_next(broker, PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with requests_to(broker) as requests, pytest.raises(PublishError, match="nothing was published"):
        publish_programme(FILE, settings)

    assert [PRODUCE, END_TRANSACTION] == [each for each in requests if each in (PRODUCE, END_TRANSACTION)]


@pytest.mark.parametrize("lost", ["commit", "response", "read", "readable"])
def test_a_version_that_the_broker_may_have_is_uncertain(
    broker_with_topics: tuple[Settings, Producer], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The broker refuses the commit, its response is lost and another publisher comes, or no reader gets or understands
    the versions. So nobody may simply repeat it.
    """
    reads = 0

    def read_once(_: Settings) -> list[Version]:
        nonlocal reads
        reads += 1
        if lost == "read" and reads > 1:
            raise PublishError("no broker answers")
        if lost == "readable" and reads > 1:
            raise ProgrammeError("version 2 comes from a newer release")
        return []

    monkeypatch.setattr(topic, "published_versions", read_once)
    settings, broker = broker_with_topics
    if lost == "commit":
        refuse_next(broker, END_TRANSACTION, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if lost == "response":
        refuse_next(broker, END_TRANSACTION, KafkaError.INVALID_PRODUCER_EPOCH)
    with pytest.raises(UncertainPublicationError, match="`loyalty programme show` shows"):
        publish_programme(FILE, settings)
