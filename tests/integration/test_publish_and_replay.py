"""The CLI with a real broker: simulate, replay and dead letters."""

import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import randbytes
from typing import Any

import pytest
from confluent_kafka import Message, murmur2
from typer.testing import CliRunner, Result

from schemas import topics
from services.cli import app
from services.messaging import clients
from services.messaging.publishing import PublishError, connected_producer, publish
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.support.kafka import read_all, set_aside

pytestmark = pytest.mark.usefixtures("topics_created")

Loyalty = Callable[..., Result]


@pytest.fixture
def loyalty(settings: Settings) -> Loyalty:
    """Run the command with the topics of this test."""
    environment = {
        "LOYALTY_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "LOYALTY_TOPIC_PREFIX": settings.topic_prefix,
    }

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, arguments, env=environment, input=stdin)

    return run


def json_of(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def contents(messages: list[Message]) -> Counter[tuple[bytes | None, bytes | None]]:
    return Counter((message.key(), message.value()) for message in messages)


def test_simulated_invoices_arrive_in_the_partitions_that_java_uses(settings: Settings, loyalty: Loyalty) -> None:
    """All messages of the seed arrive in order, each in the partition of its key's murmur2 hash."""
    figures = json_of(loyalty("simulate", "--count", "1000", "--seed", "5", "--broken", "0.1", "--json"))
    told = list(Simulation(Options(count=1000, seed=5, broken=0.1)).messages())

    assert 1000 == figures["published"] == figures["invoices"] + figures["repeats"] + figures["broken"]
    arrived = read_all(settings, topics.POS_INVOICES)
    assert contents(arrived) == Counter((message.key, message.value) for message in told)
    for message in arrived:
        if message.key() is not None:
            assert message.partition() == murmur2(message.key(), settings.partitions)
    first_key = told[0].key
    in_order = [message.value for message in told if message.key == first_key]
    assert in_order == [message.value() for message in arrived if message.key() == first_key]


def test_replay_publishes_every_line(settings: Settings, loyalty: Loyalty, tmp_path: Path) -> None:
    """It publishes one message for each line of files and stdin, and reports the formats."""
    file = tmp_path / "day.jsonl"
    file.write_bytes(b'{"InvoiceNumber": "1", "StoreID": "STR1"}\n{"StoreID": "STR1", "TotalAmount": "x"}\n')

    figures = json_of(loyalty("replay", str(file), "-", "--json", stdin=b'{"torn": \n\n'))

    assert {"published": 3, "avro": 1, "json": 0, "raw": 2}.items() <= figures.items()
    arrived = read_all(settings, topics.POS_INVOICES)
    raw = [b'{"StoreID": "STR1", "TotalAmount": "x"}', b'{"torn": ']
    assert raw == sorted(message.value() or b"" for message in arrived if message.key() is None)
    assert 3 == len(arrived)


def test_a_missing_topic_is_reported_before_anything_is_sent(settings: Settings) -> None:
    """The error names the command that creates the topic."""
    with pytest.raises(PublishError, match="loyalty topics create"):
        connected_producer(settings, "test", [f"{settings.topic_prefix}nothing"])


def test_a_record_that_the_broker_refuses_is_an_error(settings: Settings) -> None:
    """A value above the size limit gives an error that names the topic. The limit counts the compressed size."""
    topic = settings.name_of(topics.POS_INVOICES)
    publish([(None, bytes(2_000_000))], connected_producer(settings, "test", [topic]), topic)

    with pytest.raises(PublishError, match=topic):
        publish([(None, randbytes(2_000_000))], connected_producer(settings, "test", [topic]), topic)


def test_the_rate_is_not_exceeded(settings: Settings) -> None:
    """40 messages at 100 a second take at least 0.39 s, and all arrive."""
    topic = settings.name_of(topics.POS_INVOICES)
    done: list[int] = []
    producer = connected_producer(settings, "test", [topic])

    started = time.monotonic()
    records = ((message.key, message.value) for message in Simulation(Options(count=40)).messages())
    number = publish(records, producer, topic, 100, done.append)

    assert time.monotonic() - started >= 0.39
    assert (40, 40) == (number, done[-1])


DEAD = [
    (b"STR1", b"\x15 no avro", "undecodable: not in the Confluent framing", "3"),
    (None, b'{"InvoiceNumber":"1"}', "StoreID is missing", "4"),
    (b"STR2", None, "undecodable: no value", "5"),
]


@pytest.fixture
def dead(settings: Settings, topics_created: list[str]) -> None:
    """Three dead letters, as the pipeline writes them."""
    assert settings.name_of(topics.DEAD_LETTERS) in topics_created
    for letter in DEAD:
        set_aside(settings, *letter)


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_listed_with_their_origin(settings: Settings, loyalty: Loyalty) -> None:
    """The list has a count for each reason, and each dead letter with its unchanged key and value."""
    shown = json_of(loyalty("dead-letters", "list", "--json"))

    assert (3, {reason: 1 for _, _, reason, _ in DEAD}) == (shown["total"], shown["reasons"])
    expected = {
        (key and key.decode(), value, reason, settings.name_of(topics.POS_INVOICES), f"1:{offset}")
        for key, value, reason, offset in DEAD
    }
    assert expected == {
        (
            letter["key"],
            None if letter["value_base64"] is None else base64.b64decode(letter["value_base64"]),
            letter["reason"],
            letter["topic"],
            letter["origin"],
        )
        for letter in shown["dead_letters"]
    }
    assert 1 == len(json_of(loyalty("dead-letters", "list", "--limit", "1", "--json"))["dead_letters"])
    assert "StoreID is missing" in loyalty("dead-letters", "list").stdout


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_published_again_unchanged(settings: Settings, loyalty: Loyalty) -> None:
    """--reason, --offset and --all select dead letters. --dry-run publishes nothing."""
    dry = json_of(loyalty("dead-letters", "replay", "--all", "--dry-run", "--json"))
    assert (3, 0) == (dry["selected"], dry["published"])
    assert [] == read_all(settings, topics.POS_INVOICES)

    assert 2 == json_of(loyalty("dead-letters", "replay", "--reason", "UNDECODABLE", "--json"))["published"]
    undecodable = Counter((key, value) for key, value, reason, _ in DEAD if "undecodable" in reason)
    assert undecodable == contents(read_all(settings, topics.POS_INVOICES))

    letters = json_of(loyalty("dead-letters", "list", "--reason", "storeid", "--json"))["dead_letters"]
    assert 1 == json_of(loyalty("dead-letters", "replay", "--offset", letters[0]["place"], "--json"))["published"]
    assert Counter((key, value) for key, value, _, _ in DEAD) == contents(read_all(settings, topics.POS_INVOICES))

    assert 3 == json_of(loyalty("dead-letters", "replay", "--all", "--json"))["published"]
    assert 6 == len(read_all(settings, topics.POS_INVOICES))


def test_a_dead_letter_that_its_till_compressed_well_is_replayed(settings: Settings, loyalty: Loyalty) -> None:
    """Only zstd finds the repetitions of a large block. The topic limits the size after compression."""
    value = b"{" + randbytes(300 * 2**10) * 10
    till = clients.producer(settings, "test", **{"compression.type": "zstd"})
    till.produce(settings.name_of(topics.POS_INVOICES), value)
    assert 0 == till.flush(60)
    set_aside(settings, None, value, "not JSON", "3")

    assert 1 == json_of(loyalty("dead-letters", "replay", "--all", "--json"))["published"]
    assert [value, value] == [message.value() for message in read_all(settings, topics.POS_INVOICES)]


@pytest.mark.usefixtures("dead")
def test_a_dead_letter_that_was_written_twice_is_replayed_once(settings: Settings, loyalty: Loyalty) -> None:
    """Two dead letters with one origin are listed and published once, even if both offsets are given."""
    set_aside(settings, *DEAD[0])

    shown = json_of(loyalty("dead-letters", "list", "--json"))
    assert (3, 3) == (shown["total"], len(shown["dead_letters"]))
    assert 3 == json_of(loyalty("dead-letters", "replay", "--all", "--json"))["published"]
    twins = [message for message in read_all(settings, topics.DEAD_LETTERS) if message.key() == DEAD[0][0]]
    offsets = [argument for twin in twins for argument in ("--offset", f"{twin.partition()}:{twin.offset()}")]
    assert 4 == len(offsets)
    assert 1 == json_of(loyalty("dead-letters", "replay", *offsets, "--json"))["published"]
    assert 1 == json_of(loyalty("dead-letters", "replay", *offsets[2:], "--json"))["published"]


@pytest.mark.usefixtures("dead")
def test_an_offset_without_a_dead_letter_stops_the_replay(settings: Settings, loyalty: Loyalty) -> None:
    """The replay then publishes nothing."""
    there = json_of(loyalty("dead-letters", "list", "--json"))["dead_letters"][0]["place"]

    result = loyalty("dead-letters", "replay", "--offset", there, "--offset", "0:999")

    assert 1 == result.exit_code
    assert "there is no dead letter at 0:999" in result.stderr
    assert [] == read_all(settings, topics.POS_INVOICES)
