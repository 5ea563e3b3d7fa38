"""Converts events of an account (purchases and commands) from and to records."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import fields, replace
from decimal import Decimal
from operator import itemgetter
from typing import Any

import schemas
from services.codecs.state import decode_account, encode_account
from services.domain.account.model import LARGEST_RETURNED_TOTAL, Account, PastPurchase, PastReturn
from services.domain.accrual import MOST_EARNED
from services.domain.entries import Credit
from services.domain.events import (
    Absorb,
    Adjust,
    Block,
    Capture,
    Command,
    Erase,
    Event,
    Forward,
    Import,
    Line,
    Merge,
    Purchase,
    Receive,
    Replace,
    Reserve,
    SentLot,
    Transfer,
    Unblock,
    Unreadable,
    Void,
    derived_id,
)
from services.domain.formats import LAST_TIME, to_points
from services.domain.programme import DAY
from services.domain.validation import BLANKS, LARGEST_AMOUNT, MOST_LINE_ITEMS
from services.messaging.avro import HEADER_BYTES, Record, UndecodableError, header, record_decoder
from services.messaging.schema_ids import FolderSchemaIds

_IDS = FolderSchemaIds()
_PURCHASE_HEADERS = {
    header(schema_id) for schema_id, path in schemas.ids().items() if schemas.record_name(path) == "Purchase"
}
_decode_purchase = record_decoder("Purchase", _IDS.writer_schema)
_decode_command = record_decoder("LoyaltyCommand", _IDS.writer_schema)

ARCHIVED = "\0"
"""The actor of a command in the archive, which keeps neither actors nor reasons. No caller can have this name."""

LAST_INVOICE_TIME = LAST_TIME - 40_000 * DAY
"""The latest time of an invoice in a part of an account. Its points expire at most a century later."""

_LARGEST_SUM = Decimal(LARGEST_AMOUNT) * MOST_LINE_ITEMS
"""The largest amount in a part of an account: all lines of an exchange. The rules cannot round much larger amounts."""

_ABSORB = "absorb"
_REDIRECT = "redirect"
"""The kind of the command that sends an invoice of a replaced card to the new card. It is decoded as a Purchase."""


def decode_event(append_time: int, value: bytes) -> Event:
    """Decodes a framed Purchase or LoyaltyCommand. Raises UndecodableError, which says what is wrong."""
    if value[:HEADER_BYTES] in _PURCHASE_HEADERS:
        return _purchase(append_time, _decode_purchase(value))
    return _command(append_time, _decode_command(value))


def command_record(card: str, command: Command | Purchase, issued_time: int = 0) -> Record:
    """Returns the record LoyaltyCommand, which ``decode_event`` reads.

    Args:
        issued_time: the clock of the sender, in milliseconds since the epoch. The broker adds the append time.
    """
    if isinstance(command, Purchase):
        redirect = Command(append_time=0, command_id=command.redirect_id)
        return command_record(card, redirect) | {"Kind": _REDIRECT, "Invoice": _invoice_record(command)}
    if isinstance(command, Forward):
        issued_time = command.invoice.append_time
    lots = [{"Points": lot.points, "ExpiresTime": lot.expires_time} for lot in getattr(command, "lots", ())]
    return {
        "CommandID": command.command_id,
        "Kind": _ABSORB if isinstance(command, Unreadable) else command.kind,
        "CustomerCardNo": card,
        "RequestHash": command.request_hash,
        "IssuedTime": issued_time,
        "Points": to_points(sum(lot["Points"] for lot in lots) or getattr(command, "points", 0)),
        "RedemptionID": getattr(command, "redemption_id", ""),
        "Reason": command.reason,
        "Actor": command.actor,
        "Counterparty": getattr(command, "counterparty", ""),
        "AllowNegative": getattr(command, "allow_negative", False),
        "Lots": lots,
        "Invoice": _invoice_record(command.invoice) if isinstance(command, Forward) else None,
        "OriginID": command.origin_id,
        "Payload": encode_account(command.part) if isinstance(command, Absorb) else getattr(command, "payload", None),
    }


def credit_record(card: str, credit: Credit) -> Record:
    """Returns the record of the command that adds the points of a transfer from ``card`` to ``credit.to_card``."""
    received = Receive(
        append_time=0,
        command_id=credit.command_id,
        reason=credit.reason,
        actor=credit.actor,
        counterparty=card,
        lots=credit.lots,
    )
    return command_record(credit.to_card, received)


def forward_record(card: str, append_time: int, invoice: bytes) -> Record:
    """Returns the record of the command that forwards a return to the account that bought.

    Args:
        append_time: the append time of the return, in milliseconds since the epoch.
        invoice: the return, a framed Purchase.
    """
    return _index_record("forward", card, _decode_purchase(invoice), append_time)


def forget_record(card: str, invoice_number: str) -> Record:
    """Returns the record of the command that deletes an erased customer's invoice number from the index of invoices.

    Several cards of a customer can know the number, so the id depends on the card.
    """
    invoice = {"InvoiceNumber": invoice_number, "TotalAmount": 0.0, "StoreID": ""}
    source = hashlib.sha256(f"{card}\n{invoice_number}".encode()).hexdigest()
    return _index_record("forget", card, invoice, 0) | {"CommandID": derived_id(source, "/forget")}


def _index_record(kind: str, card: str, invoice: Record, issued_time: int) -> Record:
    return {
        "CommandID": derived_id(invoice["InvoiceNumber"], f"/{kind}"),
        "Kind": kind,
        "CustomerCardNo": card,
        "IssuedTime": issued_time,
        "Invoice": invoice,
    }


def _invoice_record(purchase: Purchase) -> Record:
    """Returns the record that ``_purchase`` reads."""
    return {
        "InvoiceNumber": purchase.invoice_number,
        "TotalAmount": float(purchase.total_amount),
        "CreatedTime": purchase.created_time,
        "StoreID": purchase.store_id,
        "CustomerType": purchase.customer_type,
        "OriginalInvoiceNumber": purchase.original_invoice_number,
        "InvoiceLineItems": [
            {
                "ItemCode": line.item_code,
                "TotalValue": float(line.value),
                "TakesBackDiscount": line.takes_back_discount,
            }
            for line in purchase.lines
        ],
        "TaxableAmount": None if purchase.taxable_amount is None else float(purchase.taxable_amount),
    }


def _purchase(append_time: int, record: Record) -> Purchase:
    original = record["OriginalInvoiceNumber"] or ""
    return Purchase(
        append_time,
        record["InvoiceNumber"],
        _money(record["TotalAmount"]),
        record["StoreID"],
        record["CustomerType"] or "",
        record["CreatedTime"],
        original if original.strip(BLANKS) else None,
        tuple(
            Line(line["ItemCode"] or "", _money(line["TotalValue"]), line["TakesBackDiscount"])
            for line in record["InvoiceLineItems"]
            if line["TotalValue"]
        ),
        None if record["TaxableAmount"] is None else _money(record["TaxableAmount"]),
    )


def _money(amount: float) -> Decimal:
    """Returns the shortest decimal that identifies the double, for example 0.1, not its exact binary fraction."""
    if not math.isfinite(amount):
        raise UndecodableError(f"not a finite amount: {amount}")
    return Decimal(repr(amount))


def _command(append_time: int, record: Record) -> Event:
    kind = record["Kind"]
    if kind == _REDIRECT:
        return replace(_purchase(append_time, record["Invoice"]), redirect_id=_FIELDS["command_id"](record))
    if kind not in _COMMANDS:
        raise UndecodableError(f"no command of kind {kind!r}; there are {', '.join(_COMMANDS)}")
    command, names = _COMMANDS[kind]
    try:
        event: Event = command(append_time=append_time, **{name: _FIELDS[name](record) for name in names})
    except UndecodableError:
        if command is Absorb:
            # The validation of commands does not check the payload, so an invalid one must not stop the query.
            return Unreadable(
                append_time=append_time,
                command_id=_FIELDS["command_id"](record),
                origin_id=record["OriginID"],
                counterparty=record["Counterparty"],
                payload=record["Payload"] or b"",
            )
        raise
    return event


def _text(name: str) -> Callable[[Record], str]:
    def read(record: Record) -> str:
        text: str = record[name]
        if not text.strip():
            raise UndecodableError(f"{name} is blank")
        return text

    return read


def _points(record: Record) -> int:
    hundredths = int(record["Points"].scaleb(2))
    if not 0 < (abs(hundredths) if record["Kind"] == "adjust" else hundredths) < MOST_EARNED:
        raise UndecodableError(f"Points out of range: {record['Points']}")
    return hundredths


def _sent_lots(record: Record) -> tuple[SentLot, ...]:
    if not record["Lots"]:
        raise UndecodableError("Lots are missing")
    for lot in record["Lots"]:
        if not (0 < lot["Points"] < MOST_EARNED and lot["ExpiresTime"] >= 0):
            raise UndecodableError(f"a lot out of range: {lot}")
    return tuple(SentLot(lot["Points"], lot["ExpiresTime"]) for lot in record["Lots"])


def _counterparty(record: Record) -> str:
    card: str = record["Counterparty"]
    return card if record["Kind"] == "erase" else _text("Counterparty")(record)


def _part(record: Record) -> Account:
    part = decode_account(record["Payload"] or b"")
    if not isinstance(part, Account):
        raise UndecodableError("Payload is not a part of an account")
    if not _is_possible(part):
        raise UndecodableError("Payload has a time, points or an amount out of range")
    return part


def _is_possible(part: Account) -> bool:
    """Whether Spark, Avro and the rules can process the part.

    Spark uses its times for timers, and Avro stores its points in 64 bits.
    """
    pasts: list[PastPurchase | PastReturn] = [*part.purchases.values(), *part.returns.values()]
    lots = [part.lots, *(reservation.lots for reservation in part.reservations.values())]
    times = [time for each in lots for terms in each for time in terms]
    times += [reservation.lapses_time for reservation in part.reservations.values()]
    times += [part.opened_time, part.updated_time, part.period_end]
    times += [past.append_time for past in part.commands.values()]
    times += [past.counted_until for past in part.purchases.values()]
    invoice_times = [past.append_time for past in pasts]
    invoice_times += [past.decided_time for past in part.purchases.values()]
    lot_points = [each for lot in lots for each in lot.values()]
    points = [part.debt, part.reserved_debt, part.earned_in_period, *lot_points]
    points += [each for past in part.purchases.values() for each in (past.earned, past.expired)]
    amounts = [amount for past in pasts for amount in (past.amount, *(past.items or {}).values())]
    amounts += [past.taxable_amount for past in part.returns.values() if past.taxable_amount is not None]
    amounts += [line.value for past in part.purchases.values() for line in past.lines]
    return (
        all(0 <= time <= LAST_TIME for time in times)
        and all(0 <= time <= LAST_INVOICE_TIME for time in invoice_times)
        and all(abs(each) <= LARGEST_RETURNED_TOTAL for each in points)
        and all(each > 0 for each in lot_points)
        and all(amount.is_finite() and abs(amount) <= _LARGEST_SUM for amount in amounts)
    )


_FIELDS: dict[str, Callable[[Record], Any]] = {
    "command_id": _text("CommandID"),
    "request_hash": itemgetter("RequestHash"),
    "reason": itemgetter("Reason"),
    "actor": itemgetter("Actor"),
    "points": _points,
    "redemption_id": _text("RedemptionID"),
    "allow_negative": itemgetter("AllowNegative"),
    "counterparty": _counterparty,
    "lots": _sent_lots,
    "origin_id": itemgetter("OriginID"),
    "part": _part,
    "invoice": lambda record: _purchase(record["IssuedTime"], record["Invoice"]),
}
"""How to read each field of a command from its record."""

_COMMANDS: dict[str, tuple[Any, list[str]]] = {
    command.__name__.lower(): (command, [each.name for each in fields(command) if each.name in _FIELDS])
    for command in (
        *(Reserve, Capture, Void, Adjust, Transfer, Receive, Forward, Import, Block, Unblock),
        *(Replace, Merge, Absorb, Erase),
    )
}
"""The commands by their kinds, with the names of their fields."""
