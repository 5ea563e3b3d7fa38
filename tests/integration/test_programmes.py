"""Programme versions on a real broker: publication, concurrent publishers and refusals."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from typer.testing import CliRunner, Result

from schemas import topics
from services.cli import app
from services.clock import now
from services.messaging.avro import encoder
from services.messaging.clients import consumer
from services.programmes.file import ProgrammeError, parse_programme
from services.programmes.topic import (
    UncertainPublicationError,
    default_programme,
    load_programmes,
    publish_programme,
    published_versions,
)
from services.settings import Settings
from tests.support.builders import IDS
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, unique_records_of
from tests.support.kafka import publish as publish_records

HOUR = 3_600_000
FACTOR = Decimal("0.03")


def file(factor: str) -> str:
    return f"loyalty-factor: {factor}\n"


def record(number: int, text: str, effective_time: int = 0) -> bytes:
    fields = {"Version": number, "EffectiveTime": effective_time, "PublishedTime": 0, "Programme": text}
    return encoder(topics.LOYALTY_PROGRAMMES, IDS)(fields)


@pytest.fixture
def own(settings: Settings, topics_created: list[str]) -> Settings:  # noqa: ARG001  # creates the topics first
    return settings.model_copy(update={"loyalty_factor": FACTOR})


@pytest.fixture
def in_use(own: Settings) -> Settings:
    """A deployment that has processed an invoice."""
    publish_records(own, topics.POS_INVOICES, [(b"S1", b"{}")])
    return own


def test_an_empty_topic_is_version_0(own: Settings) -> None:
    """Without a published version the loyalty factor of the settings applies at any time."""
    assert (0, FACTOR) == (load_programmes(own).at(0).version, load_programmes(own).at(now()).loyalty_factor)


def test_versions_apply_from_their_effective_time(in_use: Settings) -> None:
    """Each version applies to events from its effective time. Version 0 applies to earlier events."""
    first, second = now() + HOUR, now() + 2 * HOUR
    publish_programme(file("0.05"), in_use, first)
    publish_programme(file("0.07"), in_use, second)

    found = load_programmes(in_use)

    assert [FACTOR, Decimal("0.05"), Decimal("0.05"), Decimal("0.07")] == [
        found.at(when).loyalty_factor for when in (first - 1, first, second - 1, second)
    ]
    assert [0, 1, 2] == [programme.version for programme in found.versions]
    assert {"1", "2"} == set(unique_records_of(in_use, topics.LOYALTY_PROGRAMMES))


def test_a_version_needs_notice(in_use: Settings) -> None:
    """An effective time that not every process would learn in time is refused, and nothing is published."""
    for soon in (now() - HOUR, now() + 50_000):
        with pytest.raises(ProgrammeError, match=r"too soon: .* 60 s before .* earliest time is now \d{4}-\d\d-\d\dT"):
            publish_programme(file("0.05"), in_use, soon)

    assert [] == published_versions(in_use)
    assert 1 == publish_programme(file("0.05"), in_use, now() + 80_000).number


def test_without_a_time_a_version_takes_effect_after_the_notice(own: Settings) -> None:
    """It takes effect one notice after its publication, or shortly later. A pipeline without events needs the notice
    too, because the next event can come before it knows the version.
    """
    version = publish_programme(file("0.05"), own)

    assert 60_000 <= version.effective_time - version.published_time <= 70_000


def test_no_notice_is_needed_before_the_first_invoice(own: Settings) -> None:
    """A time can be now, or in the past."""
    assert 1 == publish_programme(file("0.05"), own, 1_000).number
    assert 2 == publish_programme(file("0.06"), own, now()).number
    publish_records(own, topics.LOYALTY_COMMANDS, [(b"1", b"x")])
    with pytest.raises(ProgrammeError, match="too soon"):
        publish_programme(file("0.07"), own, now() + 5_000)


def test_versions_take_effect_in_order(in_use: Settings) -> None:
    """A version before the effective time of the latest one is refused. One with the same time replaces it."""
    when = now() + HOUR
    publish_programme(file("0.05"), in_use, when)

    with pytest.raises(ProgrammeError, match=r"version 1 takes effect at .* cannot take effect before"):
        publish_programme(file("0.06"), in_use, when - 1)
    publish_programme(file("0.07"), in_use, when)

    assert Decimal("0.07") == load_programmes(in_use).at(when).loyalty_factor


def test_a_bad_file_is_not_published(own: Settings) -> None:
    """The error has the problems of the parser, and the topic does not change."""
    with pytest.raises(ProgrammeError, match="line 1: loyalty-factor: 7000 is not between") as caught:
        publish_programme(file("7000"), own)

    assert 1 == len(caught.value.problems)
    assert [] == published_versions(own)


def test_concurrent_publishers_never_share_a_version(in_use: Settings) -> None:
    """Each of four concurrent publishers gets its own version, or the error that another publisher was faster."""
    together = Barrier(4)

    def one(number: int) -> str:
        together.wait()
        try:
            return str(publish_programme(file(f"0.{number}"), in_use, now() + HOUR).number)
        except (ProgrammeError, UncertainPublicationError) as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(one, range(1, 5)))

    won = sorted(outcome for outcome in outcomes if outcome.isdecimal())
    lost = [outcome for outcome in outcomes if not outcome.isdecimal()]
    assert [str(number) for number in range(1, len(won) + 1)] == won
    assert won
    assert all("another publisher" in outcome or "cannot take effect before" in outcome for outcome in lost), lost
    texts = {version.text for version in published_versions(in_use)}
    assert texts == {file(f"0.{number}") for number, outcome in enumerate(outcomes, start=1) if outcome.isdecimal()}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (b"1", b"hello", "offset 0: not in the Confluent framing"),
        (b"1", None, "offset 0: not in the Confluent framing"),
        (b"1", record(1, "loyalty-factor: much"), "offset 0: line 1: loyalty-factor: 'much' is not a decimal"),
        (b"2", record(1, "loyalty-factor: 0.5"), "offset 0: its key is b'2', its version 1"),
        (b"2", record(2, "loyalty-factor: 0.5"), "version 1 is missing among 1 versions"),
    ],
)
def test_a_record_that_cannot_be_read_is_an_error(own: Settings, key: bytes, value: bytes | None, says: str) -> None:
    """An unreadable version is an error, because points would follow the wrong rules without it."""
    publish_records(own, topics.LOYALTY_PROGRAMMES, [(key, value)])

    with pytest.raises(ProgrammeError, match=r"loyalty-programmes[:,] ") as caught:
        load_programmes(own)
    assert says in str(caught.value)


@pytest.fixture
def loyalty(own: Settings) -> Iterator["Command"]:
    return Command(own)


class Command:
    """`loyalty programme …` with the settings of a test."""

    def __init__(self, settings: Settings) -> None:
        self.environment = {
            "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
            "LOYALTY_TOPIC_PREFIX": settings.topic_prefix,
            "LOYALTY_LOYALTY_FACTOR": str(settings.loyalty_factor),
        }

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["programme", *arguments], env=self.environment)


def test_the_command_publishes_a_version_and_shows_all_versions(
    in_use: Settings, loyalty: Command, tmp_path: Path
) -> None:
    """The shown file has its comments. Version 0 is shown as an equivalent file."""
    text = "# of the spring\nloyalty-factor: 0.05\n"
    (tmp_path / "spring.yaml").write_text(text, encoding="utf-8")
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    published = loyalty("publish", str(tmp_path / "spring.yaml"), "--effective-from", when.isoformat())

    assert (0, f"version 1 takes effect at {when:%Y-%m-%dT%H:%M:%SZ}\n") == (published.exit_code, published.stdout)
    assert text == loyalty("show", "--version", "1").stdout
    assert parse_programme(loyalty("show", "--version", "0").stdout) == default_programme(in_use)
    shown = json.loads(loyalty("show", "--json").stdout)["versions"]
    assert [(0, None), (1, text)] == [
        (each["version"], each["programme"] if each["version"] else None) for each in shown
    ]
    assert f"{when:%Y-%m-%dT%H:%M:%SZ}" == shown[1]["effective_time"]
    table = loyalty("show").stdout
    assert "in force" in table
    assert "planned" in table
    assert "replaced" not in table
    missing = loyalty("show", "--version", "2")
    assert (1, "error: there is no version 2: the latest version is 1\n") == (missing.exit_code, missing.stderr)
    loyalty("publish", str(tmp_path / "spring.yaml"), "--effective-from", when.isoformat())
    table = loyalty("show").stdout
    assert (1, 1) == (table.count("replaced"), table.count("planned"))


def test_the_command_prints_why_it_did_not_publish(in_use: Settings, loyalty: Command, tmp_path: Path) -> None:
    """An effective time that is too soon gives one line and exit status 1."""
    (tmp_path / "a.yaml").write_text(file("0.05"), encoding="utf-8")

    result = loyalty("publish", str(tmp_path / "a.yaml"), "--effective-from", "2026-01-01T00:00:00Z")

    assert 1 == result.exit_code
    assert 1 == result.stderr.count("\n")
    assert "2026-01-01T00:00:00Z is too soon" in result.stderr
    assert "The earliest time is now 20" in result.stderr
    assert [] == published_versions(in_use)


def test_a_publisher_that_dies_before_its_commit_publishes_nothing(in_use: Settings) -> None:
    """The next publisher gets the number of the version."""
    killed = """
import os, sys
from services.programmes import topic
from services.settings import Settings
def die(*_): os._exit(9)
topic._refuse_too_soon = die
topic.publish_programme("loyalty-factor: 0.9", Settings(kafka_bootstrap_servers=sys.argv[1], topic_prefix=sys.argv[2]))
"""
    arguments = [in_use.kafka_bootstrap_servers, in_use.topic_prefix]
    assert 9 == subprocess.run([sys.executable, "-c", killed, *arguments], check=False).returncode

    assert 1 == publish_programme(file("0.05"), in_use).number
    assert [file("0.05")] == [version.text for version in published_versions(in_use)]


def test_readers_reach_the_end_after_a_transaction(in_use: Settings) -> None:
    """A commit takes an offset without a record. At the end a reader receives the next offset."""
    publish_programme(file("0.05"), in_use)
    client = consumer(in_use, "test")
    try:
        place = TopicPartition(in_use.name_of(topics.LOYALTY_PROGRAMMES), 0, OFFSET_BEGINNING)
        client.assign([place])
        first, last = client.poll(KAFKA_TIMEOUT_SECONDS), client.poll(KAFKA_TIMEOUT_SECONDS)
        assert first is not None
        assert last is not None
        assert (0, None, KafkaError._PARTITION_EOF) == (first.offset(), first.error(), last.error().code())
        assert 2 == last.offset() == client.get_watermark_offsets(place, timeout=KAFKA_TIMEOUT_SECONDS)[1]
    finally:
        client.close()
