"""The entries of a customer's account."""

from pydantic import BaseModel, Field

from api.schemas.fields import PointsText, Time


class LedgerEntry(BaseModel):
    """One entry, with the field names of the record Notification."""

    Sequence: int = Field(ge=1, description="Counts the entries of the account.")
    OpenedTime: Time = Field(description="When the account was opened.")
    UpdatedTime: Time = Field(description="When the change happened.")
    Kind: str = Field(examples=["earned"])
    EarnedLoyaltyPoints: PointsText = Field(description="The change of the total.", examples=["-10.00"])
    TotalLoyaltyPoints: PointsText = Field(description="After the entry.")
    AvailableLoyaltyPoints: PointsText
    PendingLoyaltyPoints: PointsText
    ReservedLoyaltyPoints: PointsText
    Tier: str | None = Field(description="After the entry. null: no tier.", examples=["gold"])
    ProgrammeVersion: int
    EventID: str = Field(description="The event that caused the entry. Empty if a timer caused it.")
    InvoiceNumber: str = Field(description="Empty if the entry has no invoice.")
    TotalAmount: float = Field(description="The amount of the invoice.")
    ExpiresTime: Time | None = Field(description="When the points expire, or when the reservation lapses.")
    Reason: str
    Actor: str
    Counterparty: str = Field(
        description="The other card of a transfer. A pseudonym replaces it after that customer's erasure."
    )


class LedgerPage(BaseModel):
    """Entries, newest first."""

    entries: list[LedgerEntry]
    next: str | None = Field(description="The cursor of the next page, as in the header Link. null: no more entries.")


class InvoiceCustomers(BaseModel):
    customers: list[str] = Field(description="CustomerCardNo. Empty if the ledger has no entry of the invoice.")
