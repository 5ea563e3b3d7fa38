"""Requests for commands, and their responses."""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from api.schemas.fields import CAMEL_CASE_BODY, EXACT, LONGEST_CARD, PointsText, Time, must_match
from services.domain.formats import to_hundredths
from services.domain.validation import BLANKS, LONGEST_REASON, is_pseudonym

LONGEST_ACTOR = 128
LARGEST_POINTS = "9999999999.99"

_DIGITS = r"[0-9]{1,10}(\.[0-9]{1,2})?"


def _not_zero(points: str) -> str:
    if not Decimal(points):
        raise ValueError("must not be 0")
    return points


def _not_blank(text: str) -> str:
    if not text.strip(BLANKS):
        raise ValueError("must not be blank")
    return text


def _names_an_account(card: str) -> str:
    # The pipeline refuses these cards. Release 0.1 opened accounts for cards of other invisible characters.
    if not card.strip():
        raise ValueError("must not be blank")
    return card


def _can_open_an_account(card: str) -> str:
    # Such a card would open another account. Invoices with such cards are dead letters.
    if card != _not_blank(card).strip(BLANKS):
        raise ValueError("must not have blanks at its start or end")
    if is_pseudonym(card):
        raise ValueError("is a pseudonym: send the card of the customer")
    return card


def _fits_into_paths(card: str) -> str:
    # Otherwise no path of the API could name the account. Clients remove "." and ".." from a path.
    if "/" in card or card in {".", ".."}:
        raise ValueError('must not contain "/", and must not be "." or "..", because no path could name the card')
    return card


def _must_be_points(pattern: str, example: str, limits: str) -> BeforeValidator:
    return must_match(pattern, f'should be a number in quotes with at most two decimals, such as "{example}", {limits}')


_NotZero = AfterValidator(_not_zero)
NotBlank = AfterValidator(_not_blank)

PositivePoints = Annotated[
    str,
    Field(pattern=f"^{_DIGITS}$", description=f"More than 0, at most {LARGEST_POINTS}. {EXACT}", examples=["10.00"]),
    _NotZero,
    _must_be_points(_DIGITS, "12.50", f"above 0 and at most {LARGEST_POINTS}"),
]
SignedPoints = Annotated[
    str,
    Field(
        pattern=f"^-?{_DIGITS}$",
        description=f"Not 0, from -{LARGEST_POINTS} to {LARGEST_POINTS}. {EXACT}",
        examples=["-25.50"],
    ),
    _NotZero,
    _must_be_points(f"-?{_DIGITS}", "-12.50", f"and at most {LARGEST_POINTS}"),
]
NamesAnAccount = AfterValidator(_names_an_account)
CanOpenAnAccount = AfterValidator(_can_open_an_account)
"""For cards whose account a command may open. There is no check for the card of an existing account."""

CardNo = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST_CARD, description="CustomerCardNo", examples=["9265846829"]),
    NamesAnAccount,
]
Reason = Annotated[str, Field(max_length=LONGEST_REASON, examples=["goodwill: parcel came late"])]
Actor = Annotated[str, Field(max_length=LONGEST_ACTOR, description="Who sends the command.", examples=["till 7"])]


class _Body(BaseModel):
    model_config = CAMEL_CASE_BODY

    def normalized(self) -> dict[str, Any]:
        """The fields of the request. All spellings of the same points give the same text."""
        fields = self.model_dump()
        points = {"points": to_hundredths(Decimal(fields["points"]))} if "points" in fields else {}
        return {**fields, **points}


class Redemption(_Body):
    """Points to reserve until the redemption is captured or voided."""

    points: PositivePoints
    reason: Reason = ""
    actor: Actor = ""


class Adjustment(_Body):
    """A manual correction."""

    points: SignedPoints
    reason: Annotated[Reason, NotBlank]
    actor: Annotated[Actor, NotBlank]
    allow_negative: bool = Field(
        default=False, strict=True, description="Whether the points may become negative, as a debt."
    )


class CardChange(_Body):
    """Why a card is changed, and who does it."""

    reason: Annotated[Reason, NotBlank]
    actor: Annotated[Actor, NotBlank]


class Replacement(CardChange):
    """The card that replaces a lost card."""

    new_card: Annotated[CardNo, CanOpenAnAccount, AfterValidator(_fits_into_paths)]


class Merging(CardChange):
    """The card whose account takes over everything."""

    into: CardNo


class Transfer(_Body):
    """Points that move from one customer to another."""

    from_card: CardNo = Field(alias="from")
    to_card: Annotated[CardNo, CanOpenAnAccount] = Field(alias="to")
    points: PositivePoints
    reason: Reason = ""
    actor: Actor = ""


class Command(BaseModel):
    """A command and its decision."""

    CommandID: str = Field(examples=["0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"])
    Status: str = Field(description="pending, done or refused.", examples=["done"])
    Kind: str = Field(
        description="reserve, capture, void, adjust, transfer, block, unblock, replace, merge or erase.",
        examples=["reserve"],
    )
    CustomerCardNo: str | None = Field(description="null: pending, or an erasure.", examples=["9265846829"])
    Points: PointsText | None = Field(
        description="The change of the total, as EarnedLoyaltyPoints of the entry. null: pending.", examples=["0.00"]
    )
    ReservedPoints: PointsText | None = Field(
        description="The points that a reservation reserved. null: another command.", examples=["10.00"]
    )
    RedemptionID: str | None = Field(
        description="For reserve, capture and void: the redemption. It is the CommandID of the reservation.",
        examples=["0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"],
    )
    Reason: str | None = Field(description="The code of a refusal, which is also the problem type.", examples=[None])
    ExpiresTime: Time | None = Field(description="For a reservation: when it lapses if it is not captured.")
    TotalLoyaltyPoints: PointsText | None = Field(description="After the decision.")
    AvailableLoyaltyPoints: PointsText | None = Field(description="After the decision.", examples=["400.00"])
    AccountSequence: int | None = Field(
        description="The balance of the account of OpenedTime shows the decision from this Sequence on.", examples=[4]
    )
    OpenedTime: Time | None = Field(description="When the account was opened.")
    UpdatedTime: Time | None = Field(description="When Kafka stored the command.")
