"""The audit accepts what an older release, or the format of a record, cannot keep."""

from dataclasses import replace
from decimal import Decimal

from services.audit.facts import Source
from services.codecs.records import entry_from_notification, notification_record
from services.domain.account.model import PastPurchase
from services.domain.events import Line, Purchase
from services.domain.programme import DAY, Period, Programme, Programmes, Tier
from tests.support.account_histories import CARD, START, processed
from tests.unit.services.audit.facts_and_differences import EVERYTHING, PROGRAMMES, balance, facts_of, found, judged

STANDING = ("NextExpiryTime", "NextExpiryPoints", "Blocked", "MovedTo")


def test_an_exchange_in_an_older_checkpoint_is_no_difference():
    """The checkpoint does not say that the return is the half of an exchange. Only an account without the other half
    needs that.
    """
    bought = Purchase(START + 1, "I1", Decimal(100), lines=(Line("sofa", Decimal(100)),))
    lines = (Line("sofa", Decimal(-100)), Line("bed", Decimal(150)))
    exchanged = Purchase(START + 2, "I2", Decimal(50), original_invoice_number="I1", lines=lines)
    facts = facts_of(processed([[bought], [exchanged]], PROGRAMMES))
    facts.state.returns["I2"] = facts.state.returns["I2"]._replace(is_half=False)
    assert [] == found(facts, coverage=replace(EVERYTHING, now=START + 3))


def test_what_release_0_1_did_not_keep_is_no_difference():
    """Its accounts have no items, and keep returns as purchases of 0. Its entries give no reason of a return."""
    bought = Purchase(START, "I1", Decimal(100), lines=(Line("sofa", Decimal(100)),))
    returned = Purchase(
        START + 1, "I2", Decimal(-40), original_invoice_number="I1", lines=(Line("sofa", Decimal(-40)),)
    )
    unknown = Purchase(START + 2, "I3", Decimal(-40), original_invoice_number="I0")
    facts = facts_of(processed([[bought], [returned], [unknown]], PROGRAMMES))
    for entries in facts.recorded.values():
        entries[:] = [replace(entry, reason="") for entry in entries]
    state = facts.state
    facts.state = replace(
        state,
        purchases={number: past._replace(items=None) for number, past in state.purchases.items()}
        | {number: PastPurchase(past.append_time, Decimal(0), 0, 0) for number, past in state.returns.items()},
        returns={},
    )

    soon = replace(EVERYTHING, now=START + DAY)
    assert [] == found(facts, coverage=soon)
    facts.state.purchases["I1"] = facts.state.purchases["I1"]._replace(earned=1)
    assert [Source.STATE] == [each.where for each in found(facts, coverage=soon)]


def test_the_start_of_a_period_of_release_0_1_is_no_difference():
    """Release 0.1 kept the start of the calendar's period, and not the time of the first purchase that counted."""
    programmes = Programmes((Programme(tier_period=Period.YEAR, tiers=(Tier("silver", 1_00),)),))
    facts = facts_of(processed([[Purchase(START, "I1", Decimal(100))]], programmes))
    soon = replace(EVERYTHING, now=START + 1)
    facts.state = replace(facts.state, period_start=START - 1)
    assert [] == found(facts, programmes, soon)

    facts.state = replace(facts.state, period_start=START + 1)
    assert [Source.STATE] == [each.where for each in found(facts, programmes, soon)]


def test_the_period_of_a_late_purchase_is_no_difference_if_release_0_1_read_it():
    """Release 0.1 did not keep it. If the account has a period, it must be the right one."""
    programmes = Programmes((Programme(tier_period=Period.MONTH, tiers=(Tier("silver", 1_00),)),))
    facts = facts_of(
        processed(
            [[Purchase(START + 40 * DAY, "I1", Decimal(100))], [Purchase(START, "late", Decimal(100))]], programmes
        )
    )
    soon, late = replace(EVERYTHING, now=START + 41 * DAY), facts.state.purchases["late"]
    assert late.counted_until == facts.state.period_end
    for period, expected in ((0, []), (late.counted_until, []), (late.counted_until + 1, [Source.STATE])):
        facts.state.purchases["late"] = late._replace(items=None, counted_until=period)
        assert expected == [each.where for each in found(facts, programmes, soon)]


def test_the_state_of_release_0_1_lacks_purchases_whose_window_is_over():
    """It forgot them at once. A younger purchase must not be missing."""
    old, young = Purchase(START, "old", Decimal(100)), Purchase(START + 50 * DAY, "young", Decimal(100))
    history = processed(
        [[old], [young], [replace(young, append_time=START + 95 * DAY, invoice_number="new")]], PROGRAMMES
    )
    facts, coverage = facts_of(history), replace(EVERYTHING, now=START + 96 * DAY)
    purchases = facts.state.purchases
    assert "old" in purchases

    facts.state = replace(facts.state, purchases={each: purchases[each] for each in ("young", "new")})
    assert [] == found(facts, coverage=coverage)
    facts.state = replace(facts.state, purchases={"new": purchases["new"]})
    assert [Source.STATE] == [each.where for each in found(facts, coverage=coverage)]


def test_a_wrong_expiry_is_found_unless_the_balance_is_older_than_the_field(facts, three):
    """Balances of release 0.1 do not show the next expiry and the block. Without events, no source has them."""
    facts.balance = {**facts.balance, "NextExpiryPoints": "1.00", "Blocked": True}
    (difference,) = found(facts)
    assert "of sequence 3: NextExpiryPoints is 1.00 and should be 0.00, Blocked is True and should be False" == (
        difference.what
    )

    facts.balance = {name: value for name, value in balance(three.entries[-1]).items() if name not in STANDING}
    assert [] == found(facts)
    facts.balance = balance(three.entries[-1])
    facts.events = []
    assert (False, False, []) == judged(facts, PROGRAMMES, replace(EVERYTHING, events_from=START + 99))


def test_sums_that_no_double_has_are_no_difference():
    """The till computes 3 * 1.1 in doubles. The record of an exchange has the sum of its lines as a double, too."""
    lines = (Line("a", Decimal(-50)), Line("b", Decimal(repr(3 * 1.1))), Line("c", Decimal("59.9")))
    purchase = Purchase(START + 1, "I1", Decimal(100))
    exchange = Purchase(START + 2, "I2", Decimal("13.2"), original_invoice_number="I1", lines=lines)
    history = processed([[purchase, exchange]], PROGRAMMES)
    facts = facts_of(history)
    facts.recorded = {
        source: [entry_from_notification(notification_record(CARD, entry)) for entry in entries]
        for source, entries in facts.recorded.items()
    }
    assert [] == found(facts)
