"""Two customers, their commands, and runs of a query on a real broker."""

import time
from typing import ClassVar

from confluent_kafka import KafkaException

import schemas
from pipelines.queries.loyalty import LOYALTY_QUERY
from schemas import topics
from services.codecs.events import command_record
from services.messaging.administration import is_empty
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds
from tests.support.builders import IDS
from tests.support.kafka import publish
from tests.support.processes import run_to_the_end

CARDS = ("CARD7001A", "CARD7002B")
A, B = CARDS


def run(spark, settings, query=LOYALTY_QUERY):
    wait_for_leaders(settings)
    run_to_the_end(spark, settings, query)


def wait_for_leaders(settings, seconds=60):
    """Wait for leaders: a busy broker announces a new topic before its partitions have one."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            is_empty(topics.LOYALTY_BALANCES, settings)
        except KafkaException:
            assert time.monotonic() < deadline
        else:
            return


def send(settings, card, *commands):
    encode = encoder(topics.LOYALTY_COMMANDS, IDS)
    values = [encode(command_record(card, command)) for command in commands]
    publish(settings, topics.LOYALTY_COMMANDS, [(card.encode(), value) for value in values])


class LaterIds(FolderSchemaIds):
    """The ids after writers have registered a newer one for invoices and one for commands."""

    newest: ClassVar = {topics.POS_INVOICES: 4711, topics.LOYALTY_COMMANDS: 4712}

    def known(self, topic):
        later = {self.newest[topic]: schemas.schema_text(f"{topic.value}.avsc")} if topic in self.newest else {}
        return super().known(topic) | later
