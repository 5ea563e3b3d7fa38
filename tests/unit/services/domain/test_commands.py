"""The effects of commands on an account."""

from dataclasses import replace
from decimal import Decimal

import pytest

from schemas.topics import LOYALTY_COMMANDS
from services.codecs.events import command_record
from services.domain.account.commands import MOST_RESERVATIONS
from services.domain.account.lots import Terms
from services.domain.account.model import LARGEST_RETURNED_TOTAL, LARGEST_TOTAL, Account, Reservation
from services.domain.account.processor import process
from services.domain.accrual import MOST_EARNED
from services.domain.entries import Credit, Kind, Refusal
from services.domain.events import Adjust, Capture, Erase, Import, Purchase, Receive, Reserve, SentLot, Transfer, Void
from services.domain.formats import LAST_TIME
from services.domain.programme import DAY, MINUTE, Programme, Programmes, Tier
from services.domain.validation import LONGEST_REASON, LONGEST_TEXT, MOST_LINE_ITEMS
from services.messaging.avro import record_encoder

BOUGHT = Purchase(1, "bought", Decimal(500))
"""Earns 10.00 points."""


def reserve(points, command_id="redemption", time=2):
    return Reserve(append_time=time, command_id=command_id, points=points)


def capture(command_id="capture", redemption_id="redemption", time=3):
    return Capture(append_time=time, command_id=command_id, redemption_id=redemption_id)


def void(command_id="void", redemption_id="redemption", time=3):
    return Void(append_time=time, command_id=command_id, redemption_id=redemption_id)


def transfer(points, to="other", time=2):
    return Transfer(append_time=time, command_id="transfer", points=points, counterparty=to)


def after(*events, programme=None):
    return process(None, [BOUGHT, *events], Programmes((programme or Programme(),)), "card")


def last(outcome):
    entry = outcome.entries[-1]
    return entry.kind, entry.points, entry.available, entry.reserved


def test_reserve_sets_aside_and_capture_spends():
    """A reservation does not change the total. A capture takes the reserved points, and its decision shows how many."""
    assert (Kind.RESERVED, 0, 6_00, 4_00) == last(after(reserve(4_00)))
    outcome = after(reserve(4_00), capture())

    assert (Kind.REDEEMED, -4_00, 6_00, 0) == last(outcome)
    assert [("reserve", 4_00), ("capture", -4_00)] == [(made.kind, made.points) for made in outcome.decisions]
    assert {"redemption"} == {made.redemption_id for made in outcome.decisions}
    hashed = after(replace(reserve(4_00), request_hash="hash"))
    assert "hash" == hashed.decisions[0].request_hash, "the API recognises a repeated request by it"
    assert 2 + 15 * MINUTE == outcome.decisions[0].expires_time == outcome.entries[1].expires_time


def test_void_frees_the_reserved_points():
    """After a void, all points can be spent again."""
    assert (Kind.VOIDED, 0, 10_00, 0) == last(after(reserve(4_00), void()))


@pytest.mark.parametrize("command", [capture("again", time=4), void("again", time=4), capture(redemption_id="other")])
@pytest.mark.parametrize("end", [capture("end"), void("end")])
def test_redemption_ends_once(command, end):
    """A redemption that is captured, void or unknown can be neither captured nor voided. The refusal is an entry."""
    outcome = after(reserve(4_00), end, command)

    refused = [(made.refusal, made.command_id) for made in outcome.decisions if made.refusal]
    assert [(Refusal.UNKNOWN_REDEMPTION, command.command_id)] == refused
    assert [command.command_id] == [entry.event_id for entry in outcome.entries if entry.kind == Kind.REFUSED]


def test_a_reservation_lapses_without_a_capture():
    """The lapse has its own entry at its exact time. A later capture is refused."""
    lapse = 2 + 15 * MINUTE
    assert [Kind.REDEEMED] == [after(reserve(4_00), capture(time=lapse - 1)).entries[-1].kind]
    outcome = after(reserve(4_00), capture(time=lapse))

    assert [Kind.LAPSED, Kind.REFUSED] == [entry.kind for entry in outcome.entries[2:]]
    assert (lapse, "redemption") == (outcome.entries[2].time, outcome.entries[2].event_id)


@pytest.mark.parametrize(
    "command",
    [reserve(6_01, "more", time=3), transfer(6_01, time=3), Adjust(append_time=3, command_id="adjust", points=-6_01)],
)
def test_more_than_is_available_is_refused(command):
    """Reserved points are not available. A refusal moves no points. A customer without an account has none."""
    outcome = after(reserve(4_00), command)
    assert (Kind.REFUSED, 0, 6_00, 4_00) == last(outcome)
    assert Refusal.INSUFFICIENT_POINTS == outcome.decisions[-1].refusal == outcome.entries[-1].reason
    assert 0 == outcome.decisions[-1].points

    nobody = process(None, [command], Programmes(), "card")
    assert Refusal.INSUFFICIENT_POINTS == nobody.decisions[0].refusal


def with_open_redemptions(number):
    """An account with this number of open redemptions of 0.01 points, and 10.00 more points."""
    open_redemptions = {f"open-{each}": Reservation(DAY, {Terms(): 1}) for each in range(number)}
    return Account(1, lots={Terms(): 10_00}, reservations=open_redemptions)


def test_open_redemptions_have_a_limit():
    """The refusal moves no points. After the end of a redemption, the account accepts the next one."""
    one_less = with_open_redemptions(MOST_RESERVATIONS - 1)
    batch = [reserve(1), reserve(1, "further", time=3), void(time=4), reserve(1, "next", time=5)]
    outcome = process(one_less, batch, Programmes(), "card")

    assert [Kind.RESERVED, Kind.REFUSED, Kind.VOIDED, Kind.RESERVED] == [entry.kind for entry in outcome.entries]
    assert Refusal.TOO_MANY_REDEMPTIONS == outcome.decisions[1].refusal == outcome.entries[1].reason
    assert (0, 9_99, MOST_RESERVATIONS) == tuple(
        getattr(outcome.entries[1], name) for name in ("points", "available", "reserved")
    )
    poor = process(with_open_redemptions(MOST_RESERVATIONS), [reserve(10_01)], Programmes(), "card")
    assert Refusal.INSUFFICIENT_POINTS == poor.decisions[0].refusal


def test_an_account_above_the_limit_of_open_redemptions_continues():
    """It can have more from an earlier version or a merge. They can be captured, voided or lapse."""
    above = with_open_redemptions(MOST_RESERVATIONS + 3)
    ends = [capture(redemption_id="open-0", time=2), void(redemption_id="open-1", time=3)]
    outcome = process(above, [*ends, reserve(1, time=4), BOUGHT, reserve(1, "later", DAY)], Programmes(), "card")

    lapses = [Kind.LAPSED] * (MOST_RESERVATIONS + 1)
    kinds = [Kind.EARNED, Kind.REDEEMED, Kind.VOIDED, Kind.REFUSED, *lapses, Kind.RESERVED]
    assert kinds == [entry.kind for entry in outcome.entries]


def test_command_is_decided_once():
    """A duplicate within ten days creates neither an entry nor a decision, whether the command was refused or not."""
    again = [reserve(99_00, "refused", time) for time in (2, 5, 2 + 10 * DAY)]
    outcome = after(reserve(4_00), reserve(4_00, time=3), *again)

    assert ["redemption", "refused"] == [made.command_id for made in outcome.decisions]


def test_a_repeated_reserve_does_not_reserve_again():
    """This is true for as long as the programme keeps a reservation."""
    outcome = after(reserve(4_00), reserve(4_00, time=11 * DAY), programme=Programme(reserve_for=30 * DAY))

    assert (6_00, 4_00) == (outcome.account.available, outcome.account.reserved)


@pytest.mark.parametrize(
    ("points", "allow_negative", "kind", "available"),
    [
        (5_00, False, Kind.ADJUSTED, 15_00),
        (-10_00, False, Kind.ADJUSTED, 0),
        (-10_01, False, Kind.REFUSED, 10_00),
        (-10_01, True, Kind.ADJUSTED, -1),
    ],
)
def test_an_adjustment_creates_a_debt_only_if_it_allows_one(points, allow_negative, kind, available):
    """The entry has its reason and actor."""
    command = Adjust(
        append_time=2,
        command_id="adjust",
        points=points,
        allow_negative=allow_negative,
        reason="goodwill",
        actor="desk 4",
    )
    outcome = after(command)
    entry = outcome.entries[-1]

    assert (kind, available, available) == (entry.kind, entry.available, outcome.account.total)
    assert ("desk 4", "adjust") == (entry.actor, entry.event_id)
    assert ("goodwill" if kind == Kind.ADJUSTED else "insufficient-points") == entry.reason


def test_the_points_of_an_adjustment_expire_like_earned_points():
    """They are never pending."""
    programme = Programme(valid_for=10 * DAY, pending=5 * DAY, expiry_notice=DAY)
    given = Adjust(append_time=DAY, command_id="adjust", points=1_00)
    outcome = after(given, programme=programme)

    assert 1_00 == outcome.account.lots[Terms(12 * DAY, 0, 11 * DAY)]
    assert (12 * DAY, 0) == (outcome.entries[-1].expires_time, outcome.decisions[-1].expires_time)


def test_transfer_keeps_expiry():
    """Points that expire soonest are sent first, and keep their expiry. The receiving account learns the sender."""
    programme = Programme(valid_for=10 * DAY)
    announced = replace(programme, expiry_notice=DAY)
    more = Purchase(3 * DAY, "more", Decimal(500))
    sent = replace(transfer(12_00, time=4 * DAY), reason="gift", actor="clerk")
    outcome = after(more, sent, programme=programme)
    credit = Credit("transfer/in", "other", (SentLot(10_00, 11 * DAY), SentLot(2_00, 14 * DAY)), "gift", "clerk")
    assert [credit] == outcome.credits
    assert "other" == outcome.entries[-1].counterparty

    received = Receive(append_time=5 * DAY, command_id=credit.command_id, counterparty="card", lots=credit.lots)
    there = process(None, [received], Programmes((programme,)), "other")
    assert {Terms(11 * DAY): 10_00, Terms(14 * DAY): 2_00} == there.account.lots
    assert (Kind.RECEIVED, 12_00, 12_00, 0) == last(there)
    assert ("card", 11 * DAY) == (there.entries[0].counterparty, there.entries[0].expires_time)
    assert [] == there.decisions
    there = process(None, [received], Programmes((announced,)), "other")
    assert {Terms(11 * DAY, 0, 10 * DAY): 10_00, Terms(14 * DAY, 0, 13 * DAY): 2_00} == there.account.lots


def test_received_points_that_expired_on_the_way_expire_at_once():
    """A transfer does not extend an expiry."""
    received = Receive(append_time=50, command_id="in", counterparty="card", lots=(SentLot(1_00, 40),))
    outcome = process(None, [received], Programmes(), "other")

    assert [(Kind.RECEIVED, 50), (Kind.EXPIRED, 50)] == [(entry.kind, entry.time) for entry in outcome.entries]
    assert 0 == outcome.account.total


def test_transfer_to_oneself_is_refused():
    """Such a transfer would change only the order in which points are spent."""
    assert Refusal.SAME_CUSTOMER == after(transfer(1_00, to="card")).decisions[0].refusal


def test_erasure_ends_the_account():
    """One entry takes all points, also reserved ones. The account keeps no command of the customer. The hash of a
    request stays, so a retry can be recognised.
    """
    erase = Erase(append_time=4, command_id="erase")
    outcome = after(reserve(4_00), Adjust(append_time=3, command_id="adjust", request_hash="hash", points=1), erase)

    assert outcome.account is None
    assert (Kind.ERASED, -10_01, 0, 0) == last(outcome)
    assert [("redemption", "reserve", ""), ("adjust", "adjust", "hash")] == outcome.forgotten
    assert ("erase", -10_01, 0) == (
        outcome.decisions[-1].kind,
        outcome.decisions[-1].points,
        outcome.decisions[-1].total,
    )


def test_an_erasure_reaches_the_other_cards():
    """The erasure is not sent back to the card that it came from. Its copies have no request hash."""
    erase = Erase(append_time=4, command_id="E", request_hash="hash", counterparty="first")
    outcome = process(Account(1, former_cards=("first", "second"), moved_to="new"), [erase], Programmes(), "card")

    following = [Erase(append_time=0, command_id=f"E/{number}/card", counterparty="card") for number in range(2)]
    assert list(zip(("new", "second"), following, strict=True)) == outcome.commands


def test_what_comes_after_an_erasure_opens_a_new_account():
    """Its sequence numbers start at 1, and its opened time is later, even in the same millisecond."""
    programme = Programme(tiers=(Tier("base", 0),))
    erase = Erase(append_time=1, command_id="erase")
    same_number = Purchase(2, "bought", Decimal(50))
    outcome = after(erase, transfer(1, time=1), same_number, programme=programme)
    assert [(1, 1), (1, 2), (1, 3)] == [(entry.opened_time, entry.sequence) for entry in outcome.entries[:3]]

    outcome = after(erase, same_number, programme=programme)
    entry = outcome.entries[-1]
    assert (2, 1, 1_00, 1_00, "base") == (entry.opened_time, entry.sequence, entry.points, entry.total, entry.tier)
    account = process(None, [replace(BOUGHT, append_time=9)], Programmes(), "card").account
    late = process(account, [erase, same_number], Programmes(), "card")
    assert [9, 10] == [entry.opened_time for entry in late.entries]
    again = after(erase, Erase(append_time=1, command_id="erase again"))
    assert [(1, 2), (2, 1)] == [(entry.opened_time, entry.sequence) for entry in again.entries[1:]]


@pytest.mark.parametrize("length", [125, 126, 128])
def test_the_credit_of_a_transfer_has_a_valid_id(length):
    """A credit with a longer id would become a dead letter, and the points would be lost."""
    transfer = Transfer(append_time=2, command_id="x" * length, points=100, counterparty="other")
    outcome = process(None, [Adjust(append_time=1, command_id="A", points=100), transfer], Programmes(), "card")

    assert [100] == [lot.points for credit in outcome.credits for lot in credit.lots]
    assert all(len(credit.command_id) <= LONGEST_TEXT for credit in outcome.credits)
    assert (length + len("/in") <= LONGEST_TEXT) == (f"{transfer.command_id}/in" == outcome.credits[0].command_id)


@pytest.mark.parametrize("expires_time", [LAST_TIME + 1, 2**63 - 1])
def test_received_points_expire_in_the_calendar(expires_time):
    """A later time would stop the query, because it does not fit into a timer. Lots of the same time become one."""
    lots = SentLot(100, expires_time), SentLot(50, LAST_TIME)
    receive = Receive(append_time=1, command_id="T/in", counterparty="other", lots=lots)
    outcome = process(None, [receive], Programmes(), "card")

    assert (LAST_TIME, {Terms(LAST_TIME): 150}) == (outcome.next_due, outcome.account.lots)


def test_totals_fit_into_the_records():
    """Adjustments and imports beyond the limit are refused. A purchase earns up to the limit, and never less than 0."""
    account, owing = full(LARGEST_TOTAL - 1), Account(1, debt=LARGEST_TOTAL - 1)
    for points in (1, 2):
        given = Adjust(append_time=2, command_id="A", points=points)
        taken = replace(given, points=-points, allow_negative=True)
        imported = Import(append_time=2, command_id="I", lots=(SentLot(points, 0),))
        for state, command in (account, given), (owing, taken), (account, imported):
            (entry,) = process(state, [command], Programmes(), "card").entries
            assert (Refusal.TOO_MANY_POINTS if points == 2 else "") == entry.reason

    for total, points in (LARGEST_TOTAL - 1, 1), (LARGEST_TOTAL + 1, 0):
        assert [points] == [entry.points for entry in process(full(total), [BOUGHT], Programmes(), "card").entries]


def full(points=LARGEST_TOTAL):
    return Account(1, lots={Terms(): points})


def receive(command_id="T/in", points=2_00, counterparty="sender"):
    return Receive(append_time=2, command_id=command_id, counterparty=counterparty, lots=(SentLot(points, 5 * DAY),))


def test_points_that_do_not_fit_go_back_to_their_sender():
    """A full account refuses a transfer. The sender gets the same lots, and the reason."""
    outcome = process(full(LARGEST_TOTAL - 1_99), [receive()], Programmes(), "card")

    (entry,) = outcome.entries
    assert (Kind.REFUSED, "too-many-points", 0, LARGEST_TOTAL - 1_99, "sender") == (
        *(entry.kind, entry.reason, entry.points, entry.total, entry.counterparty),
    )
    lots = (SentLot(2_00, 5 * DAY),)
    assert [Credit("T/in/back", "sender", lots, "too-many-points", "")] == outcome.credits
    assert (Kind.RECEIVED, 2_00) == last(process(full(LARGEST_TOTAL - 2_00), [receive()], Programmes(), "card"))[:2]


def test_returned_points_are_accepted_above_the_limit():
    """The sender may be full again by then. Only beyond nine times the limit the points go back once more."""
    back = receive("T/in/back", counterparty="card")
    accepted = process(full(), [back], Programmes(), "sender")
    again = process(full(LARGEST_RETURNED_TOTAL), [back], Programmes(), "sender")

    assert (LARGEST_TOTAL + 2_00, []) == (accepted.account.total, accepted.credits)
    assert [("T/in/back/back", "card")] == [(each.command_id, each.to_card) for each in again.credits]
    assert LARGEST_RETURNED_TOTAL == again.account.total


def test_a_refused_transfer_conserves_points():
    """Sender, receiver and sender again: the sum of both accounts stays, and the expiry times too."""
    lots = {Terms(5 * DAY): 3_00, Terms(): 4_00}
    sender = process(Account(1, lots=dict(lots)), [transfer(6_00)], Programmes(), "card")
    refused = process(full(), [_received(each, "card") for each in sender.credits], Programmes(), "other")
    back = process(sender.account, [_received(each, "other") for each in refused.credits], Programmes(), "card")

    assert (lots, LARGEST_TOTAL) == (back.account.lots, refused.account.total)
    assert [Kind.SENT, Kind.RECEIVED] == [entry.kind for entry in sender.entries + back.entries]
    assert 5 * DAY == back.entries[0].expires_time
    assert [] == back.credits


def _received(credit, sender):
    return Receive(
        append_time=3, command_id=credit.command_id, reason=credit.reason, counterparty=sender, lots=credit.lots
    )


def test_a_transfer_of_many_lots_becomes_several_commands():
    """A command with too many lots would become a dead letter, and the points would be lost."""
    lots = {Terms(day * DAY): 1 for day in range(10, MOST_LINE_ITEMS + 12)}
    command = Transfer(append_time=2, command_id="x" * 120, points=len(lots), counterparty="other")
    sent = process(Account(1, lots=lots), [command], Programmes(), "card").credits

    assert [MOST_LINE_ITEMS, 2] == [len(credit.lots) for credit in sent]
    assert len(lots) == sum(lot.points for credit in sent for lot in credit.lots)
    assert 2 == len({credit.command_id for credit in sent})
    assert all(len(credit.command_id) <= LONGEST_TEXT for credit in sent)


def test_the_largest_credit_fits_into_its_topic():
    """The longest texts and the most lots need less than half of the topic's limit."""
    longest = "\N{GRINNING FACE}" * LONGEST_TEXT
    reason = "\N{GRINNING FACE}" * LONGEST_REASON
    lots = tuple(SentLot(MOST_EARNED - 1, LAST_TIME - number) for number in range(MOST_LINE_ITEMS))
    encode = record_encoder("LoyaltyCommand", 1)
    command = Receive(
        append_time=1,
        command_id=longest,
        request_hash=longest,
        reason=reason,
        actor=longest,
        counterparty=longest,
        lots=lots,
    )
    record = command_record(longest, command) | {"Points": Decimal("9999999999.99"), "RedemptionID": longest}
    assert len(encode(record)) < LOYALTY_COMMANDS.largest_batch / 2


def test_an_adjustment_with_a_debt_takes_spendable_points_first():
    """The pending points expire sooner, but the customer cannot spend them yet."""
    pending, spendable = Terms(expires_time=50, available_time=40), Terms(expires_time=90)
    account = Account(1, lots={pending: 5_00, spendable: 5_00})
    taken = Adjust(append_time=2, command_id="A", points=-3_00, allow_negative=True)

    assert {pending: 5_00, spendable: 2_00} == process(account, [taken], Programmes(), "card").account.lots


def test_a_capture_cancels_only_the_debt_of_reserved_points():
    """The purchase pays 1.00 of the debt. Of the other 4.00, a return took 2.00 from the reserved points."""
    reserved = {"redemption": Reservation(99, {Terms(): 10_00})}
    account = Account(1, debt=5_00, reserved_debt=2_00, reservations=reserved)

    ended = process(
        account, [replace(BOUGHT, append_time=2, total_amount=Decimal(50)), capture()], Programmes(), "card"
    )

    assert (2_00, 0) == (ended.account.debt, ended.account.reserved_debt)


def test_a_capture_cancels_at_most_the_points_that_it_spends():
    """A return took the points of both redemptions, and an adjustment took 5.00 more. The other redemption is open."""
    reserved = {name: Reservation(99, {Terms(): points}) for name, points in (("redemption", 4_00), ("other", 6_00))}
    account = Account(1, debt=15_00, reserved_debt=10_00, reservations=reserved)

    ended = process(account, [capture()], Programmes(), "card")

    assert (11_00, 6_00) == (ended.account.debt, ended.account.reserved_debt)


def test_a_paid_debt_of_reserved_points_is_not_cancelled_later():
    """The purchase pays the debt of the return. A capture does not cancel the debt of a later adjustment."""
    reserved = {"redemption": Reservation(99, {Terms(): 10_00})}
    account = Account(1, debt=2_00, reserved_debt=2_00, reservations=reserved)
    taken = Adjust(append_time=3, command_id="A", points=-11_00, allow_negative=True)

    ended = process(account, [replace(BOUGHT, append_time=2), taken, capture(time=4)], Programmes(), "card")

    assert (3_00, -3_00) == (ended.account.debt, ended.account.total)
