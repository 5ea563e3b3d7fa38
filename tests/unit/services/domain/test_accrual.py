"""The points that purchases earn, and the explanation of these points."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

import pytest
from hypothesis import given, settings

from services.domain.accrual import accrual
from services.domain.events import Line, Purchase
from services.domain.programme import Campaign, Combining, Period, Programme, TaxBasis, Tier
from tests.support.examples import examples
from tests.support.strategies import ACCOUNT_PROGRAMMES, PURCHASES

MONDAY_NOON = int(datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()) * 1000
MILK, BREAD = Line("milk", Decimal(40)), Line("bread", Decimal(60))
BASKET = Purchase(MONDAY_NOON, "1", Decimal(100), "here", lines=(MILK, BREAD))


def earned(programme, purchase=BASKET, tier=""):
    return {part.name: part.points for part in accrual(purchase, programme, tier).parts}


def programme(*campaigns, combining=Combining.BEST, **rules):
    return Programme(campaigns=campaigns, combining=combining, **rules)


@settings(max_examples=examples(60))
@given(PURCHASES, ACCOUNT_PROGRAMMES)
def test_the_parts_add_up_to_the_points(purchase, rules):
    """Points are never negative, and they are 0 for customers who do not take part."""
    for tier in ("", "silver", "unknown"):
        result = accrual(purchase, rules, tier)
        assert result.points == sum(part.points for part in result.parts)
        assert result.points >= 0
        assert purchase.customer_type.upper() == "PRIME" or result.points == 0


@pytest.mark.parametrize(("rounding", "points"), [(ROUND_FLOOR, 3), (ROUND_CEILING, 4)])
def test_the_sum_of_an_invoice_is_rounded_and_not_each_part(rounding, points):
    """1.05 at 0.02 with a tier of 1.5 is 0.0315. The programme says how to round it."""
    rules = Programme(rounding=rounding, tiers=(Tier("gold", 1, Decimal("1.5")),), tier_period=Period.YEAR)

    assert points == accrual(Purchase(1, "1", Decimal("1.05")), rules, "gold").points


def test_the_programme_lists_the_customer_types_that_earn():
    """The case of a customer type does not matter. A type that is not listed earns nothing."""
    staff = Purchase(1, "1", Decimal(100), customer_type="Staff")

    assert 2_00 == accrual(staff, Programme(customer_types=frozenset({"STAFF"}))).points
    assert 0 == accrual(staff, Programme()).points


def test_tier_multiplies_base_and_campaigns():
    """A gold customer at 1.5 with a campaign of 2 gets 2 base points, 1 for the tier and 3 for the campaign."""
    rules = programme(Campaign("double", multiplier=Decimal(2)), tiers=(Tier("gold", 1, Decimal("1.5")),))

    assert {"base": 2_00, "gold": 1_00, "double": 3_00} == earned(rules, tier="gold")


@pytest.mark.parametrize(
    ("campaign", "fits"),
    [
        (Campaign("c", bonus=1), True),
        (Campaign("c", first_day=date(2026, 11, 16), last_day=date(2026, 11, 16), bonus=1), True),
        (Campaign("c", first_day=date(2026, 11, 17), bonus=1), False),
        (Campaign("c", last_day=date(2026, 11, 15), bonus=1), False),
        (Campaign("c", weekdays=frozenset({0}), bonus=1), True),
        (Campaign("c", weekdays=frozenset({1, 6}), bonus=1), False),
        (Campaign("c", hours=(12, 13), bonus=1), True),
        (Campaign("c", hours=(11, 12), bonus=1), False),
        (Campaign("c", stores=frozenset({"here"}), bonus=1), True),
        (Campaign("c", stores=frozenset({"there"}), bonus=1), False),
        (Campaign("c", items=frozenset({"milk"}), bonus=1), True),
        (Campaign("c", items=frozenset({"wine"}), bonus=1), False),
    ],
)
def test_campaign_fits_by_day_hour_store_and_item(campaign, fits):
    """The last day is included. The last hour is not."""
    assert fits == ("c" in earned(programme(campaign)))


def test_day_and_hour_are_local_by_the_till_s_clock():
    """Noon in London is 13:00 in Berlin. Without a plausible time of the till, the time of the broker counts."""
    lunch = Campaign("lunch", hours=(13, 14), bonus=1)
    berlin = programme(lunch, time_zone="Europe/Berlin")
    clocks = {MONDAY_NOON: True, None: True, 2**62: True, -(2**62): True, MONDAY_NOON + 3_600_000: False}

    for created_time, fits in clocks.items():
        purchase = Purchase(MONDAY_NOON, "1", Decimal(100), created_time=created_time)
        assert fits == ("lunch" in earned(berlin, purchase))
    assert "lunch" not in earned(programme(lunch))


ITEM = Campaign("milk", items=frozenset({"milk"}), multiplier=Decimal(3), bonus=10)
OTHER = Campaign("dairy", items=frozenset({"milk", "cheese"}), multiplier=Decimal(2), bonus=30)
DOUBLE = Campaign("double", multiplier=Decimal(2))


@pytest.mark.parametrize(
    ("campaigns", "best", "everything"),
    [
        ([ITEM], {"milk": 1_60 + 10}, {"milk": 1_60 + 10}),
        ([DOUBLE], {"double": 2_00}, {"double": 2_00}),
        (
            [Campaign("half", items=frozenset({"milk"}), multiplier=Decimal("1.5")), DOUBLE],
            {"double": 2_00},
            {"double": 2_00, "half": 40},
        ),
        # Best: milk earns three times its points. That is 0.80 more than two times, as for the rest of the invoice.
        ([ITEM, DOUBLE], {"double": 2_00, "milk": 80 + 10}, {"double": 2_00, "milk": 1_60 + 10}),
        ([ITEM, OTHER], {"milk": 1_60, "dairy": 30}, {"milk": 1_60 + 10, "dairy": 80 + 30}),
    ],
)
def test_the_programme_says_how_campaigns_combine(campaigns, best, everything):
    """Best uses the highest multiplier for each line and the largest bonus for an invoice. All adds everything."""
    assert {"base": 2_00, **best} == earned(programme(*campaigns))
    assert {"base": 2_00, **everything} == earned(programme(*campaigns, combining=Combining.ALL))


def test_the_parts_do_not_depend_on_the_number_of_lines():
    """The money of an item is summed before it is rounded. One line of 1.00 is the same as two lines of 0.50."""
    campaigns = [Campaign(name, items=frozenset({"milk"}), multiplier=Decimal("1.25")) for name in "ab"]
    rules = programme(*campaigns, combining=Combining.ALL)

    def milk(*values):
        lines = tuple(Line("milk", Decimal(value)) for value in values)
        return Purchase(MONDAY_NOON, "1", Decimal(1), lines=lines)

    assert {"base": 2, "a": 1} == earned(rules, milk("1.00")) == earned(rules, milk("0.50", "0.50"))


def test_a_free_item_earns_no_bonus():
    """Free milk matches the campaign, and earns nothing."""
    free = Purchase(MONDAY_NOON, "1", Decimal(60), lines=(Line("milk", Decimal(0)), BREAD))

    assert {"base": 1_20} == earned(programme(ITEM), free)


def test_a_free_invoice_earns_nothing():
    """It earns no bonus either. An invoice that is worth too little for a point has its base of 0."""
    assert 0 == accrual(Purchase(1, "1", Decimal(0)), programme(Campaign("c", bonus=50))).points
    assert {"base": 0} == earned(programme(), Purchase(1, "1", Decimal("0.01")))


def test_one_invoice_earns_a_hundred_billion_points_at_most():
    """The total fits into the records for any amount and any programme."""
    rules = programme(Campaign("c", multiplier=Decimal(100)), loyalty_factor=Decimal(100))

    assert 10**13 == accrual(Purchase(1, "1", Decimal("99999999999.99")), rules).points
    assert {"base": 10**13 - 1, "c": 1} == earned(rules, Purchase(1, "1", Decimal("999999999.9999")))


def test_an_invoice_never_earns_less_than_0():
    """Four campaigns with the multiplier 0 on the milk would take 3.20 of the 2.00 points."""
    campaigns = [Campaign(name, items=frozenset({"milk"}), multiplier=Decimal(0)) for name in "abcd"]

    assert 0 == accrual(BASKET, programme(*campaigns, combining=Combining.ALL)).points


def test_excluded_items_do_not_earn():
    """Their lines count for neither the base, the tier nor a campaign. A part of the points says what was excluded."""
    rules = programme(
        Campaign("triple", items=frozenset({"milk"}), multiplier=Decimal(3)),
        Campaign("welcome", items=frozenset({"milk"}), bonus=1_00),
        excluded_items=frozenset({"milk"}),
        tiers=(Tier("gold", 1, Decimal(2)),),
    )

    assert {"base": 2_00, "excluded-items": -80, "gold": 1_20} == earned(rules, tier="gold")
    everything = replace(rules, excluded_items=frozenset({"milk", "bread"}), campaigns=(Campaign("all", bonus=1_00),))
    assert {"base": 2_00, "excluded-items": -2_00} == earned(everything, tier="gold")


def test_the_taxable_amount_earns_if_the_programme_says_so():
    """An invoice without a taxable amount earns by its total."""
    rules = programme(tax_basis=TaxBasis.TAXABLE, tiers=(Tier("gold", 1, Decimal(2)),))
    taxed = replace(BASKET, taxable_amount=Decimal(80))

    assert {"base": 2_00, "tax": -40, "gold": 1_60} == earned(rules, taxed, "gold")
    assert {"base": 2_00, "gold": 2_00} == earned(rules, BASKET, "gold")
    assert {"base": 2_00} == earned(programme(), taxed)


@pytest.mark.parametrize(("minimum", "points"), [(60, 2_20), ("60.01", 0)])
def test_a_minimum_spend_counts_what_can_earn(minimum, points):
    """100.00 less 40.00 of excluded milk are 60.00. Below the minimum, tier and bonus do not count either."""
    rules = programme(
        Campaign("welcome", bonus=1_00),
        excluded_items=frozenset({"milk"}),
        minimum_spend=Decimal(minimum),
    )

    assert points == sum(earned(rules).values())
    assert points or {"base": 2_00, "excluded-items": -80, "minimum-spend": -1_20} == earned(rules)


def test_caps_of_an_invoice_and_of_a_day():
    """The smaller cap decides. The points of other purchases of the day count against the cap per day."""
    rules = programme(Campaign("double", multiplier=Decimal(2)), cap_per_invoice=3_00, cap_per_day=5_00)

    assert {"base": 2_00, "double": 2_00, "cap-per-invoice": -1_00} == earned(rules)
    assert {"base": 2_00} == earned(programme(cap_per_invoice=2_00))
    for earned_today, points in (0, 3_00), (3_00, 2_00), (5_00, 0), (9_00, 0):
        result = accrual(BASKET, rules, "", earned_today)
        assert points == result.points == sum(part.points for part in result.parts)


@pytest.mark.parametrize("combining", Combining)
@pytest.mark.parametrize(("items", "lost"), [({"milk"}, 80), ((), 2_00)])
def test_a_multiplier_of_0_earns_nothing(combining, items, lost):
    """The lines of an item campaign earn nothing, or the whole invoice if the campaign has no items."""
    rules = programme(Campaign("none", items=frozenset(items), multiplier=Decimal(0)), combining=combining)

    assert {"base": 2_00, "none": -lost} == earned(rules)
    assert 2_00 - lost == accrual(BASKET, rules).points


@pytest.mark.parametrize(
    "purchase",
    [
        replace(BASKET, total_amount=Decimal(0), taxable_amount=Decimal(5)),
        replace(BASKET, total_amount=Decimal(0), lines=(Line("milk", Decimal(-40)), Line("bread", Decimal(40)))),
    ],
    ids=["taxable amount", "excluded discount"],
)
def test_an_invoice_with_the_total_0_earns_nothing(purchase):
    """Also if something is left of it by its taxable amount, or without an excluded item."""
    rules = programme(Campaign("bonus", bonus=5_00), tax_basis=TaxBasis.TAXABLE, excluded_items=frozenset({"milk"}))

    assert 0 == accrual(purchase, rules).points
