"""The responses of the API. Points are exact decimals with two places; times are in UTC."""

from datetime import datetime
from decimal import Decimal

from msgspec import Struct, field


class Balance(Struct, frozen=True, kw_only=True):
    """The points of a customer. ``total`` = ``available`` + ``pending`` + ``reserved``."""

    card: str = field(name="CustomerCardNo")
    total: Decimal = field(name="TotalLoyaltyPoints")
    available: Decimal = field(name="AvailableLoyaltyPoints")
    pending: Decimal = field(name="PendingLoyaltyPoints")
    reserved: Decimal = field(name="ReservedLoyaltyPoints")
    tier: str | None = field(name="Tier")
    sequence: int = field(name="Sequence")
    opened_time: datetime | None = field(name="OpenedTime")
    updated_time: datetime = field(name="UpdatedTime")


class Command(Struct, frozen=True, kw_only=True):
    """A command and its decision.

    Attributes:
        status: pending, done, or a refusal.
        points: the change of the total. None: no decision yet.
        redemption_id: the redemption of a capture or a void. None: another command.
        reason: the code of a refusal.
        account_sequence: balances from this sequence on show the decision.
    """

    command_id: str = field(name="CommandID")
    status: str = field(name="Status")
    kind: str = field(name="Kind")
    card: str | None = field(name="CustomerCardNo")
    points: Decimal | None = field(name="Points")
    reserved_points: Decimal | None = field(name="ReservedPoints")
    redemption_id: str | None = field(name="RedemptionID")
    reason: str | None = field(name="Reason")
    expires_time: datetime | None = field(name="ExpiresTime")
    total: Decimal | None = field(name="TotalLoyaltyPoints")
    available: Decimal | None = field(name="AvailableLoyaltyPoints")
    account_sequence: int | None = field(name="AccountSequence")
    opened_time: datetime | None = field(name="OpenedTime")
    updated_time: datetime | None = field(name="UpdatedTime")


class Redemption(Command, frozen=True, kw_only=True):
    """A reservation. It always has the id that capture and void need."""

    redemption_id: str = field(name="RedemptionID")


class Entry(Struct, frozen=True, kw_only=True):
    """One change of an account."""

    sequence: int = field(name="Sequence")
    opened_time: datetime = field(name="OpenedTime")
    updated_time: datetime = field(name="UpdatedTime")
    kind: str = field(name="Kind")
    points: Decimal = field(name="EarnedLoyaltyPoints")
    total: Decimal = field(name="TotalLoyaltyPoints")
    available: Decimal = field(name="AvailableLoyaltyPoints")
    tier: str | None = field(name="Tier")
    invoice_number: str = field(name="InvoiceNumber")
    expires_time: datetime | None = field(name="ExpiresTime")
    reason: str = field(name="Reason")


class EntryPage(Struct, frozen=True, kw_only=True):
    """Entries, newest first.

    Attributes:
        next: the cursor of the next page. None: no more entries.
    """

    entries: list[Entry]
    next: str | None = None
