"""The auditor: works out from the input topic alone what must be there, and looks whether it is.

It shares no memory with the load. What came in is what stands on pos-invoices and loyalty-commands; the rules are those
of the demo's oracle and of ``accounts``, written a second time; outputs are read as their readers read them, repeats by
id left out and counted.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from infra.demo.comparison import Mismatch, Nature, Outputs, mismatches
from infra.demo.oracle import Expected, Record, Sent, expect
from infra.demo.probes import BalanceReader
from infra.demo.run import parquet_rows
from infra.demo.topic_reader import OUTPUTS, TopicReader
from schemas import topics
from schemas.topics import Topic
from services.messaging.avro import UndecodableError, decoder
from services.messaging.schema_ids import UnknownSchemaIdError, schema_ids
from services.settings import Settings
from tests.faults import accounts
from tests.faults.accounts import Came, Given
from tests.faults.clerks import Answers
from tests.faults.load import Readings
from tests.support.kafka import read_all

_SHOWN = 3
_DECIDED = 2
"""The sequence of a record of loyalty-decisions that decides."""


@dataclass
class Verdict:
    """What an audit found.

    Attributes:
        invoices: records on pos-invoices.
        commands: ids on loyalty-commands.
        again: output records that came once more under their id, which readers ignore.
    """

    invoices: int
    commands: int
    again: int
    mismatches: list[Mismatch] = field(default_factory=list)

    def count(self, nature: Nature) -> int:
        return sum(mismatch.nature is nature for mismatch in self.mismatches)

    def __str__(self) -> str:
        lines = [f"{mismatch.nature}: {mismatch.text}" for mismatch in self.mismatches[:_SHOWN]]
        more = len(self.mismatches) - len(lines)
        return "; ".join([*lines, f"and {more} more"] if more else lines) or "all agrees"


def audit(settings: Settings, url: str, readings: Readings | None = None, answers: Answers | None = None) -> Verdict:
    """Compare all outputs, and what callers and clerks were told meanwhile, with what follows from the input.

    Args:
        url: of an API instance that has caught up, as everything else must have.
    """
    readings, answers = readings or Readings(), answers or Answers()
    sent = list(_inputs(settings))
    expected = expect(sent, settings.loyalty_factor)
    given = Given(expected.earned, _records(settings, topics.LOYALTY_COMMANDS))
    outputs, again = _outputs(settings, url, expected, given)
    decisions = [each for each in _records(settings, topics.LOYALTY_DECISIONS) if each["Sequence"] == _DECIDED]
    found = [
        *mismatches(*_without_accounts(expected, outputs)),
        *accounts.mismatches(given, Came(outputs.notifications, decisions, outputs.balances, answers.final)),
        *_told(readings, outputs),
        *(Mismatch(Nature.WRONG, text) for text in answers.wrong),
    ]
    return Verdict(len(sent), len({each["CommandID"] for each in given.commands}), again, found)


def _without_accounts(expected: Expected, outputs: Outputs) -> tuple[Expected, Outputs]:
    """What the demo's oracle, which knows of no commands, can judge here."""
    return replace(expected, earned=defaultdict(dict)), replace(outputs, notifications=(), balances={})


def _records(settings: Settings, topic: Topic) -> list[Record]:
    decode = decoder(topic, schema_ids(settings))
    return [decode(value) for message in read_all(settings, topic) if (value := message.value()) is not None]


def _inputs(settings: Settings) -> list[Sent]:
    decode = decoder(topics.POS_INVOICES, schema_ids(settings))

    def invoice(value: bytes) -> Record | None:
        try:
            read = json.loads(value) if value[:1] == b"{" else decode(value)
            # Half a surrogate pair is no text in UTF-8, though Python's parser takes it for one.
            json.dumps(read, ensure_ascii=False, default=str).encode()
        except (ValueError, RecursionError, UndecodableError, UnknownSchemaIdError):
            return None
        return read if isinstance(read, dict) else None

    messages = [(message.key(), message.value()) for message in read_all(settings, topics.POS_INVOICES)]
    return [Sent(key, value, None if value is None else invoice(value)) for key, value in messages]


def _outputs(settings: Settings, url: str, expected: Expected, given: Given) -> tuple[Outputs, int]:
    cards = expected.earned.keys() | {command["CustomerCardNo"] for command in given.commands}
    ids, reader, balances = schema_ids(settings), TopicReader(settings), BalanceReader(url, 8)
    try:
        ends = {topic: reader.ends(topic) for topic in OUTPUTS}
        while not reader.has_read(ends):
            reader.read(1.0)
        found = Outputs(
            shipment=reader.records(topics.SHIPMENT, ids),
            hadoop=reader.records(topics.HADOOP, ids),
            notifications=reader.records(topics.LOYALTY, ids),
            dead_letters=reader.dead_letters(),
            # A restarted process counts anew; that repeats were dropped is seen in every other output.
            repeats=expected.repeats,
            parquet=parquet_rows(Path(settings.export_dir)),
            balances=balances.balances(sorted(cards)),
            unknown=balances.statuses(sorted(expected.strangers - cards)),
            changed=reader.changed,
        )
    finally:
        reader.close()
        balances.close()
    written = sum(sum(positions.values()) for positions in ends.values())
    return found, written - sum(reader.count(topic) for topic in OUTPUTS)


def _told(readings: Readings, outputs: Outputs) -> list[Mismatch]:
    """What callers were told must be a total that stood behind one of the customer's entries, and never go back."""
    true: dict[tuple[str, int], Decimal] = {
        (entry["CustomerCardNo"], entry["Sequence"]): entry["TotalLoyaltyPoints"] for entry in outputs.notifications
    }
    lies = [
        f"{card} was told {total} at sequence {sequence}, where {true.get((card, sequence))} was true"
        for card, sequence, total in sorted(readings.totals)
        if true.get((card, sequence)) != total
    ]
    return [Mismatch(Nature.WRONG, text) for text in [*lies, *readings.backwards]]
