"""Converts events of an account (purchases and commands) from and to records."""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import schemas
from services.domain.accrual import MOST_EARNED
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
from services.domain.validation import BLANKS
from services.messaging.avro import Record, UndecodableError, header, record_decoder
from services.messaging.schema_ids import FolderSchemaIds, UnknownSchemaIdError

_IDS = FolderSchemaIds()
_PURCHASE_HEADERS = {
    header(schema_id) for schema_id, path in schemas.ids().items() if schemas.record_name(path) == "Purchase"
}
_decode_purchase = record_decoder("Purchase", _IDS.writer_schema)
_decode_command = record_decoder("LoyaltyCommand", _IDS.writer_schema)


def decode_event(append_time: int, value: bytes) -> Event:
    """Decodes a framed Purchase or LoyaltyCommand. Raises UndecodableError, which says what is wrong."""
    try:
        if value[:5] in _PURCHASE_HEADERS:
            return _purchase(append_time, _decode_purchase(value))
        return _command(append_time, _decode_command(value))
    except UnknownSchemaIdError as error:
        raise UndecodableError(str(error)) from error


def command_record(card: str, command: Command, issued_time: int = 0) -> Record:
    """Returns the record LoyaltyCommand, which ``decode_event`` reads.

    Args:
        issued_time: the clock of the sender, in milliseconds since the epoch. The broker adds the append time.
    """
    record: Record = {
        "CommandID": command.command_id,
        "Kind": command.kind,
        "CustomerCardNo": card,
        "RequestHash": command.request_hash,
        "IssuedTime": issued_time,
        "Points": Decimal(0),
        "RedemptionID": "",
        "Reason": command.reason,
        "Actor": command.actor,
        "Counterparty": "",
        "AllowNegative": False,
        "Lots": [],
    }
    if isinstance(command, Reserve | Adjust | Transfer):
        record["Points"] = to_points(command.points)
    if isinstance(command, Capture | Void):
        record["RedemptionID"] = command.redemption_id
    if isinstance(command, Transfer | Receive):
        record["Counterparty"] = command.counterparty
    if isinstance(command, Adjust):
        record["AllowNegative"] = command.allow_negative
    if isinstance(command, Receive):
        record["Points"] = to_points(sum(lot.points for lot in command.lots))
        record["Lots"] = [{"Points": lot.points, "ExpiresTime": lot.expires_time} for lot in command.lots]
    return record


def credit_record(card: str, credit: Credit, issued_time: int = 0) -> Record:
    """Returns the record of the command that adds the points of a transfer from ``card`` to ``credit.to_card``."""
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
            Line(line["ItemCode"] or "", _money(line["TotalValue"]))
            for line in record["InvoiceLineItems"]
            if line["TotalValue"]
        ),
    )


def _money(amount: float) -> Decimal:
    """Returns the decimal with the shortest notation of the double, not the binary fraction."""
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
    command: Event = _COMMANDS[kind](**common, **_details(kind, record))
    return command


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
            return {"counterparty": _text(record, "Counterparty"), "lots": tuple(_sent_lots(record["Lots"]))}
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
    if not 0 < (abs(hundredths) if negative else hundredths) < MOST_EARNED:
        raise UndecodableError(f"Points out of range: {record['Points']}")
    return hundredths


def _sent_lots(records: list[Record]) -> Iterable[SentLot]:
    if not records:
        raise UndecodableError("Lots are missing")
    for lot in records:
        if not (0 < lot["Points"] < MOST_EARNED and lot["ExpiresTime"] >= 0):
            raise UndecodableError(f"a lot out of range: {lot}")
        yield SentLot(lot["Points"], lot["ExpiresTime"])
