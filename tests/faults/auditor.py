"""Compares all outputs with what follows from the input topics pos-invoices and loyalty-commands.

It does not rely on what the load has sent, but reads the topics. It uses the oracle of the demo and ``accounts``, which
share no code with the domain. It ignores duplicates by id, and counts them.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from decimal import Decimal

from infra.demo.comparison import Balance, LedgerEntry, Mismatch, Nature, Outputs, ledger_mismatches, mismatches
from infra.demo.invoice_oracle import Record, row
from infra.demo.oracle import Expected, Sent, expect
from infra.demo.probes import BalanceReader, LedgerReader, reached
from infra.demo.run import exported_rows
from infra.demo.topic_reader import OUTPUTS, TopicReader
from schemas import topics
from schemas.topics import Topic
from services.messaging.avro import decoder
from services.messaging.schema_ids import schema_ids
from services.settings import Settings
from tests.faults import accounts
from tests.faults.accounts import AuditInput, AuditOutput
from tests.faults.clerks import Answers
from tests.faults.histories import Histories, not_linearizable
from tests.faults.load import Readings
from tests.support.kafka import read_all

_READ = (*OUTPUTS, topics.STORE_SALES)
_SHOWN = 3
_MOST_READINGS = 5
_LEDGER_SECONDS = 60.0
_OF_INVOICES = ("forward", "forget")
_DECIDED = 2
"""The sequence number in loyalty-decisions of the record with the decision. The first record is the mark."""


@dataclass(frozen=True)
class Earlier:
    """What an earlier release wrote.

    Attributes:
        hadoop_fields: the fields of its hadoop records. Only these fields are compared.
        balances: the card and the sequence of each of its balances. They do not have the next expiry.
    """

    hadoop_fields: Collection[str]
    balances: Collection[tuple[str, int]]


@dataclass(frozen=True)
class Observations:
    """What callers and clerks saw while faults were injected.

    Attributes:
        histories: all operations of the stack since its start.
        operations_before: the number of operations in the histories before the load.
    """

    readings: Readings = field(default_factory=Readings)
    answers: Answers = field(default_factory=Answers)
    histories: Histories = field(default_factory=Histories)
    operations_before: int = 0


@dataclass
class Verdict:
    """The result of an audit.

    Attributes:
        invoices: number of records on pos-invoices.
        commands: number of command ids on loyalty-commands.
        again: number of duplicates by id in the outputs, which readers ignore.
        not_linearizable: number of customers whose history no order explains. Each one is also a mismatch.
    """

    invoices: int
    commands: int
    again: int
    not_linearizable: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    def count(self, nature: Nature) -> int:
        return sum(mismatch.nature is nature for mismatch in self.mismatches)

    def __str__(self) -> str:
        lines = [f"{mismatch.nature}: {mismatch.text}" for mismatch in self.mismatches[:_SHOWN]]
        more = len(self.mismatches) - len(lines)
        return "; ".join([*lines, f"and {more} more"] if more else lines) or "all agrees"


def audit(
    settings: Settings,
    url: str,
    observations: Observations | None = None,
    earlier: Earlier | None = None,
    ledger: LedgerReader | None = None,
) -> Verdict:
    """Compare all outputs, and all responses to callers and clerks, with what follows from the input.

    Args:
        url: an API instance. All instances and all other readers must have caught up.
        earlier: what an earlier release wrote. None: this version wrote all.
        ledger: None: the stack has no ledger.
    """
    seen = observations or Observations()
    sent = list(_inputs(settings))
    expected = expect(sent, settings.loyalty_factor)
    # Commands about invoices are left out, because the oracle of the demo computes what a forwarded return takes back.
    of_accounts = [each for each in _records(settings, topics.LOYALTY_COMMANDS) if each["Kind"] not in _OF_INVOICES]
    inputs = AuditInput(expected.earned, of_accounts)
    outputs, again = _outputs(settings, url, expected, inputs, ledger)
    if earlier is not None:
        expected, outputs = comparable(earlier, expected, outputs)
    decisions = [each for each in _records(settings, topics.LOYALTY_DECISIONS) if each["Sequence"] == _DECIDED]
    if inputs.commands:
        of_commands = AuditOutput(outputs.notifications, decisions, outputs.balances, seen.answers.final)
        found = [
            *mismatches(*_without_accounts(expected, outputs)),
            *accounts.mismatches(inputs, of_commands),
            *ledger_mismatches(outputs),
        ]
    else:
        found = mismatches(expected, outputs)
    found += [
        *_wrong_readings(seen.readings, outputs),
        *(Mismatch(Nature.WRONG, text) for text in seen.answers.wrong),
    ]
    unexplained = [*not_linearizable(seen.histories, outputs.notifications)]
    return Verdict(
        invoices=len(sent),
        commands=len({each["CommandID"] for each in inputs.commands}),
        again=again,
        not_linearizable=len(unexplained),
        mismatches=[*found, *unexplained],
    )


def comparable(earlier: Earlier, expected: Expected, outputs: Outputs) -> tuple[Expected, Outputs]:
    """Leave out what an earlier release did not write. Balances of this version must have their next expiry."""

    def part(record: Record) -> Record:
        return {name: value for name, value in record.items() if name in earlier.hadoop_fields}

    def completed(card: str, found: Balance | None) -> Balance | None:
        if found and found.next_expiry is None and (card, found.sequence) in earlier.balances:
            return found._replace(next_expiry=expected.next_expiry_of(card))
        return found

    hadoop = Counter(row(part(dict(each))) for each in expected.hadoop.elements())
    found = replace(
        outputs,
        hadoop=[*map(part, outputs.hadoop)],
        parquet=[*map(part, outputs.parquet)],
        balances={card: completed(card, found) for card, found in outputs.balances.items()},
    )
    return replace(expected, hadoop=hadoop), found


def _without_accounts(expected: Expected, outputs: Outputs) -> tuple[Expected, Outputs]:
    """Remove the accounts: the oracle of the demo knows no commands. ``accounts`` knows commands, but no returns."""
    return replace(expected, earned=defaultdict(dict)), replace(outputs, notifications=(), balances={}, ledger=None)


def _records(settings: Settings, topic: Topic) -> list[Record]:
    decode = decoder(topic, schema_ids(settings))
    return [decode(value) for message in read_all(settings, topic) if (value := message.value()) is not None]


def _inputs(settings: Settings) -> list[Sent]:
    decode = decoder(topics.POS_INVOICES, schema_ids(settings))

    def invoice(value: bytes) -> Record | None:
        try:
            read = json.loads(value) if value[:1] == b"{" else decode(value)
            # Python's parser accepts half of a surrogate pair, which is not valid in UTF-8.
            json.dumps(read, ensure_ascii=False, default=str).encode()
        except (ValueError, RecursionError):
            return None
        return read if isinstance(read, dict) else None

    messages = [(message.key(), message.value()) for message in read_all(settings, topics.POS_INVOICES)]
    return [Sent(key, value, None if value is None else invoice(value)) for key, value in messages]


def _outputs(
    settings: Settings, url: str, expected: Expected, inputs: AuditInput, ledger: LedgerReader | None
) -> tuple[Outputs, int]:
    """The outputs, and the number of their duplicates by id."""
    cards = expected.earned.keys() | {command["CustomerCardNo"] for command in inputs.commands}
    ids, reader, balances = schema_ids(settings), TopicReader(settings, _READ), BalanceReader(url, 8, None)
    try:
        ends: dict[Topic, dict[int, int]] = {}
        served: dict[str, Balance | None] = {}
        of_ledger: list[LedgerEntry] | None = None
        # A reservation can lapse after the topics and before the balances or the ledger are read. So read all until
        # nothing changes.
        for _ in range(_MOST_READINGS):
            before, ends = ends, {topic: reader.ends(topic) for topic in _READ}
            if before == ends:
                break
            while not reader.has_read(ends):
                reader.read(1.0)
            served = balances.balances(sorted(cards))
            of_ledger = _ledger_entries(ledger, ends[topics.LOYALTY]) if ledger else None
        found = Outputs(
            shipment=reader.records(topics.SHIPMENT, ids),
            hadoop=reader.records(topics.HADOOP, ids),
            notifications=reader.records(topics.LOYALTY, ids),
            dead_letters=reader.dead_letters(),
            # Not compared, because a restarted process counts from 0. Other outputs show that duplicates were dropped.
            repeats=expected.repeats,
            parquet=exported_rows(settings),
            sales=reader.records(topics.STORE_SALES, ids),
            balances=served,
            unknown=balances.statuses(sorted(expected.strangers - cards)),
            changed=reader.changed,
            ledger=of_ledger,
        )
    finally:
        reader.close()
        balances.close()
    written = sum(sum(positions.values()) for positions in ends.values())
    return found, written - sum(reader.count(topic) for topic in _READ)


def _ledger_entries(ledger: LedgerReader, ends: dict[int, int]) -> list[LedgerEntry]:
    """The entries of the ledger when it has read up to these offsets, or at a deadline."""
    deadline = time.monotonic() + _LEDGER_SECONDS
    while not reached(ledger.positions(), ends) and time.monotonic() < deadline:
        time.sleep(0.1)
    return ledger.entries()


def _wrong_readings(readings: Readings, outputs: Outputs) -> list[Mismatch]:
    """Every total that callers received must belong to an entry of the customer, and totals must never go back."""
    correct: dict[tuple[str, int], Decimal] = {
        (entry["CustomerCardNo"], entry["Sequence"]): entry["TotalLoyaltyPoints"] for entry in outputs.notifications
    }
    wrong = [
        f"{card} received {total} at sequence {sequence}, expected {correct.get((card, sequence))}"
        for card, sequence, total in sorted(readings.totals)
        if correct.get((card, sequence)) != total
    ]
    return [Mismatch(Nature.WRONG, text) for text in [*wrong, *readings.backwards]]
