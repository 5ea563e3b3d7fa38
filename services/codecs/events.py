"""What happens to an account as records and bytes: purchases and commands, there and back."""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import schemas
from services.domain.account.model import command_kind
from services.domain.accrual import MOST
from services.domain.entries import Credit
from services.domain.events import (
    Adjust,
    Capture,
    Command,
    Erase,
    Event,
    Line,
    Purchase,
    Receive,
    Reserve,
    SentLot,
    Transfer,
    Void,
)
from services.domain.formats import to_points
from services.messaging.avro import Record, UndecodableError, header, record_decoder
from services.messaging.schema_ids import FolderSchemaIds, UnknownSchemaIdError

LARGEST_POINTS = MOST
"""Hundredths; a command can move less than that, as an invoice can."""

_IDS = FolderSchemaIds()
_PURCHASE_HEADERS = {
    header(schema_id) for schema_id, path in schemas.ids().items() if schemas.record_name(path) == "Purchase"
}
_decode_purchase = record_decoder("Purchase", _IDS.writer_schema)
_decode_command = record_decoder("LoyaltyCommand", _IDS.writer_schema)


def decode_event(append_time: int, value: bytes) -> Event:
    """A framed Purchase or LoyaltyCommand as an event; raises UndecodableError, which says what is wrong."""
    try:
        if value[:5] in _PURCHASE_HEADERS:
            return _purchase(append_time, _decode_purchase(value))
        return _command(append_time, _decode_command(value))
    except UnknownSchemaIdError as error:
        raise UndecodableError(str(error)) from error


def command_record(card: str, asked: Command, issued_time: int = 0) -> Record:
    """The record LoyaltyCommand; ``decode_event`` reads it. The broker gives it its append time.

    Args:
        issued_time: the sender's clock, milliseconds since the epoch.
    """
    record: Record = {
        "CommandID": asked.command_id,
        "Kind": command_kind(asked),
        "CustomerCardNo": card,
        "RequestHash": asked.request_hash,
        "IssuedTime": issued_time,
        "Points": Decimal(0),
        "RedemptionID": "",
        "Reason": asked.reason,
        "Actor": asked.actor,
        "Counterparty": "",
        "AllowNegative": False,
        "Lots": [],
    }
    if isinstance(asked, Reserve | Adjust | Transfer):
        record["Points"] = to_points(asked.points)
    if isinstance(asked, Capture | Void):
        record["RedemptionID"] = asked.redemption_id
    if isinstance(asked, Transfer | Receive):
        record["Counterparty"] = asked.counterparty
    if isinstance(asked, Adjust):
        record["AllowNegative"] = asked.allow_negative
    if isinstance(asked, Receive):
        record["Points"] = to_points(sum(lot.points for lot in asked.lots))
        record["Lots"] = [{"Points": lot.points, "ExpiresTime": lot.expires_time} for lot in asked.lots]
    return record


def credit_record(card: str, credit: Credit, issued_time: int = 0) -> Record:
    """The command for the other card (``credit.to_card``, its key) that a transfer from this card leads to."""
    received = Receive(
        append_time=0,
        command_id=credit.command_id,
        reason=credit.reason,
        actor=credit.actor,
        counterparty=card,
        lots=credit.lots,
    )
    return command_record(credit.to_card, received, issued_time)


def _purchase(append_time: int, record: Record) -> Purchase:
    return Purchase(
        append_time,
        record["InvoiceNumber"],
        _money(record["TotalAmount"]),
        record["StoreID"],
        record["CustomerType"] or "",
        record["CreatedTime"],
        record["OriginalInvoiceNumber"] or None,
        tuple(
            Line(line["ItemCode"], _money(line["TotalValue"]))
            for line in record["InvoiceLineItems"]
            if line["ItemCode"] and line["TotalValue"]
        ),
    )


def _money(amount: float) -> Decimal:
    """The decimal that the amount's shortest notation shows, not the binary fraction behind it."""
    if not math.isfinite(amount):
        raise UndecodableError(f"not a finite amount: {amount}")
    return Decimal(repr(amount))


def _command(append_time: int, record: Record) -> Event:
    kind = record["Kind"]
    if kind not in _COMMANDS:
        raise UndecodableError(f"no command of kind {kind!r}; there are {', '.join(_COMMANDS)}")
    if not record["CommandID"].strip():
        raise UndecodableError("CommandID is missing")
    common = {
        "append_time": append_time,
        "command_id": record["CommandID"],
        "request_hash": record["RequestHash"],
        "reason": record["Reason"],
        "actor": record["Actor"],
    }
    made: Event = _COMMANDS[kind](**common, **_details(kind, record))
    return made


def _details(kind: str, record: Record) -> Mapping[str, Any]:
    match kind:
        case "reserve":
            return {"points": _points(record)}
        case "capture" | "void":
            return {"redemption_id": _text(record, "RedemptionID")}
        case "adjust":
            return {"points": _points(record, negative=True), "allow_negative": record["AllowNegative"]}
        case "transfer":
            return {"points": _points(record), "counterparty": _text(record, "Counterparty")}
        case "receive":
            return {"counterparty": _text(record, "Counterparty"), "lots": tuple(_sent(record["Lots"]))}
    return {}


_COMMANDS: dict[str, Any] = {
    "reserve": Reserve,
    "capture": Capture,
    "void": Void,
    "adjust": Adjust,
    "transfer": Transfer,
    "receive": Receive,
    "erase": Erase,
}


def _text(record: Record, name: str) -> str:
    text: str = record[name]
    if not text.strip():
        raise UndecodableError(f"{name} is missing")
    return text


def _points(record: Record, *, negative: bool = False) -> int:
    hundredths = int(record["Points"].scaleb(2))
    if not 0 < (abs(hundredths) if negative else hundredths) < LARGEST_POINTS:
        raise UndecodableError(f"Points out of range: {record['Points']}")
    return hundredths


def _sent(records: list[Record]) -> Iterable[SentLot]:
    if not records:
        raise UndecodableError("Lots are missing")
    for lot in records:
        if not (0 < lot["Points"] < LARGEST_POINTS and lot["ExpiresTime"] >= 0):
            raise UndecodableError(f"a lot out of range: {lot}")
        yield SentLot(lot["Points"], lot["ExpiresTime"])
