"""The auditor: works out from the input topic alone what must be there, and looks whether it is.

It shares no memory with the load. What came in is what stands on pos-invoices; the rules are those of the demo's
oracle, written a second time; outputs are read as their readers read them, repeats by id left out and counted.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from infra.demo.comparison import Mismatch, Nature, Outputs, mismatches
from infra.demo.oracle import Expected, Record, Sent, expect
from infra.demo.probes import BalanceReader
from infra.demo.run import parquet_rows
from infra.demo.topic_reader import OUTPUTS, TopicReader
from schemas import topics
from services.messaging.schema_ids import UnknownSchemaIdError, schema_ids
from services.messaging.wire import UndecodableError, decoder
from services.settings import Settings
from tests.faults.load import Readings
from tests.kafka_topics import read_all

_SHOWN = 5


@dataclass
class Verdict:
    """What an audit found.

    Attributes:
        invoices: records on pos-invoices.
        again: output records that came once more under their id, which readers ignore.
    """

    invoices: int
    again: int
    mismatches: list[Mismatch] = field(default_factory=list)

    def count(self, nature: Nature) -> int:
        return sum(mismatch.nature is nature for mismatch in self.mismatches)

    def __str__(self) -> str:
        lines = [f"{mismatch.nature}: {mismatch.text}" for mismatch in self.mismatches[:_SHOWN]]
        more = len(self.mismatches) - len(lines)
        return "; ".join([*lines, f"and {more} more"] if more else lines) or "all agrees"


def audit(settings: Settings, url: str, readings: Readings | None = None) -> Verdict:
    """Compare all outputs, and what callers were told meanwhile, with what follows from the input.

    Args:
        url: of an API instance that has caught up, as everything else must have.
    """
    sent = list(_inputs(settings))
    expected = expect(sent, settings.loyalty_factor)
    outputs, again = _outputs(settings, url, expected)
    found = [*mismatches(expected, outputs), *_told(readings or Readings(), outputs)]
    return Verdict(len(sent), again, found)


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


def _outputs(settings: Settings, url: str, expected: Expected) -> tuple[Outputs, int]:
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
            balances=balances.balances(expected.earned),
            unknown=balances.statuses(sorted(expected.strangers)),
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


def natures(verdict: Verdict) -> Counter[Nature]:
    return Counter(mismatch.nature for mismatch in verdict.mismatches)
