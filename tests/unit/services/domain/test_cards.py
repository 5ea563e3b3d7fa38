"""The helpdesk blocks and unblocks cards. The balance shows the block and the next expiry."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given

from services.domain.account.lots import Terms
from services.domain.account.model import Account
from services.domain.account.processor import advance, process
from services.domain.entries import BalanceDetails, Kind, Refusal
from services.domain.events import Adjust, Block, Capture, Purchase, Receive, Reserve, SentLot, Transfer, Unblock
from services.domain.programme import DAY, BlockedCards, Programme, Programmes
from tests.support.strategies import ACCOUNT_EVENTS, PROGRAMMES

BOUGHT = Purchase(1, "bought", Decimal(500))
"""Earns 10.00 points."""
BLOCK = Block(append_time=3, command_id="block", reason="lost", actor="clerk")
UNBLOCK = Unblock(append_time=5, command_id="unblock")


def after(*events, programme=None):
    return process(None, [BOUGHT, *events], Programmes((programme or Programme(),)), "card")


@pytest.mark.parametrize(
    "command",
    [
        Reserve(append_time=4, command_id="C", points=1_00),
        Transfer(append_time=4, command_id="C", points=1_00, counterparty="other"),
    ],
)
def test_points_of_a_blocked_card_cannot_leave_until_it_is_unblocked(command):
    """A redemption and a transfer are refused with an entry. The same command succeeds after the card is unblocked."""
    refused = after(BLOCK, command)
    assert Refusal.CARD_BLOCKED == refused.decisions[-1].refusal == refused.entries[-1].reason
    assert (10_00, 10_00, []) == (refused.account.total, refused.account.available, refused.credits)

    accepted = after(BLOCK, UNBLOCK, replace(command, append_time=6))
    assert [None] * 3 == [decision.refusal for decision in accepted.decisions]
    assert 9_00 == accepted.account.available


def test_points_arrive_on_a_blocked_card_and_what_was_reserved_is_captured():
    """Goods that were handed over before the block are paid. Purchases, corrections and transfers to the card count."""
    outcome = after(
        Reserve(append_time=2, command_id="R", points=4_00),
        BLOCK,
        Capture(append_time=4, command_id="C", redemption_id="R"),
        Adjust(append_time=5, command_id="A", points=50),
        Receive(append_time=6, command_id="T/in", counterparty="other", lots=(SentLot(25, 0),)),
        replace(BOUGHT, append_time=7, invoice_number="next"),
    )

    assert {None} == {decision.refusal for decision in outcome.decisions}
    assert 10_00 - 4_00 + 50 + 25 + 10_00 == outcome.account.total
    assert outcome.account.is_blocked


def test_a_programme_decides_whether_a_blocked_card_earns():
    """With earn-nothing the purchase is an entry of 0 points that says why. A return of it takes nothing back."""
    programme = Programme(blocked_cards=BlockedCards.EARN_NOTHING)
    outcome = after(
        BLOCK,
        replace(BOUGHT, append_time=4, invoice_number="blocked"),
        Purchase(5, "return", Decimal(-500), original_invoice_number="blocked"),
        programme=programme,
    )

    earned = [(entry.points, entry.reason) for entry in outcome.entries if entry.kind == Kind.EARNED]
    assert [(10_00, ""), (0, "card-blocked")] == earned
    assert 10_00 == outcome.account.total


def test_each_block_has_an_entry_with_its_reason():
    """A second block of the same card gives a new reason. The entries show who blocked the card."""
    again = replace(BLOCK, append_time=4, command_id="again", reason="found in a shop")
    entries = after(BLOCK, again, UNBLOCK).entries[1:]

    assert [(Kind.BLOCKED, "lost"), (Kind.BLOCKED, "found in a shop"), (Kind.UNBLOCKED, "")] == [
        (entry.kind, entry.reason) for entry in entries
    ]
    assert [True, True, False] == [entry.balance_details.is_blocked for entry in entries]
    assert "clerk" == entries[0].actor


def test_the_next_expiry_is_that_of_the_points_that_expire_first():
    """Points with the same time add up, pending points included.

    Points that never expire, and reserved points, do not count.
    """
    lots = {Terms(5 * DAY): 1_00, Terms(5 * DAY, 2 * DAY): 50, Terms(9 * DAY): 3_00, Terms(): 7_00}
    assert BalanceDetails(5 * DAY, 1_50, is_blocked=False) == Account(1, lots=lots).balance_details

    outcome = process(
        Account(1, lots=lots), [Reserve(append_time=2, command_id="R", points=1_00)], Programmes(), "card"
    )
    assert BalanceDetails(5 * DAY, 50) == outcome.entries[-1].balance_details
    assert BalanceDetails() == Account(1, lots={Terms(): 7_00}).balance_details == Account(1).balance_details


@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_the_shown_expiry_is_the_one_that_happens(events, programmes):
    """If nothing else happens, the next entry of an expiry has the shown time and the shown points."""
    account = process(None, events, programmes, "card").account
    if account is None or account.reservations:
        return
    time, points = account.balance_details[:2]
    later = advance(account, time, programmes).entries if time else []
    assert points == -sum(entry.points for entry in later if entry.kind == Kind.EXPIRED)
