"""What a basket would earn."""

from decimal import Decimal
from http import HTTPStatus
from typing import Annotated

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.current_programme import CurrentProgramme
from api.http import pagination, problems
from api.http.pagination import Text
from api.http.parameters import LONGEST_CARD
from api.routing.key_reads import KeyReads
from api.schemas.documentation import EXACT, PointsText
from services.domain.accrual import accrual
from services.domain.events import Line, Purchase
from services.domain.formats import points_text
from services.domain.invoice import PRIME
from services.domain.programme import Programme
from services.domain.validation import LARGEST_AMOUNT, LONGEST_TEXT, MOST_LINE_ITEMS
from services.state_stores import catalogue

router = APIRouter(prefix="/v1", tags=["programme"])

_LARGEST_TIME = 253_402_300_799_999
"""The end of the year 9999, milliseconds since the epoch."""

Amount = Annotated[float, Field(strict=True, ge=0, lt=LARGEST_AMOUNT, allow_inf_nan=False)]
ShortText = Annotated[Text, Field(max_length=LONGEST_TEXT)]


class BasketLine(BaseModel):
    """A line item; campaigns may concern it by its code."""

    ItemCode: ShortText | None = Field(None, examples=["458"])
    TotalValue: Amount | None = Field(None, description="Of the whole line.", examples=[120.0])


class Basket(BaseModel):
    """An invoice as tills publish it, as far as points depend on it; whatever else it has is ignored."""

    model_config = ConfigDict(extra="ignore")

    TotalAmount: Amount = Field(examples=[520.5])
    CustomerType: ShortText = Field(PRIME, examples=[PRIME])
    StoreID: ShortText = Field("", examples=["STR7188"])
    CustomerCardNo: Annotated[Text, Field(min_length=1, max_length=LONGEST_CARD)] | None = Field(
        None, description="For whom; the tier is then the customer's.", examples=["9265846829"]
    )
    CreatedTime: int | None = Field(
        None,
        strict=True,
        ge=0,
        le=_LARGEST_TIME,
        description="The till's clock, milliseconds since the epoch; campaigns go by it. Default: now.",
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
    """A share of what is earned."""

    Name: str = Field(description="base, or the name of a tier or of a campaign.", examples=["base"])
    LoyaltyPoints: PointsText


class Simulation(BaseModel):
    """What the basket would earn; the parts add up to it."""

    EarnedLoyaltyPoints: PointsText = Field(description=EXACT)
    Parts: list[EarningPart]
    Eligible: bool = Field(description="Whether customers of this type take part in the programme.")
    Tier: str | None = Field(description="The customer's; null: none.", examples=["gold"])
    ProgrammeVersion: int = Field(description="The version in force; 0: none was published yet.", examples=[3])


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
async def simulate(request: Request, basket: Basket) -> Response:
    """Points by the programme in force now, and from what they come. Nothing is stored, nothing counts."""
    programme: CurrentProgramme = request.app.state.programme
    rules, now = programme.now()
    purchase = basket.purchase(now)
    tier = await _tier_of(request.app.state.key_reads, basket.CustomerCardNo, rules)
    earned = accrual(purchase, rules, tier)
    return pagination.json_response(
        {
            "EarnedLoyaltyPoints": points_text(earned.points),
            "Parts": [{"Name": part.name, "LoyaltyPoints": points_text(part.points)} for part in earned.parts],
            "Eligible": rules.is_eligible(purchase.customer_type),
            "Tier": tier or None,
            "ProgrammeVersion": rules.version,
        }
    )


async def _tier_of(reads: KeyReads, card: str | None, rules: Programme) -> str:
    """The customer's tier by now; of somebody new, what everybody begins with."""
    if card is not None:
        found = await reads.ask(catalogue.BALANCES, card)
        if found.status_code == HTTPStatus.OK:
            return orjson.loads(found.body)["value"]["Tier"] or ""
        if found.status_code != HTTPStatus.NOT_FOUND:
            raise problems.OtherProblem.from_response(found)
    return rules.tier_for(0)


def _money(amount: float) -> Decimal:
    """The decimal that the amount's shortest notation shows, as the pipeline takes it."""
    return Decimal(repr(amount))
