"""Removes the cards and free texts of erased customers from entries. Amounts, times, codes and pseudonyms stay.

A token can have any claim sub: the card, another name of the customer, or the name of an employee. The ledger cannot
distinguish them. So an entry that loses its free text also loses every sub, and only ``BEARER_ACTOR`` stays. If the
sub is the card, the pseudonym replaces the whole actor, so that the audit sees why the text is gone. An API key is
never a customer, so no erasure removes the id of a key.
"""

from typing import Any

from sqlalchemy import Connection, and_, case, func, literal, or_, update

from services.domain.entries import BEARER_ACTOR, KEY_ACTOR, Entry, Kind
from services.ledger.records import storable
from services.ledger.tables import ENTRY, HAS_ACTOR, actor_prefix

_CODED = tuple(kind.value for kind in (Kind.EARNED, Kind.RETURNED, Kind.EXPIRES_SOON, Kind.TIER, Kind.REFUSED))
"""The reason of these kinds is a code, not a free text."""


def named_cards(entry: Entry) -> set[str]:
    """The cards that the entry can name beside the card of its account."""
    return {entry.counterparty, _card_of(entry.actor)} - {""}


def _card_of(actor: str) -> str:
    """The card that an actor can be; empty for an API key."""
    return "" if actor.startswith(KEY_ACTOR) else actor.removeprefix(BEARER_ACTOR)


def hide_in_row(row: dict[str, Any], card: str, pseudonym: str) -> None:
    """Remove a customer from a new row: an entry of the customer, or one that names the customer."""
    card = storable(card)
    if row["kind"] not in _CODED:
        row["reason"] = ""
    if row["counterparty"] == card:
        row["counterparty"] = pseudonym
    if _card_of(row["actor"]) == card:
        row["actor"] = pseudonym
    elif row["actor"].startswith(BEARER_ACTOR):
        row["actor"] = BEARER_ACTOR


def hide_in_table(connection: Connection, account_id: int, card: str, pseudonym: str, latest: int | None) -> None:
    """Remove a customer from the entries of the account, and from entries that name the card.

    Both accounts of a transfer have its reason, so the function removes it from both. It also removes the reason of an
    entry of another account if the customer was its actor, because the customer wrote the reason.

    Args:
        latest: the time of the last entries of other accounts that can name the customer; None: all can.
    """
    card = storable(card)
    actors = [actor for actor in (card, BEARER_ACTOR + card) if _card_of(actor) == card]
    prefixes = [actor_prefix(literal(actor)) for actor in actors]
    is_actor = and_(HAS_ACTOR, actor_prefix(ENTRY.c.actor).in_(prefixes), ENTRY.c.actor.in_(actors))
    has_token = func.substr(ENTRY.c.actor, 1, len(BEARER_ACTOR)) == BEARER_ACTOR
    names_customer = or_(ENTRY.c.counterparty == card, is_actor)
    if latest is not None:
        names_customer = and_(names_customer, ENTRY.c.time <= latest)
    connection.execute(
        update(ENTRY)
        .where(or_(ENTRY.c.account_id == account_id, names_customer))
        .values(
            reason=case((ENTRY.c.kind.in_(_CODED), ENTRY.c.reason), else_=""),
            actor=case((ENTRY.c.actor.in_(actors), pseudonym), (has_token, BEARER_ACTOR), else_=ENTRY.c.actor),
            counterparty=case((ENTRY.c.counterparty == card, pseudonym), else_=ENTRY.c.counterparty),
        )
    )
