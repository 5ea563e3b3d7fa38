"""Converts a programme file (YAML) to the rules of the domain. docs/reference/programme.md explains each key."""

import re
import zoneinfo
from collections.abc import Iterable
from datetime import date, timedelta
from decimal import (
    ROUND_CEILING,
    ROUND_DOWN,
    ROUND_FLOOR,
    ROUND_HALF_DOWN,
    ROUND_HALF_EVEN,
    ROUND_HALF_UP,
    ROUND_UP,
    Decimal,
)
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Annotated, cast

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from services.domain import programme as domain
from services.domain.programme import BlockedCards, Combining, Period, Programme, SpentReturns, TaxBasis, TimeBasis
from services.errors import UserError
from services.yaml_files.model import FileModel, Notes, validated
from services.yaml_files.scalars import choice, day, duration, in_iso, member, number, points, scalar, text
from services.yaml_files.tree import InvalidFileError, Problem

ROUNDING = {
    "half-up": ROUND_HALF_UP,
    "half-down": ROUND_HALF_DOWN,
    "half-even": ROUND_HALF_EVEN,
    "up": ROUND_UP,
    "down": ROUND_DOWN,
    "ceiling": ROUND_CEILING,
    "floor": ROUND_FLOOR,
}
WEEKDAYS = {
    name: number
    for number, name in enumerate(["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"])
}
LARGEST_POINTS = "1000000"
LARGEST_MULTIPLIER = "100"

_DEFAULT = Programme()
_ZERO, _DAY, _YEARS = timedelta(0), timedelta(days=1), timedelta(days=36_500)
# The window is limited, because an account remembers each invoice for this time.
_LONGEST_RETURN = timedelta(days=730)
_LONGEST_BACKDATING = timedelta(days=90)
_MILLISECOND = timedelta(milliseconds=1)
_HOURS = re.compile(r"(\d{1,2}):00-(\d{1,2}):00", re.ASCII)
_LAST_HOUR = 24


class ProgrammeError(UserError):
    """A programme that is not valid. The message has one line for each problem.

    Attributes:
        problems: in the order of the lines of the file; empty if the error is not in a file.
    """

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def parse_programme(file: str, *, is_published: bool = False) -> Programme:
    """Returns the rules of a programme file as version 0. Raises ProgrammeError with all problems.

    Args:
        is_published: accept every time zone that this machine has, because nobody can correct a published version.
    """
    try:
        return validated(file, _PublishedFile if is_published else _ProgrammeFile).rules()
    except InvalidFileError as error:
        raise ProgrammeError(str(error), error.problems) from error


@cache
def _shared_zones() -> frozenset[str]:
    """The time zones that all processes have: those of the package tzdata. Factory means that no zone is set.

    The database of a machine has more names, for example localtime, which containers do not have.
    """
    return frozenset((resources.files("tzdata") / "zones").read_text("utf-8").split()) - {"Factory"}


@cache
def _zones_here() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _time_zone(name: str) -> str:
    if name not in _shared_zones():
        raise ValueError(f"{name!r} is not a time zone of the package tzdata, such as Asia/Kolkata or UTC")
    return name


def _time_zone_here(name: str) -> str:
    if name not in _zones_here():
        raise ValueError(f"{name!r} is not a time zone of this machine. Install a newer package tzdata")
    return name


def _hours(value: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(value)
    if not match:
        raise ValueError(f"{value!r} is not a range of full hours such as 17:00-20:00")
    first, end = int(match[1]), int(match[2])
    if not first < end <= _LAST_HOUR:
        raise ValueError(f"{value} does not end later on the same day. Write two campaigns for 22:00-2:00")
    return first, end


def _not_empty(values: list[str]) -> list[str]:
    if not values:
        raise ValueError("is an empty list. Remove the key instead")
    return values


def _duration_or_never(value: str) -> int | None:
    return None if value == "never" else duration(_DAY, _YEARS)(value)


_Text = Annotated[str, scalar(text)]
_Texts = Annotated[list[_Text], AfterValidator(_not_empty)]
_TierMultiplier = Annotated[Decimal, scalar(number("1", LARGEST_MULTIPLIER, places=3))]
_CampaignMultiplier = Annotated[Decimal, scalar(number("0", LARGEST_MULTIPLIER, places=3))]
_Weekdays = Annotated[list[Annotated[int, scalar(choice(WEEKDAYS))]], AfterValidator(_not_empty)]


class _Tier(FileModel):
    name: _Text
    points: Annotated[int, scalar(points("0.01", "1000000000"))]
    multiplier: _TierMultiplier = Decimal(1)


class _Campaign(FileModel):
    name: _Text
    first_day: Annotated[date, scalar(day)] | None = None
    last_day: Annotated[date, scalar(day)] | None = None
    weekdays: _Weekdays = Field(default_factory=list)
    hours: Annotated[tuple[int, int], scalar(_hours)] | None = None
    stores: _Texts = Field(default_factory=list)
    items: _Texts = Field(default_factory=list)
    categories: _Texts = Field(default_factory=list)
    multiplier: _CampaignMultiplier = Decimal(1)
    bonus: Annotated[int, scalar(points("0.01", LARGEST_POINTS))] = 0

    @field_validator("last_day")
    @classmethod
    def _in_order(cls, last_day: date | None, info: ValidationInfo) -> date | None:
        first_day = info.data.get("first_day")
        if first_day and last_day and last_day < first_day:
            raise ValueError(f"{last_day} is before first-day {first_day}")
        return last_day

    @model_validator(mode="after")
    def _changes_points(self) -> "_Campaign":
        if self.multiplier == 1 and not self.bonus:
            raise ValueError("changes no points. Add a bonus, or a multiplier other than 1")
        return self

    def rules(self, items: frozenset[str]) -> domain.Campaign:
        """Returns the campaign. ``items`` has the items of its categories, too."""
        values = dict(self) | {
            "weekdays": frozenset(self.weekdays),
            "stores": frozenset(self.stores),
            "items": items,
        }
        del values["categories"]
        return domain.Campaign(**values)


class _ProgrammeFile(FileModel):
    """The order of the fields matters: a validator uses fields above its own field."""

    loyalty_factor: Annotated[Decimal, scalar(number("0", "100", places=6))]
    rounding: Annotated[str, scalar(choice(ROUNDING))] = _DEFAULT.rounding
    customer_types: _Texts = Field(default_factory=lambda: sorted(_DEFAULT.customer_types))
    time_zone: Annotated[str, scalar(_time_zone)] = _DEFAULT.time_zone
    pending: Annotated[int, scalar(duration(_ZERO, timedelta(days=366)))] = _DEFAULT.pending
    valid_for: Annotated[int | None, scalar(_duration_or_never)] = _DEFAULT.valid_for
    expiry_notice: Annotated[int, scalar(duration(_ZERO, timedelta(days=366)))] = _DEFAULT.expiry_notice
    # A decision is kept for twenty days. The decision of a reserve must still exist when the reserve lapses.
    reserve_for: Annotated[int, scalar(duration(timedelta(minutes=1), _DAY))] = _DEFAULT.reserve_for
    return_window: Annotated[int, scalar(duration(_ZERO, _LONGEST_RETURN))] = _DEFAULT.return_window
    spent_returns: Annotated[SpentReturns, scalar(member(SpentReturns))] = _DEFAULT.spent_returns
    tier_period: Annotated[Period | None, scalar(member(Period))] = _DEFAULT.tier_period
    tiers: list[_Tier] = Field(default_factory=list, validate_default=True)
    categories: dict[_Text, _Texts] = Field(default_factory=dict)
    tax_basis: Annotated[TaxBasis, scalar(member(TaxBasis))] = _DEFAULT.tax_basis
    excluded_items: _Texts = Field(default_factory=list)
    excluded_categories: _Texts = Field(default_factory=list)
    minimum_spend: Annotated[Decimal, scalar(number("0", "1000000000", places=3))] = _DEFAULT.minimum_spend
    cap_per_invoice: Annotated[int, scalar(points("0.01", "1000000000"))] | None = None
    cap_per_day: Annotated[int, scalar(points("0.01", "1000000000"))] | None = None
    blocked_cards: Annotated[BlockedCards, scalar(member(BlockedCards))] = _DEFAULT.blocked_cards
    time_basis: Annotated[TimeBasis, scalar(member(TimeBasis))] = _DEFAULT.time_basis
    largest_backdating: Annotated[int, scalar(duration(_ZERO, _LONGEST_BACKDATING))] = _DEFAULT.largest_backdating
    combining: Annotated[Combining, scalar(member(Combining))] = _DEFAULT.combining
    campaigns: list[_Campaign] = Field(default_factory=list)

    @field_validator("valid_for")
    @classmethod
    def _expire_after_pending(cls, valid_for: int | None, info: ValidationInfo) -> int | None:
        pending = info.data.get("pending", 0)
        if valid_for is not None and valid_for <= pending:
            raise ValueError(f"points would expire before they can be spent, because pending is {_iso(pending)}")
        return valid_for

    @field_validator("expiry_notice")
    @classmethod
    def _notice_before_expiry(cls, notice: int, info: ValidationInfo) -> int:
        if notice and "valid_for" in info.data:
            valid_for = info.data["valid_for"]
            if valid_for is None:
                raise ValueError("points never expire without valid-for. Add valid-for or remove expiry-notice")
            if notice >= valid_for:
                raise ValueError(f"must be shorter than valid-for, which is {_iso(valid_for)}")
        return notice

    @field_validator("tiers")
    @classmethod
    def _in_ascending_order(cls, tiers: list[_Tier], info: ValidationInfo) -> list[_Tier]:
        notes = cast(Notes, info.context)
        if "tier_period" in info.data and bool(tiers) != bool(info.data["tier_period"]):
            missing, given = ("tier-period", "tiers") if tiers else ("tiers", "tier-period")
            notes.append(((given,), f"{missing} is missing"))
        for index, (lower, higher) in enumerate(pairwise(tiers), start=1):
            if higher.points <= lower.points:
                notes.append((("tiers", index, "points"), "must be more than the points of the previous tier"))
        notes += _duplicate_names("tiers", [tier.name for tier in tiers])
        return tiers

    @field_validator("largest_backdating")
    @classmethod
    def _only_with_till(cls, limit: int, info: ValidationInfo) -> int:
        if info.data.get("time_basis") is TimeBasis.BROKER:
            raise ValueError("has no effect with the time basis broker. Add time-basis: till, or remove this key")
        return limit

    @field_validator("campaigns")
    @classmethod
    def _categories_exist(cls, campaigns: list[_Campaign], info: ValidationInfo) -> list[_Campaign]:
        notes = cast(Notes, info.context)
        notes += _duplicate_names("campaigns", [campaign.name for campaign in campaigns])
        for index, campaign in enumerate(campaigns):
            notes += _unknown_categories(("campaigns", index, "categories"), campaign.categories, info)
        return campaigns

    @field_validator("excluded_categories")
    @classmethod
    def _excluded_categories_exist(cls, names: list[str], info: ValidationInfo) -> list[str]:
        cast(Notes, info.context).extend(_unknown_categories(("excluded-categories",), names, info))
        return names

    def rules(self) -> Programme:
        # A process keeps all versions. So campaigns with the same items and categories share one set.
        items = cache(self._items)
        values = dict(self) | {
            "customer_types": frozenset(name.upper() for name in self.customer_types),
            "tiers": tuple(domain.Tier(**dict(tier)) for tier in self.tiers),
            "campaigns": tuple(each.rules(items(tuple(each.items), tuple(each.categories))) for each in self.campaigns),
            "excluded_items": items(tuple(self.excluded_items), tuple(self.excluded_categories)),
        }
        del values["categories"], values["excluded_categories"]
        return Programme(**values)

    def _items(self, items: tuple[str, ...], categories: tuple[str, ...]) -> frozenset[str]:
        return frozenset([*items, *(code for category in categories for code in self.categories[category])])


class _PublishedFile(_ProgrammeFile):
    """Release 0.1 published every time zone that the machine of the publisher had."""

    time_zone: Annotated[str, scalar(_time_zone_here)] = _DEFAULT.time_zone


def _unknown_categories(key: tuple[str | int, ...], names: Iterable[str], info: ValidationInfo) -> Notes:
    known = info.data.get("categories")
    if known is None:
        return []
    message = f"is not defined. Defined categories: {', '.join(known) or 'none'}"
    return [((*key, place), f"{name!r} {message}") for place, name in enumerate(names) if name not in known]


def _duplicate_names(key: str, names: list[str]) -> Notes:
    first_places = {name: place for place, name in reversed([*enumerate(names)])}
    return [
        ((key, place, "name"), f"{name!r} is used twice")
        for place, name in enumerate(names)
        if place > first_places[name]
    ]


def _iso(milliseconds: int) -> str:
    return in_iso(milliseconds * _MILLISECOND)
