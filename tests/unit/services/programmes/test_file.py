"""The programme file: the rules that it gives, and its errors."""

from dataclasses import fields
from datetime import date
from decimal import ROUND_DOWN, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain.programme import (
    DAY,
    MINUTE,
    BlockedCards,
    Campaign,
    Combining,
    Period,
    Programme,
    SpentReturns,
    TaxBasis,
    Tier,
    TimeBasis,
)
from services.programmes.file import ROUNDING, WEEKDAYS, ProgrammeError, parse_programme
from services.yaml_files.tree import Problem

EXAMPLE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "programme-example.yaml"
LEAST = "loyalty-factor: 0.02\n"
TIER = "tier-period: year\ntiers:\n"
CAMPAIGN = "campaigns:\n  - {name: a, multiplier: 2}\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ProgrammeError) as caught:
        parse_programme(text)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return str(caught.value).splitlines()


def problems_or_none(text: str) -> list[Problem] | None:
    try:
        parse_programme(text)
    except ProgrammeError as error:
        return list(error.problems)
    return None


def test_a_file_with_only_a_factor_has_the_defaults() -> None:
    assert Programme() == parse_programme(LEAST)


def test_every_key_becomes_its_rule() -> None:
    """Every value of the example becomes a rule with the right unit. The categories of a campaign become items."""
    expected = Programme(
        loyalty_factor=Decimal("0.02"),
        customer_types=frozenset({"PRIME"}),
        time_zone="Asia/Kolkata",
        pending=3 * DAY,
        valid_for=365 * DAY,
        expiry_notice=14 * DAY,
        reserve_for=15 * MINUTE,
        return_window=30 * DAY,
        spent_returns=SpentReturns.WITHIN_BALANCE,
        tier_period=Period.QUARTER,
        tiers=(Tier("silver", 10_000, Decimal("1.25")), Tier("gold", 50_000, Decimal("1.5"))),
        combining=Combining.BEST,
        campaigns=(
            Campaign("diwali", first_day=date(2026, 11, 1), last_day=date(2026, 11, 14), multiplier=Decimal(2)),
            Campaign(
                "happy hour",
                weekdays=frozenset({0, 1, 2, 3}),
                hours=(17, 20),
                stores=frozenset({"STR1534", "STR7188"}),
                items=frozenset({"1001", "1002", "1003", "2001", "2002"}),
                multiplier=Decimal(3),
            ),
            Campaign("new oven", items=frozenset({"2002"}), bonus=500),
        ),
        excluded_items=frozenset({"9001", "7001", "7002"}),
        minimum_spend=Decimal("50.00"),
        cap_per_invoice=200_00,
        cap_per_day=500_00,
        time_basis=TimeBasis.TILL,
        largest_backdating=2 * DAY,
    )
    assert expected == parse_programme(EXAMPLE.read_text(encoding="utf-8"))


def test_keys_that_the_example_does_not_use_give_their_values() -> None:
    text = (
        "loyalty-factor: 1.000001\nrounding: down\ncustomer-types: [prime, Gold]\nvalid-for: never\n"
        "spent-returns: negative-allowed\ncombining: all\nreserve-for: P1D\nreturn-window: PT0S\npending: P1W\n"
        "blocked-cards: earn-nothing\n"
        "time-basis: broker\n"
        "tax-basis: taxable\ncampaigns: [{name: none, multiplier: 0}]\n"
    )
    expected = Programme(
        loyalty_factor=Decimal("1.000001"),
        rounding=ROUND_DOWN,
        customer_types=frozenset({"PRIME", "GOLD"}),
        spent_returns=SpentReturns.NEGATIVE_ALLOWED,
        combining=Combining.ALL,
        reserve_for=DAY,
        return_window=0,
        pending=7 * DAY,
        tax_basis=TaxBasis.TAXABLE,
        blocked_cards=BlockedCards.EARN_NOTHING,
        campaigns=(Campaign("none", multiplier=Decimal(0)),),
    )
    assert expected == parse_programme(text)


def test_campaigns_with_the_same_categories_share_one_set_of_items() -> None:
    """Without this, a small file with many campaigns of one large category would need gigabytes."""
    rules = parse_programme(
        LEAST + "categories: {dairy: [1, 2], bread: [3]}\nexcluded-categories: [bread]\ncampaigns:\n"
        "- {name: a, categories: [dairy], bonus: 1}\n- {name: b, categories: [dairy], bonus: 2}\n"
        "- {name: c, categories: [dairy], items: [4], bonus: 3}\n"
    )
    first, second, third = (campaign.items for campaign in rules.campaigns)

    assert (frozenset("12"), frozenset("124"), frozenset("3")) == (first, third, rules.excluded_items)
    assert first is second


def test_every_rule_of_the_domain_has_its_key() -> None:
    """A rule without a key would always have its default value."""
    unknown = problems(LEAST + "nothing: 1\n")[0]
    known = set(unknown.partition("Allowed keys: ")[2].split(", "))
    rules = {field.name.replace("_", "-") for field in fields(Programme)} - {"version", "effective-time"}
    assert rules | {"categories", "excluded-categories"} == known


@given(st.decimals("0", "100", places=6, allow_nan=False))
def test_numbers_are_exact(factor: Decimal) -> None:
    """The factor is the decimal in the file, and not a binary fraction close to it."""
    assert factor == parse_programme(f"loyalty-factor: {factor:f}").loyalty_factor
    assert factor == parse_programme(f"loyalty-factor: '{factor:f}'").loyalty_factor


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_modes_are_those_of_decimal(name: str) -> None:
    """Each name gives a mode that decimal knows."""
    assert Decimal(1) == Decimal("1.4").quantize(Decimal(1), parse_programme(f"{LEAST}rounding: {name}").rounding) - (
        name in ("up", "ceiling")
    )


@pytest.mark.parametrize(("name", "number"), WEEKDAYS.items())
def test_weekdays_have_the_numbers_of_datetime(name: str, number: int) -> None:
    """2026-11-23 is a Monday."""
    assert name == date(2026, 11, 23 + number).strftime("%A").lower()
    assert {number} == parse_programme(f"{LEAST}campaigns: [{{name: a, bonus: 1, weekdays: [{name}]}}]").campaigns[
        0
    ].weekdays


def test_all_problems_are_reported_at_once() -> None:
    """Wrong values, unknown, missing and duplicate keys, and contradictions are reported in the order of the lines."""
    text = """\
rounding: half_up
valid-for: P30D
pending: P30D
tier-period: year
tiers:
  - {name: gold, points: 500}
  - {name: gold, points: 100}
campains: []
rounding: down
campaigns:
  - name: a
    multiplier: 2
    categories: [dairy]
"""
    assert [
        "line 1: loyalty-factor: is missing",
        "line 1: rounding: 'half_up' is not known; allowed: half-up, half-down, half-even, up, down, ceiling, floor",
        "line 2: valid-for: points would expire before they can be spent, because pending is P30D",
        "line 7: tiers[1].points: must be more than the points of the previous tier",
        "line 7: tiers[1].name: 'gold' is used twice",
        "line 8: campains: unknown key. Did you mean campaigns?",
        "line 9: rounding: given twice, first in line 1",
        "line 13: campaigns[0].categories[0]: 'dairy' is not defined. Defined categories: none",
    ] == [line.partition(" Allowed keys")[0] for line in problems(text)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loyalty-factor: 100.1", "100.1 is not between 0 and 100"),
        ("loyalty-factor: -0.1", "-0.1 is not between"),
        ("loyalty-factor: 0.0000001", "more than 6 decimal places"),
        ("loyalty-factor: 1e-2", "'1e-2' is not a decimal number"),
        ("loyalty-factor: .02", "'.02' is not a decimal number"),
        ("loyalty-factor: 0x10", "is not a decimal number"),
        ("loyalty-factor: 1_000", "is not a decimal number"),
        ("loyalty-factor: ٣", "is not a decimal number"),
        ("loyalty-factor: .inf", "is not a decimal number"),
        ("loyalty-factor: 12:30", "'12:30' is not a decimal number"),
        ("loyalty-factor:", "has no value"),
        ("loyalty-factor: [0.02]", "must be a single value"),
        (LEAST + "pending: P1M", "P1M: months and years have no fixed length"),
        (LEAST + "valid-for: P1Y6M", "months and years have no fixed length"),
        (LEAST + "pending: 30 days", "'30 days' is not an ISO 8601 duration"),
        (LEAST + "pending: P", "is not an ISO 8601 duration"),
        (LEAST + "pending: P1DT", "is not an ISO 8601 duration"),
        (LEAST + "pending: P-1D", "is not an ISO 8601 duration"),
        (LEAST + "pending: P1.5D", "is not an ISO 8601 duration"),
        (LEAST + "pending: P99999999999999999999D", "is too long"),
        (LEAST + "pending: P367D", "P367D is not between P0D and P366D"),
        (LEAST + "valid-for: PT23H", "PT23H is not between P1D and"),
        (LEAST + "reserve-for: P2D", "P2D is not between PT1M and P1D"),
        (LEAST + "reserve-for: PT59S", "PT59S is not between PT1M and P1D"),
        (LEAST + "return-window: P731D", "not between P0D and P730D"),
        (LEAST + "expiry-notice: P7D", "points never expire without valid-for"),
        (LEAST + "valid-for: P7D\nexpiry-notice: P7D", "must be shorter than valid-for, which is P7D"),
        (LEAST + "valid-for: P1DT0.001S\nexpiry-notice: P2D", "must be shorter than valid-for, which is PT86400.001S"),
        (LEAST + "time-zone: Asia/Nowhere", "'Asia/Nowhere' is not a time zone"),
        (LEAST + "time-zone: ../etc/passwd", "is not a time zone"),
        (LEAST + "time-zone: Asia", "is not a time zone"),
        (LEAST + "time-zone: localtime", "'localtime' is not a time zone of the package tzdata, such as"),
        (LEAST + "time-zone: Factory", "is not a time zone"),
        (LEAST + "customer-types: []", "is an empty list"),
        (LEAST + "customer-types: PRIME", "must be a list"),
        (LEAST + "customer-types: [' PRIME']", "printable characters"),
        (LEAST + "spent-returns: negative", "allowed: within-balance, negative-allowed"),
        (LEAST + "tier-period: week", "allowed: month, quarter, half-year, year"),
        (LEAST + "tier-period: year", "tier-period: tiers is missing"),
        (LEAST + "tiers: [{name: a, points: 1}]", "tiers: tier-period is missing"),
        (LEAST + TIER + "  - {name: a, points: 0}", "tiers[0].points: 0 is not between 0.01 and"),
        (LEAST + TIER + "  - {name: a, points: 0.001}", "tiers[0].points: 0.001 is not between"),
        (LEAST + TIER + "  - {name: a, points: 1.001}", "more than 2 decimal places"),
        (LEAST + TIER + "  - {name: a, points: 1, multiplier: 0.9}", "0.9 is not between 1 and 100"),
        (LEAST + TIER + "  - {name: a, points: 1, multiplier: 1.0001}", "more than 3 decimal places"),
        (LEAST + TIER + "  - {name: a, points: 2}\n  - {name: b, points: 2}", "tiers[1].points: must be more"),
        (LEAST + TIER + "  - a", "tiers[0]: must be a map"),
        (
            LEAST + TIER + "  - {name: a, points: 1, benefits: x}",
            "tiers[0].benefits: unknown key. Allowed keys: name, po",
        ),
        (LEAST + "excluded-categories: [dairy]", "'dairy' is not defined. Defined categories: none"),
        (LEAST + "cap-per-day: 0", "0 is not between 0.01"),
        (LEAST + "minimum-spend: -1", "-1 is not between 0"),
        (LEAST + "tax-basis: net", "tax-basis"),
        (LEAST + "time-basis: shop", "time-basis"),
        (LEAST + "largest-backdating: P1D", "has no effect with the time basis broker"),
        (LEAST + "time-basis: till\nlargest-backdating: P91D", "largest-backdating"),
        (LEAST + "campaigns: [{name: a}]", "campaigns[0]: changes no points"),
        (LEAST + "campaigns: [{name: a, bonus: 1}, {name: a, bonus: 1}]", "campaigns[1].name: 'a' is used twice"),
        (LEAST + CAMPAIGN + "    first_day: 2026-01-01", "expected"),
        (LEAST + "campaigns: [{name: a, bonus: 1, first-day: 2026-02-30}]", "'2026-02-30' is not a day"),
        (LEAST + "campaigns: [{name: a, bonus: 1, first-day: 20260201}]", "'20260201' is not a day"),
        (
            LEAST + "campaigns: [{name: a, bonus: 1, first-day: 2026-02-02, last-day: 2026-02-01}]",
            "is before first-day",
        ),
        (LEAST + "campaigns: [{name: a, bonus: 1, hours: 17:30-20:00}]", "is not a range of full hours"),
        (LEAST + "campaigns: [{name: a, bonus: 1, hours: 22:00-2:00}]", "Write two campaigns"),
        (LEAST + "campaigns: [{name: a, bonus: 1, hours: 9:00-25:00}]", "does not end later on the same day"),
        (LEAST + "campaigns: [{name: a, bonus: 1, hours: 9:00-9:00}]", "does not end later on the same day"),
        (LEAST + "campaigns: [{name: a, bonus: 1, weekdays: [mon]}]", "allowed: monday, tuesday"),
        (LEAST + "campaigns: [{name: a, bonus: 1, stores: []}]", "stores: is an empty list"),
        (LEAST + "campaigns: [{name: a, bonus: 0.00}]", "0.00 is not between 0.01 and 1000000"),
        (
            LEAST + "categories: {a: [x]}\ncampaigns: [{name: a, bonus: 1, categories: [b]}]",
            "'b' is not defined. Defined categories: a",
        ),
        (LEAST + "categories: {a: []}", "categories.a: is an empty list"),
        (LEAST + "? [a, b]\n: c", "a key must be a single word"),
        (LEAST + "a: &x 1\nb: *x", "anchors (&) and aliases (*) are not allowed"),
        (LEAST + "a: !!python/object:os.system x", "tags (!) are not allowed"),
        (LEAST + "a: [", "cannot be read: while parsing"),
        (LEAST + r'a: "\U00110000"', "an escape names no character"),
        (LEAST + r'a: "\UFFFFFFFF"', "an escape names no character"),
        (LEAST + "a: \x07", "line 2: cannot be read: a character is not printable"),
        ("---\na: 1\n---\nb: 1\n", "expected a single document"),
        ("- a", "line 1: must be a map"),
        ("", "line 1: loyalty-factor: is missing"),
        ("[" * 10_000, "nested too deeply"),
        ("a: " + "x" * 300_000, "more than 256 KiB"),
    ],
    ids=lambda text: text[:120],
)
def test_an_invalid_file_is_refused_with_the_reason(text: str, says: str) -> None:
    """One problem of the file says what is wrong or what is allowed."""
    found = problems(text)
    assert 1 == len([line for line in found if says in line]), found


@given(st.text(max_size=300))
def test_any_text_gives_a_programme_or_problems(text: str) -> None:
    """Any text gives a programme, or ProgrammeError with at least one problem."""
    assert problems_or_none(text) != []


TREES = st.recursive(
    st.sampled_from(["", "x", "P1D", "0.5", "2026-01-01", "monday", "9:00-10:00", "never"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "points", "multiplier", "bonus", "hours", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


def flow(tree: object) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {flow(value)}" for key, value in tree.items()) + "}"
    return "[" + ", ".join(map(flow, tree)) + "]" if isinstance(tree, list) else f'"{tree}"'


@given(
    st.dictionaries(
        st.sampled_from([field.name.replace("_", "-") for field in fields(Programme)] + ["categories"]), TREES
    )
)
def test_any_shape_gives_a_programme_or_problems(file: dict[str, object]) -> None:
    """Known keys with values of any shape do the same. Each problem has a line of the file."""
    text = "\n".join(f"{key}: {flow(value)}" for key, value in file.items())
    found = problems_or_none(text)
    assert found != []
    assert all(1 <= problem.line <= max(1, len(file)) for problem in found or ())


def test_a_campaign_can_last_one_day() -> None:
    parsed = parse_programme(LEAST + "campaigns: [{name: a, bonus: 1, first-day: 2026-02-02, last-day: 2026-02-02}]")

    (campaign,) = parsed.campaigns
    assert date(2026, 2, 2) == campaign.first_day == campaign.last_day
