"""An account as bytes: what the loyalty query keeps in Spark's state store.

The domain's own tuples in MessagePack, behind a byte that says so. Accounts of before are Avro (``LoyaltyAccount``) in
the framing of every value on the wire, which begins with 0; they are read as long as a checkpoint may have some
(docs/decisions/0016).
"""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from services.domain.account.lots import Lots, Terms
from services.domain.account.processor import Account, Reservation
from services.domain.account.returns import PastPurchase
from services.domain.events import Line
from services.messaging.avro import MAGIC_BYTE, Record, UndecodableError, record_decoder
from services.messaging.schema_ids import FolderSchemaIds

_AVRO, _MESSAGE_PACK = bytes([MAGIC_BYTE]), b"\1"


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The fields of an account by their places, which never change; a new one comes last, with a default.

    Where it can no longer be so, or the tuples within it cannot, the first byte has to be another.
    """

    opened_time: int
    sequence: int
    updated_time: int
    debt: int
    lots: Lots
    reservations: dict[str, tuple[int, Lots]]
    purchases: dict[str, PastPurchase]
    commands: dict[str, int]
    tier: str
    period_start: int
    period_end: int
    earned_in_period: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode
_decode_avro = record_decoder("LoyaltyAccount", FolderSchemaIds().writer_schema)


def encode_account(account: Account) -> bytes:
    """The account as Spark's state store keeps it."""
    return _MESSAGE_PACK + _encode(
        _State(
            account.opened_time,
            account.sequence,
            account.updated_time,
            account.debt,
            account.lots,
            {name: (each.lapses_time, each.lots) for name, each in account.reservations.items()},
            account.purchases,
            account.commands,
            account.tier,
            account.period_start,
            account.period_end,
            account.earned_in_period,
        )
    )


def decode_account(state: bytes) -> Account:
    """Raises UndecodableError or UnknownSchemaIdError where the bytes are no account this version can read."""
    if state[:1] == _AVRO:
        return _of_avro(_decode_avro(state))
    if state[:1] != _MESSAGE_PACK:
        raise UndecodableError(f"no account of a known format: it begins with {state[:1]!r}")
    try:
        kept = _decode(memoryview(state)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableError(f"not an account: {error}") from error
    return Account(
        kept.opened_time,
        kept.sequence,
        kept.updated_time,
        kept.debt,
        kept.lots,
        {name: Reservation(lapses_time, lots) for name, (lapses_time, lots) in kept.reservations.items()},
        kept.purchases,
        kept.commands,
        kept.tier,
        kept.period_start,
        kept.period_end,
        kept.earned_in_period,
    )


def _of_avro(record: Record) -> Account:
    account = Account(
        opened_time=record["OpenedTime"],
        sequence=record["Sequence"],
        updated_time=record["UpdatedTime"],
        debt=record["Debt"],
        lots=_lots(record["Lots"]),
        reservations={
            reservation["RedemptionID"]: Reservation(reservation["LapsesTime"], _lots(reservation["Lots"]))
            for reservation in record["Reservations"]
        },
        purchases={purchase["InvoiceNumber"]: _past(purchase) for purchase in record["Purchases"]},
        commands={command["CommandID"]: command["AppendTime"] for command in record["Commands"]},
        tier=record["Tier"],
        period_start=record["PeriodStart"],
        period_end=record["PeriodEnd"],
        earned_in_period=record["EarnedInPeriod"],
    )
    # Accounts from before there were lots have a total alone: points that never expire, or, below 0, a debt.
    unaccounted = record["TotalLoyaltyPoints"] - account.total
    if unaccounted > 0:
        account.lots[Terms()] = unaccounted
    elif unaccounted < 0:
        account.debt = -unaccounted
    return account


def _lots(records: Iterable[Record]) -> Lots:
    return {Terms(lot["ExpiresTime"], lot["AvailableTime"], lot["NoticeTime"]): lot["Points"] for lot in records}


def _past(record: Record) -> PastPurchase:
    return PastPurchase(
        record["AppendTime"],
        Decimal(record["Amount"]),
        record["Earned"],
        record["ProgrammeVersion"],
        record["Tier"],
        record["CreatedTime"],
        record["StoreID"],
        tuple([Line(line["ItemCode"], Decimal(line["Value"])) for line in record["Lines"]]),
    )
