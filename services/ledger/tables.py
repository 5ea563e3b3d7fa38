"""The tables of the ledger. Points are hundredths, times are milliseconds since the epoch.

Each change of this module needs a migration.
"""

from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    func,
    literal_column,
    text,
)
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Mapped, mapped_column

# SQLite generates ids only for columns of the type INTEGER, which has 64 bits there.
_ID = BigInteger().with_variant(Integer(), "sqlite")


HAS_ACTOR = text("actor <> ''")
"""The condition of the index of actors."""


def actor_prefix(actor: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[str]:
    """The expression of the index of actors: their first 128 characters."""
    return func.substr(actor, text("1"), text("128"))


class Base(DeclarativeBase):
    """The names of constraints are fixed, so that a migration can name them in both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text(), float: Double()}


class AccountRow(Base):
    """An account: a card from one opening to its erasure.

    The pseudonym identifies the account before and after the erasure. So a record that is read again finds its row.

    Attributes:
        card: null after the erasure.
        last_sequence: the highest sequence number in the ledger.
        erased_time: null while the account is open.
    """

    __tablename__ = "ledger_account"
    # A B-tree index of PostgreSQL refuses texts of a few thousand bytes. One such card would stop the ledger.
    __table_args__ = (
        UniqueConstraint("pseudonym", "opened_time"),
        Index(None, "card", postgresql_using="hash"),
    )

    id: Mapped[int] = mapped_column(_ID, primary_key=True)
    card: Mapped[str | None]
    pseudonym: Mapped[str]
    opened_time: Mapped[int]
    last_sequence: Mapped[int]
    erased_time: Mapped[int | None]


class EntryRow(Base):
    """The fields of ``services.domain.entries.Entry``. ``total_amount`` is the binary fraction of the invoice."""

    __tablename__ = "ledger_entry"
    __table_args__ = (
        Index(None, "counterparty", postgresql_using="hash", sqlite_where=text("counterparty IS NOT NULL")),
        # Few actors have many entries, which a hash index would make slow. A B-tree index needs short texts.
        Index(
            "ix_ledger_entry_actor",
            actor_prefix(literal_column("actor")),
            postgresql_where=HAS_ACTOR,
            sqlite_where=HAS_ACTOR,
        ),
        # SQLite then stores the rows in the order of the primary key, in which they are read.
        {"sqlite_with_rowid": False},
    )

    account_id: Mapped[int] = mapped_column(_ID, ForeignKey("ledger_account.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    points: Mapped[int]
    total: Mapped[int]
    available: Mapped[int]
    pending: Mapped[int]
    reserved: Mapped[int]
    time: Mapped[int]
    programme_version: Mapped[int]
    tier: Mapped[str]
    event_id: Mapped[str]
    invoice_number: Mapped[str]
    total_amount: Mapped[float]
    expires_time: Mapped[int]
    reason: Mapped[str]
    actor: Mapped[str]
    counterparty: Mapped[str | None]


class GapRow(Base):
    """A range of missing sequence numbers of an account. Both ends are missing too."""

    __tablename__ = "ledger_gap"

    account_id: Mapped[int] = mapped_column(_ID, ForeignKey("ledger_account.id"), primary_key=True)
    first_sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_sequence: Mapped[int]


class PositionRow(Base):
    """The position up to which a partition was appended.

    Attributes:
        topic_id: the broker's id of the topic. A topic that is deleted and created again has another id.
    """

    __tablename__ = "ledger_position"

    partition: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    topic_id: Mapped[str]
    next_offset: Mapped[int]


class UndecodableRow(Base):
    """A record that is not an entry: its position and the reason. Its value stays in the topic."""

    __tablename__ = "ledger_undecodable"

    topic_id: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    record_offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    append_time: Mapped[int]
    reason: Mapped[str]


class PropertyRow(Base):
    """A property that must not change: the topic, or the id of the pseudonym key."""

    __tablename__ = "ledger_property"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
