"""A basket, and the points that it would earn."""

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from api.schemas.fields import EXACT, LONGEST_CARD, PointsText
from services.domain.events import Line, Purchase
from services.domain.formats import LAST_TIME
from services.domain.invoice import PRIME
from services.domain.validation import BLANKS, LARGEST_AMOUNT, LONGEST_TEXT, MOST_LINE_ITEMS, is_in_seconds

Amount = Annotated[float, Field(strict=True, ge=0, lt=LARGEST_AMOUNT, allow_inf_nan=False)]
SignedAmount = Annotated[float, Field(strict=True, gt=-LARGEST_AMOUNT, lt=LARGEST_AMOUNT, allow_inf_nan=False)]


def _text_of_number(value: object) -> object:
    # Tills may send a whole number where a text is expected.
    return str(value) if type(value) is int else value


def _no_return(original: str | None) -> str | None:
    if (original or "").strip(BLANKS):
        raise ValueError("must be missing: returns and exchanges cannot be simulated")
    return None


_Short = Annotated[str, Field(max_length=LONGEST_TEXT)]
_Card = Annotated[str, Field(min_length=1, max_length=LONGEST_CARD)]
ShortText = Annotated[_Short, BeforeValidator(_text_of_number, json_schema_input_type=_Short | int)]
TextOrDefault = Annotated[_Short, BeforeValidator(_text_of_number, json_schema_input_type=_Short | int | None)]
Card = Annotated[_Card, BeforeValidator(_text_of_number, json_schema_input_type=_Card | int)]


class BasketLine(BaseModel):
    """A line item. Campaigns may name its code."""

    ItemCode: ShortText | None = Field(None, examples=["458"])
    TotalValue: SignedAmount | None = Field(
        None, description="The value of the whole line. It is negative for a discount.", examples=[120.0]
    )


class Basket(BaseModel):
    """The part of an invoice on which points depend. Other members are ignored."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, basket: object) -> object:
        # Tills send null for a member that they do not have.
        if isinstance(basket, dict):
            return {name: value for name, value in basket.items() if value is not None}
        return basket

    TotalAmount: Amount = Field(examples=[520.5])
    TaxableAmount: Amount | None = Field(
        None, description="The amount before tax, for programmes with the tax basis taxable.", examples=[495.71]
    )
    CustomerType: TextOrDefault = Field(PRIME, examples=[PRIME])
    StoreID: TextOrDefault = Field("", examples=["STR7188"])
    CustomerCardNo: Card | None = Field(
        None, description="The customer, whose tier counts, and whether the card is blocked.", examples=["9265846829"]
    )
    CreatedTime: int | None = Field(
        None,
        strict=True,
        ge=0,
        le=LAST_TIME,
        description="The clock of the till, in milliseconds since the epoch. Campaigns use it. Default: now. Ten "
        "digits are seconds, as on invoices.",
        examples=[1_769_851_800_000],
    )
    OriginalInvoiceNumber: Annotated[ShortText | None, AfterValidator(_no_return)] = Field(
        None, description="Must be missing, because returns cannot be simulated."
    )
    InvoiceLineItems: list[BasketLine] | None = Field(None, max_length=MOST_LINE_ITEMS)

    def purchase(self, now: int) -> Purchase:
        lines = [
            Line(line.ItemCode, _money(line.TotalValue))
            for line in self.InvoiceLineItems or ()
            if line.ItemCode and line.TotalValue
        ]
        return Purchase(
            append_time=now,
            invoice_number="",
            total_amount=_money(self.TotalAmount),
            store_id=self.StoreID,
            customer_type=self.CustomerType,
            created_time=self.CreatedTime * 1000 if is_in_seconds(self.CreatedTime) else self.CreatedTime,
            lines=lines,
            taxable_amount=None if self.TaxableAmount is None else _money(self.TaxableAmount),
        )


class EarningPart(BaseModel):
    """A part of the earned points, negative for what a rule takes."""

    Name: str = Field(
        description="`base`, `tax`, `excluded-items`, `minimum-spend`, `cap-per-invoice`, `cap-per-day`, "
        "`card-blocked`, or the name of a tier or a campaign. `cap-per-day` does not subtract what other purchases of "
        "the day have earned.",
        examples=["base"],
    )
    LoyaltyPoints: PointsText


class Simulation(BaseModel):
    """What the basket would earn. The parts add up to it."""

    EarnedLoyaltyPoints: PointsText = Field(description=EXACT)
    Parts: list[EarningPart]
    Eligible: bool = Field(description="Whether customers of this type take part in the programme.")
    Tier: str | None = Field(description="The tier of the customer; null: none.", examples=["gold"])
    ProgrammeVersion: int = Field(description="The version that decides; 0: no version is published.", examples=[3])


def _money(amount: float) -> Decimal:
    """The amount as an exact decimal with the digits that JSON shows. The pipelines convert amounts in the same way."""
    return Decimal(repr(amount))
