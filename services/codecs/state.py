"""Encodes accounts for Spark's state store.

The first byte is the format:

- 1: an account in MessagePack, as tuples of the domain.
- 2: the marker of an erased account. Its time follows in MessagePack (decision 18).
- 0: a framed Avro record LoyaltyAccount. Older checkpoints contain such accounts (decision 16).
"""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from services.domain.account.lots import Lots, Terms
from services.domain.account.model import (
    Account,
    AccountState,
    ErasureMarker,
    PastCommand,
    PastPurchase,
    PastReturn,
    Reservation,
)
from services.domain.events import Line
from services.messaging.avro import MAGIC_BYTE, Record, UndecodableError, record_decoder
from services.messaging.schema_ids import FolderSchemaIds

_AVRO, _MESSAGE_PACK, MARKER = bytes([MAGIC_BYTE]), b"\1", b"\2"


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The fields of an account by position. A position never changes.

    Add a new field at the end, with a default. The same is true for the tuples in the fields. Any other change needs
    another first byte. Release 0.1 wrote only the time of a command, and no fields from ``returns`` on.
    """

    opened_time: int
    sequence: int
    updated_time: int
    debt: int
    lots: Lots
    reservations: dict[str, tuple[int, Lots]]
    purchases: dict[str, PastPurchase]
    commands: dict[str, int | PastCommand]
    tier: str
    period_start: int
    period_end: int
    earned_in_period: int
    returns: dict[str, PastReturn] = {}
    is_blocked: bool = False
    moved_to: str = ""
    former_cards: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    reserved_debt: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode
_decode_time = msgspec.msgpack.Decoder(int).decode
_decode_avro = record_decoder("LoyaltyAccount", FolderSchemaIds().writer_schema)


def encode_account(account: AccountState) -> bytes:
    """Returns the bytes for the state store."""
    if isinstance(account, ErasureMarker):
        return MARKER + _encode(account.time)
    return _MESSAGE_PACK + _encode(
        _State(
            account.opened_time,
            account.sequence,
            account.updated_time,
            account.debt,
            account.lots,
            {name: (each.lapses_time, each.lots) for name, each in account.reservations.items()},
            account.purchases,
            dict[str, int | PastCommand](account.commands),
            account.tier,
            account.period_start,
            account.period_end,
            account.earned_in_period,
            account.returns,
            account.is_blocked,
            account.moved_to,
            account.former_cards,
            account.imports,
            account.reserved_debt,
        )
    )


def decode_account(state: bytes) -> AccountState:
    """Returns the account. Raises UndecodableError or UnknownSchemaIdError if this version cannot read the bytes."""
    if state[:1] == _AVRO:
        return _from_avro(_decode_avro(state))
    if state[:1] not in (_MESSAGE_PACK, MARKER):
        raise UndecodableError(f"The format {state[:1]!r} is not known. Use the release that wrote the checkpoint.")
    try:
        if state[:1] == MARKER:
            return ErasureMarker(_decode_time(memoryview(state)[1:]))
        stored = _decode(memoryview(state)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableError(f"The account cannot be decoded: {error}") from error
    return Account(
        stored.opened_time,
        stored.sequence,
        stored.updated_time,
        stored.debt,
        stored.lots,
        {name: Reservation(lapses_time, lots) for name, (lapses_time, lots) in stored.reservations.items()},
        stored.purchases,
        {name: PastCommand(each) if isinstance(each, int) else each for name, each in stored.commands.items()},
        stored.tier,
        stored.period_start,
        stored.period_end,
        stored.earned_in_period,
        stored.returns,
        stored.is_blocked,
        stored.moved_to,
        stored.former_cards,
        stored.imports,
        stored.reserved_debt,
    )


def _from_avro(record: Record) -> Account:
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
        purchases={purchase["InvoiceNumber"]: _past_purchase(purchase) for purchase in record["Purchases"]},
        commands={command["CommandID"]: PastCommand(command["AppendTime"]) for command in record["Commands"]},
        tier=record["Tier"],
        period_start=record["PeriodStart"],
        period_end=record["PeriodEnd"],
        earned_in_period=record["EarnedInPeriod"],
    )
    # The oldest accounts have a total but no lots. The total becomes points that never expire, or a debt.
    difference = record["TotalLoyaltyPoints"] - account.total
    if difference > 0:
        account.lots[Terms()] = difference
    elif difference < 0:
        account.debt = -difference
    return account


def _lots(records: Iterable[Record]) -> Lots:
    return {Terms(lot["ExpiresTime"], lot["AvailableTime"], lot["NoticeTime"]): lot["Points"] for lot in records}


def _past_purchase(record: Record) -> PastPurchase:
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
