"""The balance of a customer."""

from pydantic import BaseModel, Field

from api.schemas.fields import EXACT, PointsText, Time


class Balance(BaseModel):
    """The points of a customer now."""

    CustomerCardNo: str = Field(examples=["9265846829"])
    TotalLoyaltyPoints: PointsText = Field(description=f"The sum of all entries of the account. {EXACT}")
    AvailableLoyaltyPoints: PointsText = Field(
        description="The part of the total that the customer can spend now. It is negative if the customer returned "
        "goods while their points were reserved, or after spending them if the programme allows debts, or after an "
        "adjustment with allowNegative.",
        examples=["400.00"],
    )
    PendingLoyaltyPoints: PointsText = Field(
        description="The part of the total that the customer can spend later.", examples=["7.04"]
    )
    ReservedLoyaltyPoints: PointsText = Field(
        description="The part of the total that is reserved for redemptions.", examples=["10.00"]
    )
    Tier: str | None = Field(description="null: the customer has no tier.", examples=["gold"])
    NextExpiryTime: Time | None = Field(description="When the next points expire. null: no points expire.")
    NextExpiryPoints: PointsText | None = Field(
        description="How many points expire then, pending points included. null: release 0.1 wrote the "
        "balance. The next entry adds this member and Blocked.",
        examples=["12.50"],
    )
    Blocked: bool | None = Field(description="Whether the card is blocked.", examples=[False])
    MovedTo: str | None = Field(
        description="The card to which the account has moved. Only reads of a store show it. A read of the balance "
        "itself gets 410.",
        examples=[None],
    )
    Sequence: int = Field(ge=1, description="Grows with every entry of the account.", examples=[3])
    OpenedTime: Time | None = Field(
        description="When the account was opened. After an erasure the customer gets a new account. Its Sequence "
        "begins with 1."
    )
    UpdatedTime: Time = Field(
        description="When Kafka stored the newest event that is counted here, or when the newest timer was due."
    )
