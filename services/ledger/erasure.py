"""What stays of an erased customer: amounts, times and codes, under a pseudonym; nothing that names or quotes them."""

from typing import Any

from sqlalchemy import Connection, case, or_, update

from services.domain.entries import Kind
from services.ledger.records import storable
from services.ledger.tables import EntryRow

_CODED = (Kind.REFUSED.value, Kind.TIER.value)
"""Kinds whose reason is a code of ours, and no words of somebody's."""


def hide_in_row(row: dict[str, Any], card: str, pseudonym: str) -> None:
    """Take a customer out of the columns of an entry: of theirs, or of one that names them as the other end."""
    card = storable(card)
    if row["kind"] not in _CODED:
        row["reason"] = ""
    for column in ("actor", "counterparty"):
        if row[column] == card:
            row[column] = pseudonym


def hide_in_table(connection: Connection, account_id: int, card: str, pseudonym: str) -> None:
    """The same for what has been written: the entries of an account, and those of others that name its card.

    The words of a transfer stand in both accounts, so they go from both.
    """
    card = storable(card)
    connection.execute(
        update(EntryRow)
        .where(or_(EntryRow.account_id == account_id, EntryRow.counterparty == card))
        .values(
            reason=case((EntryRow.kind.in_(_CODED), EntryRow.reason), else_=""),
            actor=case((EntryRow.actor == card, pseudonym), else_=EntryRow.actor),
            counterparty=case((EntryRow.counterparty == card, pseudonym), else_=EntryRow.counterparty),
        )
    )
