"""Encodes accounts for Spark's state store.

The first byte is the format:

- 1: an account in MessagePack, as tuples of the domain.
- 2: the marker of an erased account. Its time follows in MessagePack (decision 18).
"""

from operator import attrgetter

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
    """The fields of ``Account`` by position, in the same order. A position never changes.

    Add a new field at the end, with a default. The same is true for the tuples in the fields. Any other change needs
    another first byte. Release 0.1 wrote only the time of a command, and no fields from ``returns`` on.
    """

    opened_time: int
    sequence: int
    updated_time: int
    debt: int
    lots: Lots
    reservations: dict[str, Reservation]
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


_fields_of = attrgetter(*_State.__struct_fields__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode
_decode_time = msgspec.msgpack.Decoder(int).decode


def encode_account(account: AccountState) -> bytes:
    """Returns the bytes for the state store."""
    if isinstance(account, ErasureMarker):
        return MARKER + _encode(account.time)
    return _MESSAGE_PACK + _encode(_fields_of(account))


def decode_account(state: bytes) -> AccountState:
    """Returns the account. Raises UndecodableError if this version cannot read the bytes."""
    if state[:1] not in (_MESSAGE_PACK, MARKER):
        raise UndecodableError(f"the format {state[:1]!r} is not known. Use the release that wrote the checkpoint")
    try:
        if state[:1] == MARKER:
            return ErasureMarker(_decode_time(memoryview(state)[1:]))
        stored = _decode(memoryview(state)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UndecodableError(f"the account cannot be decoded: {error}") from error
    account = Account(*_fields_of(stored))
    for command_id, past in stored.commands.items():
        if isinstance(past, int):
            account.commands[command_id] = PastCommand(past)
    return account
