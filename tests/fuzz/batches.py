"""The target for the batch reader: Avro values of pos-invoices and hadoop."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from pipelines.columns.batch_reader import BatchReader
from schemas import topics
from services.messaging.avro import body_encoder, decoder
from tests.fuzz.avro import framed
from tests.fuzz.target import DefectError, Feed, FuzzTarget, Outcome
from tests.support.builders import IDS
from tests.support.mutations import endless_damaged_invoices


class Framed(NamedTuple):
    """A framed Avro value, and the name of its record."""

    name: str
    value: bytes


def framed_values(rng: Random) -> Iterator[Framed]:
    """Values of pos-invoices and hadoop in Avro."""
    invoices = endless_damaged_invoices(rng, rng.randrange(2**31))
    while True:
        name = rng.choice(("PosInvoice", "HadoopRecord"))
        yield Framed(name, framed(rng, name, {}))
        if (value := next(invoices)).startswith(b"\0"):
            yield Framed("PosInvoice", value)


@contextmanager
def prepare_framed_values() -> Iterator[Feed]:
    """The batch reader must decode a value as fastavro does, or leave the value to fastavro."""
    topic_of = {topic.value: topic for topic in (topics.POS_INVOICES, topics.HADOOP)}
    readers = {name: BatchReader(name, IDS.known(topic), fewest=1) for name, topic in topic_of.items()}
    decoders = {name: decoder(topic, IDS) for name, topic in topic_of.items()}
    encoders = {name: body_encoder(name) for name in topic_of}

    def feed(given: Framed) -> Outcome:
        name, value = given
        (record,) = readers[name].read([value])
        if record is None:
            return Outcome.SET_ASIDE
        # A comparison by == would find a difference between NaN and NaN.
        if repr(record) != repr(expected := decoders[name](value)):
            raise DefectError(f"read as {record}, and by fastavro as {expected}")
        if not value.endswith(encoders[name](record)):
            raise DefectError("fastavro writes other bytes")
        return Outcome.ACCEPTED

    yield feed


TARGETS = (FuzzTarget("kafka-batches", framed_values, prepare_framed_values),)
