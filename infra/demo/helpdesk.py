"""What people do on a simulated day: publish rules, import opening balances, and replace a lost card."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import httpx

from infra.demo.invoice_oracle import Record
from infra.demo.oracle import Expected, Sent, Version, end_of_day, expect
from infra.local.folders import ROOT
from infra.local.stack import environment_of
from services.api_keys.client import authorization
from services.messaging.schema_ids import SchemaIds
from services.pos_simulator.replay import Format, recorded
from services.programmes.topic import publish_programme
from services.settings import Settings

NEW_CARD = "0000000001"
_NEWCOMER = "0000000002"
"""A card that has opening points and never shops."""

_PROGRAMME = """\
loyalty-factor: {factor}
time-basis: till
largest-backdating: P3D
valid-for: P{days}D
pending: P{pending}D
"""
_PENDING_DAYS = 7
"""Points from a receipt of yesterday stay pending until the demo ends."""

_IMPORTED = 20
"""The number of customers with opening points."""

_IMPORT_VALID_DAYS = 30
"""Days from the trading day until the opening points expire. All points of the day expire later."""


class HelpdeskError(RuntimeError):
    """A command of the helpdesk failed. The message has the answer or the error output."""


@dataclass(frozen=True, slots=True)
class Helpdesk:
    """What people do on a day.

    Attributes:
        versions: versions of the programme, by the time of the first receipt to which each applies.
        imported: opening points by card.
        imported_until: the day at whose end, in UTC, these points expire.
        lost_card: the card that NEW_CARD replaces after the day; empty if no card has suitable invoices.
        late: messages of the lost card that arrive after its replacement.
    """

    versions: Mapping[int, Version]
    imported: Mapping[str, Decimal]
    imported_until: date
    lost_card: str
    late: Sequence[Sent]

    def publish_programme(self, settings: Settings) -> None:
        """Publish the versions, before the first invoice."""
        for since, (factor, days, is_pending) in self.versions.items():
            text = _PROGRAMME.format(factor=factor, days=days, pending=_PENDING_DAYS * is_pending)
            publish_programme(text, settings, since)

    def import_balances(self, settings: Settings) -> None:
        """Run ``loyalty import`` twice. The second run must change nothing."""
        file = Path(settings.checkpoint_dir).parent / "opening.jsonl"
        until = self.imported_until.isoformat()
        rows = ({"card": card, "points": str(points), "expires": until} for card, points in self.imported.items())
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("loyalty")), "import", str(file), "--name", "opening"]
        for _ in range(2):
            done = subprocess.run(
                command, cwd=ROOT, env=environment_of(settings), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise HelpdeskError(f"loyalty import ended with the exit status {done.returncode}: {done.stderr}")

    def replace_card(self, url: str, key_file: Path) -> None:
        """Replace the lost card over HTTP."""
        headers = {**authorization(key_file), "Idempotency-Key": "lost"}
        body = {"newCard": NEW_CARD, "reason": "lost", "actor": "helpdesk"}
        path = f"{url}/v1/customers/{self.lost_card}/replacement"
        answer = httpx.post(path, json=body, headers=headers, timeout=60, trust_env=False)
        if not answer.is_success:
            raise HelpdeskError(f"the API did not replace a card: {answer.status_code} {answer.text}")


def plan(sent: Sequence[Sent], versions: Mapping[int, Version], ids: SchemaIds) -> tuple[list[Sent], Helpdesk]:
    """The messages of the day, and what people do.

    The last sale of one customer, and a return of an earlier sale, arrive after the replacement of the card.
    """
    numbers = Counter(str(each.invoice["InvoiceNumber"]) for each in sent if each.invoice)
    named = {each.invoice.get("OriginalInvoiceNumber") for each in sent if each.invoice}
    sales: dict[str, list[Sent]] = {}
    for each in sent:
        invoice = each.invoice or {}
        is_sale = invoice.get("CustomerType") == "PRIME" and not invoice.get("OriginalInvoiceNumber")
        if is_sale and numbers[invoice["InvoiceNumber"]] == 1 and invoice["InvoiceNumber"] not in named:
            sales.setdefault(invoice["CustomerCardNo"], []).append(each)
    lost = max(sales, key=lambda card: len(sales[card]), default="")
    late: list[Sent] = []
    if len(sales.get(lost, ())) > 1:
        first, *_, last = sales[lost]
        late = [last, _return_of(first.invoice or {}, ids)]
    imported = [card for card in sorted(sales) if card != lost][: _IMPORTED - 1]
    cards = [*([lost] if late else []), *imported, _NEWCOMER]
    points = {card: Decimal(number + 1) + Decimal("0.5") for number, card in enumerate(cards)}
    day = [each for each in sent if each not in late]
    until = datetime.fromtimestamp(min(versions) / 1000, UTC).date() + timedelta(days=_IMPORT_VALID_DAYS)
    return day, Helpdesk(versions, points, until, lost if late else "", late)


def _return_of(invoice: Record, ids: SchemaIds) -> Sent:
    """A return of everything in the invoice."""
    lines = [{**line, "TotalValue": -line["TotalValue"]} for line in invoice["InvoiceLineItems"]]
    number = invoice["InvoiceNumber"]
    returned = {
        **invoice,
        "InvoiceNumber": f"{number}R",
        "OriginalInvoiceNumber": number,
        "TotalAmount": -invoice["TotalAmount"],
        "TaxableAmount": None,
        "DeliveryType": "TAKEAWAY",
        "InvoiceLineItems": lines,
    }
    (message,) = recorded([json.dumps(returned).encode()], Format.AVRO, ids)
    return Sent(message.key, message.value, returned)


def expect_day(sent: Sequence[Sent], helpdesk: Helpdesk, factor: Decimal) -> Expected:
    """The outputs of the day, of the late messages, and of what people do."""
    before, expected = (expect(each, factor, helpdesk.versions) for each in (sent, [*sent, *helpdesk.late]))
    expires_time = end_of_day(min(helpdesk.versions), _IMPORT_VALID_DAYS)
    for card, points in helpdesk.imported.items():
        expected.expiring[card][expires_time] += points
        for each in (before, expected):
            _ = each.earned[card]  # the account exists, even without invoices
            each.commands[card]["imported", points] += 1
    # The import is the first entry of an account, so all sequence numbers are one higher.
    expected.readings = {
        number: (card, sequence + (card in helpdesk.imported)) for number, (card, sequence) in before.readings.items()
    }
    if helpdesk.late:
        _move(helpdesk.lost_card, before, expected, len(helpdesk.late))
    return expected


def _move(lost: str, before: Expected, expected: Expected, forwarded: int) -> None:
    """Move the account and the late messages to the new card. Each late invoice adds an entry to the old account."""
    sold, returned = expected.earned, expected.returned
    sold[NEW_CARD] = {number: each for number, each in sold[lost].items() if number not in before.earned[lost]}
    returned[NEW_CARD] = {
        number: each for number, each in returned[lost].items() if number not in before.returned[lost]
    }
    sold[lost], returned[lost] = before.earned[lost], before.returned[lost]
    expected.taken[NEW_CARD] = expected.taken[lost] - before.taken[lost]
    expected.taken[lost] = before.taken[lost]
    points = before.points_of(lost)
    expected.commands[lost]["moved-out", -points] += 1
    expected.commands[lost]["forwarded", Decimal(0)] += forwarded
    expected.commands[NEW_CARD]["moved-in", points] += 1
    expected.pending[NEW_CARD] = expected.pending.pop(lost, Decimal(0))
    expected.expiring[NEW_CARD] = expected.expiring.pop(lost)
    expected.moved[lost] = NEW_CARD
