"""What an account produces: entries for the ledger, decisions on commands, credits for other accounts."""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from services.domain.events import SentLot


class Kind(StrEnum):
    """The kind of an entry."""

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
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    MOVED_OUT = "moved-out"
    MOVED_IN = "moved-in"
    FORWARDED = "forwarded"
    IMPORTED = "imported"
    REFUSED = "refused"
    ERASED = "erased"


class Refusal(StrEnum):
    """The reason of a refusal."""

    INSUFFICIENT_POINTS = "insufficient-points"
    UNKNOWN_REDEMPTION = "unknown-redemption"
    SAME_CUSTOMER = "same-customer"
    TOO_MANY_POINTS = "too-many-points"
    TOO_MANY_REDEMPTIONS = "too-many-redemptions"
    CARD_BLOCKED = "card-blocked"
    CARD_REPLACED = "card-replaced"
    UNREADABLE = "unreadable"


RECEIPT_TOO_OLD = "receipt-too-old"
"""The reason of an entry of kind earned: the receipt is older than the programme allows, so its append time counts."""


KEY_ACTOR = "key:"
"""The actor of a command from a caller with an API key is this text and the id of the key."""

BEARER_ACTOR = "token:"
"""The actor of a command from a caller with a token is this text and the claim sub. sub can identify a customer."""


class ReturnReason(StrEnum):
    """Why a return took no points. ``return-of-return`` has an entry of kind refused, the others of kind returned.

    A return with ``purchase-unknown`` waits for its purchase, for the return window and at least 18 days. The entry
    with ``points-spent`` gives back points that a return took, because they were reserved and are spent now.
    """

    PURCHASE_UNKNOWN = "purchase-unknown"
    TOO_MANY_WAIT = "too-many-wait"
    WINDOW_OVER = "return-window-over"
    RETURN_OF_RETURN = "return-of-return"
    POINTS_SPENT = "points-spent"


class AccountVersion(NamedTuple):
    """One state of one card. Later states have higher versions, even after an erasure: the next account opens later.

    Attributes:
        opened_time: when the account was opened, milliseconds since the epoch.
        sequence: the sequence number of the account's last entry.
    """

    opened_time: int
    sequence: int


class BalanceDetails(NamedTuple):
    """The members of a balance besides points and tier.

    Attributes:
        next_expiry_time: when the next points expire; 0 if none do. Reserved points do not count.
        next_expiry_points: how many points expire then.
        is_blocked: whether the card is blocked.
        moved_to: the card to which the account has moved; empty if it has not.
    """

    next_expiry_time: int = 0
    next_expiry_points: int = 0
    is_blocked: bool = False
    moved_to: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of an account, with the fields of Notification. Points are hundredths.

    Times are milliseconds since the epoch.

    Attributes:
        points: the change of the total. The total is the sum of all entries since the account was opened.
        sequence: counts the entries of the account from 1.
        time: the append time of the event, or the due time of a change without an event.
        event_id: empty without an event. For kind lapsed it is the id of the redemption.
        invoice_number: the invoice of the points. A return that waited has a second entry. The event of this entry is
            the purchase, and ``invoice_number`` is the return.
        total_amount: of the invoice; for a half of an exchange, the sum of the lines of this half.
        reason: the reason of the command. For kind refused it is the refusal, for kind returned a ``ReturnReason`` or
            empty, for kind tier the previous tier, and for kind expires-soon the points that will expire. For kind
            earned it is card-blocked if the purchase of a blocked card earned nothing, or ``RECEIPT_TOO_OLD``.
        balance_details: further members of the balance after the entry; None for an entry that was read from a record.
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
    balance_details: BalanceDetails | None = field(default=None, compare=False)

    @property
    def version(self) -> AccountVersion:
        """The version of the account after this entry."""
        return AccountVersion(self.opened_time, self.sequence)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a command, with the fields of the record Decision. Points are hundredths.

    Attributes:
        kind: the kind of the command, as in LoyaltyCommand.
        refusal: None if the command was accepted.
        points: the change of the total; for a reservation, the reserved points.
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
    """The points that a transfer sends. They become a Receive of the other account, with an id of its own."""

    command_id: str
    to_card: str
    lots: tuple[SentLot, ...]
    reason: str
    actor: str
