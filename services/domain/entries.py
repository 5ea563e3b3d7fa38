"""What an account makes of events: entries for the ledger, decisions for who commanded, credits for other accounts."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from services.domain.events import SentLot


class Kind(StrEnum):
    """What an entry is about."""

    EARNED = "earned"
    RETURNED = "returned"
    RELEASED = "released"
    EXPIRES_SOON = "expires-soon"
    EXPIRED = "expired"
    RESERVED = "reserved"
    REDEEMED = "redeemed"
    VOIDED = "voided"
    LAPSED = "lapsed"
    ADJUSTED = "adjusted"
    SENT = "sent"
    RECEIVED = "received"
    TIER = "tier"
    REFUSED = "refused"
    ERASED = "erased"


class Refusal(StrEnum):
    """Why a command is refused."""

    INSUFFICIENT_POINTS = "insufficient-points"
    UNKNOWN_REDEMPTION = "unknown-redemption"
    SAME_CUSTOMER = "same-customer"


class AccountVersion(NamedTuple):
    """One state of one card. Versions are ordered, also across an erasure: the next account is opened later.

    Attributes:
        opened_time: when the account was opened, milliseconds since the epoch.
        sequence: the sequence number of the account's last entry.
    """

    opened_time: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of an account. Points are hundredths, times milliseconds since the epoch; the fields of Notification.

    Attributes:
        points: how the entry changes the total; the total is the sum of all entries since the account was opened.
        sequence: counts the entries of the account from 1.
        time: when the broker appended the event, or when the time came for what time does.
        event_id: empty where time was at work; of kind lapsed the redemption's.
        reason: of a command its own; refused: the refusal; tier: the tier before; expires-soon: how many points will.
    """

    sequence: int
    opened_time: int
    kind: Kind
    points: int
    total: int
    available: int
    pending: int
    reserved: int
    time: int
    programme_version: int
    tier: str = ""
    event_id: str = ""
    invoice_number: str = ""
    total_amount: Decimal = Decimal(0)
    expires_time: int = 0
    reason: str = ""
    actor: str = ""
    counterparty: str = ""

    @property
    def version(self) -> AccountVersion:
        """The version of the account after this entry."""
        return AccountVersion(self.opened_time, self.sequence)


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a command; the fields of the record Decision. Points are hundredths.

    Attributes:
        kind: of the command, in the words of LoyaltyCommand.
        refusal: None where it was done.
        points: how the total changed; reserve: how many were set aside.
    """

    command_id: str
    kind: str
    request_hash: str
    refusal: Refusal | None
    points: int
    redemption_id: str
    account_sequence: int
    opened_time: int
    total: int
    available: int
    expires_time: int
    time: int


@dataclass(frozen=True, slots=True)
class Credit:
    """What a transfer sends: becomes a Receive of the other account. ``command_id`` follows from the transfer's."""

    command_id: str
    to_card: str
    lots: tuple[SentLot, ...]
    reason: str
    actor: str
