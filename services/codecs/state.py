"""Encodes accounts for Spark's state store.

The first byte is the format:

- 1: an account in MessagePack, as tuples of the domain.
- 2: the marker of an erased account. Its time follows in MessagePack (decision 18).
"""

import msgspec

from services.domain.account.lots import Lots
from services.domain.account.model import (
    Account,
    AccountState,
    ErasureMarker,
    PastCommand,
    PastPurchase,
    PastReturn,
    Reservation,
)
from services.messaging.avro import UndecodableError

_MESSAGE_PACK, MARKER = b"\1", b"\2"


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
    """Returns the account. Raises UndecodableError if this version cannot read the bytes."""
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
