"""Checks before a command is submitted: does the customer exist, and whose redemption is it?"""

import time
from typing import Any

from fastapi import Request

from api.commands.decisions import Decisions, at_most
from api.commands.problems import CardInUse, RedemptionPending, TargetReplaced, UnknownRedemption, UnknownTarget
from api.http.problems import Problem
from api.routing.lookup import Lookup
from api.routing.problems import UnknownCustomer
from api.security.permissions import caller_of
from services.codecs.records import PENDING
from services.domain.events import Adjust, Block, Capture, Command, Merge, Replace, Reserve, Transfer, Unblock, Void
from services.state_stores import catalogue
from services.state_stores.materialiser import LocalStores

_LOOKUP_SECONDS = 0.6
"""The part of ``decisions.GRACE_SECONDS`` for these lookups, before the command is written. It is enough to ask a
standby if the owner accepts no connection.
"""


class Preconditions:
    """Reads other records that decide whether a command can be submitted."""

    def __init__(self, stores: LocalStores, lookup: Lookup, decisions: Decisions) -> None:
        self._balances = stores.by_name[catalogue.BALANCES]
        self._lookup = lookup
        self._decisions = decisions

    async def require_accounts(self, command: Command, card: str, deadline: float) -> None:
        """Raise Problem if an account is missing that the command needs, or if a new card already has an account."""
        if _needs_account(command):
            await self._require_customer(command, card, deadline)
        if isinstance(command, Replace) and command.counterparty != card:
            await self._require_target(command, deadline)

    async def _require_customer(self, command: Command, card: str, deadline: float) -> None:
        """Raise UnknownCustomer if the card has no balance. Otherwise the loyalty query would open an account for it.

        No instance may know whether the card has a balance. Then the API sends a command that takes points, because the
        loyalty query refuses it if there are not enough points. The loyalty query does not refuse other commands, so
        they raise Problem.
        """
        try:
            balance = await self._balance(card, deadline)
        except Problem:
            if _takes_points(command):
                return
            raise
        if balance is None:
            raise UnknownCustomer

    async def _require_target(self, command: Replace, deadline: float) -> None:
        """Raise Problem if the target of a replacement has an account, or the target of a merge has none.

        The loyalty query accepts both cases, because the target may get an account at any moment.
        """
        balance = await self._balance(command.counterparty, deadline)
        if balance and balance.get("MovedTo"):
            raise TargetReplaced(newCard=balance["MovedTo"])
        if isinstance(command, Merge) != (balance is not None):
            raise CardInUse if balance else UnknownTarget

    async def _balance(self, card: str, deadline: float) -> dict[str, Any] | None:
        """The balance of a card; None if the card has none. Raises Problem if no instance knows."""
        with at_most(deadline + _LOOKUP_SECONDS - time.monotonic(), self._balances, card):
            return (await self._lookup.known_value_of(catalogue.BALANCES, card)).value

    async def card_of_redemption(self, request: Request, command: Command, deadline: float) -> str:
        """The customer of the redemption that a command ends. Raises Problem."""
        redemption = None
        if isinstance(command, Capture | Void):
            # A client may end a redemption that is still pending.
            left = max(0.0, deadline - time.monotonic())
            redemption = await self._decisions.find(command.redemption_id, left, left + _LOOKUP_SECONDS)
        if redemption is None or redemption["Kind"] != "reserve":
            raise UnknownRedemption
        if redemption["Status"] == PENDING:
            raise RedemptionPending
        card: str = redemption["CustomerCardNo"]
        caller_of(request).require_card(card)
        return card


def _takes_points(command: Command) -> bool:
    """Whether the loyalty query refuses the command if the card has not enough points."""
    takes = isinstance(command, Adjust) and command.points < 0 and not command.allow_negative
    return takes or isinstance(command, Reserve | Transfer)


def _needs_account(command: Command) -> bool:
    """Whether the API refuses the command for a card without an account."""
    return _takes_points(command) or isinstance(command, Block | Unblock | Replace)
