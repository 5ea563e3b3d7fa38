"""Calculates what a basket would earn."""

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from api.dependencies import LookupDep, ProgrammeDep
from api.http import pagination, problems
from api.http.pagination import Text
from api.http.parameters import LONGEST_CARD
from api.routing.lookup import Lookup
from api.schemas.documentation import EXACT, PointsText
from services.domain.accrual import accrual, eligible
from services.domain.events import Line, Purchase
from services.domain.formats import points_text
from services.domain.invoice import PRIME
from services.domain.programme import Programme
from services.domain.tiers import tier_for
from services.domain.validation import LARGEST_AMOUNT, LONGEST_TEXT, MOST_LINE_ITEMS
from services.state_stores import catalogue

router = APIRouter(prefix="/v1", tags=["programme"])

_LARGEST_TIME = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since the epoch."""

Amount = Annotated[float, Field(strict=True, ge=0, lt=LARGEST_AMOUNT, allow_inf_nan=False)]
ShortText = Annotated[Text, Field(max_length=LONGEST_TEXT)]


class BasketLine(BaseModel):
    """A line item. Campaigns may name its code."""

    ItemCode: ShortText | None = Field(None, examples=["458"])
    TotalValue: Amount | None = Field(None, description="The value of the whole line.", examples=[120.0])


class Basket(BaseModel):
    """The part of an invoice on which points depend. Other members are ignored."""

    model_config = ConfigDict(extra="ignore")

    TotalAmount: Amount = Field(examples=[520.5])
    CustomerType: ShortText = Field(PRIME, examples=[PRIME])
    StoreID: ShortText = Field("", examples=["STR7188"])
    CustomerCardNo: Annotated[Text, Field(min_length=1, max_length=LONGEST_CARD)] | None = Field(
        None, description="The customer, whose tier counts.", examples=["9265846829"]
    )
    CreatedTime: int | None = Field(
        None,
        strict=True,
        ge=0,
        le=_LARGEST_TIME,
        description="The clock of the till, in milliseconds since the epoch. Campaigns use it. Default: now.",
        examples=[1_769_851_800_000],
    )
    InvoiceLineItems: list[BasketLine] = Field([], max_length=MOST_LINE_ITEMS)

    def purchase(self, now: int) -> Purchase:
        lines = [
            Line(line.ItemCode, _money(line.TotalValue))
            for line in self.InvoiceLineItems
            if line.ItemCode and line.TotalValue
        ]
        return Purchase(
            append_time=now,
            invoice_number="",
            total_amount=_money(self.TotalAmount),
            store_id=self.StoreID,
            customer_type=self.CustomerType,
            created_time=self.CreatedTime,
            lines=lines,
        )


class EarningPart(BaseModel):
    """A part of the earned points."""

    Name: str = Field(description="`base`, or the name of a tier or a campaign.", examples=["base"])
    LoyaltyPoints: PointsText


class Simulation(BaseModel):
    """What the basket would earn. The parts add up to it."""

    EarnedLoyaltyPoints: PointsText = Field(description=EXACT)
    Parts: list[EarningPart]
    Eligible: bool = Field(description="Whether customers of this type take part in the programme.")
    Tier: str | None = Field(description="The tier of the customer; null: none.", examples=["gold"])
    ProgrammeVersion: int = Field(description="The version in force; 0: no version is published.", examples=[3])


@router.post(
    "/simulate",
    summary="What a basket would earn",
    response_model=Simulation,
    responses=problems.responses(
        problems.UnreadableBody,
        problems.BodyTooLarge,
        problems.InvalidParameters,
        problems.Starting,
        problems.Restoring,
        problems.Stopping,
        problems.Rebalancing,
        problems.ProgrammeUnreadable,
        problems.NotTheOwner,
        problems.OwnerUnreachable,
        problems.OwnerTimeout,
    ),
)
async def simulate(basket: Basket, programme: ProgrammeDep, lookup: LookupDep) -> Response:
    """The points that the programme in force now would give, and their parts. Nothing is stored."""
    rules, now = programme.in_force()
    purchase = basket.purchase(now)
    tier = await _tier_of(lookup, basket.CustomerCardNo, rules)
    earned = accrual(purchase, rules, tier)
    return pagination.json_response(
        {
            "EarnedLoyaltyPoints": points_text(earned.points),
            "Parts": [{"Name": part.name, "LoyaltyPoints": points_text(part.points)} for part in earned.parts],
            "Eligible": eligible(purchase, rules),
            "Tier": tier or None,
            "ProgrammeVersion": rules.version,
        }
    )


async def _tier_of(lookup: Lookup, card: str | None, rules: Programme) -> str:
    """The present tier of the customer. A new customer has the first tier."""
    balance = await lookup.value_of(catalogue.BALANCES, card) if card is not None else None
    return (balance["Tier"] or "") if balance else tier_for(0, rules)


def _money(amount: float) -> Decimal:
    """The decimal of the shortest notation of an amount. The pipelines convert amounts in the same way."""
    return Decimal(repr(amount))
