"""The tables. Points are hundredths, times milliseconds since the epoch. A change needs a migration beside it."""

from typing import Any, ClassVar

from sqlalchemy import BigInteger, Double, ForeignKey, Index, Integer, MetaData, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite counts up by itself only what is declared as INTEGER, which holds 64 bits there.
_ID = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    """Names of constraints are fixed, so that a migration can name them in either database."""

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
    """An account, which is a card from one opening to its erasure.

    It is found by its pseudonym also before it is erased: a record that comes again afterwards meets the same row.

    Attributes:
        card: null once erased.
        last_sequence: the highest that has been appended.
        erased_time: null as long as it is open.
    """

    __tablename__ = "ledger_account"
    # Hashes: a B-tree of PostgreSQL refuses texts of a few thousand bytes, and with one such card everything behind it.
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
    """An entry, as ``services.domain.entries.Entry`` has it; ``total_amount`` is the till's double."""

    __tablename__ = "ledger_entry"
    __table_args__ = (
        Index(None, "counterparty", postgresql_using="hash", sqlite_where=text("counterparty IS NOT NULL")),
        # The primary key is how entries are read: in SQLite the table itself is in its order.
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
    """Sequences of an account that are missing, both ends included, though later ones are there."""

    __tablename__ = "ledger_gap"

    account_id: Mapped[int] = mapped_column(_ID, ForeignKey("ledger_account.id"), primary_key=True)
    first_sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_sequence: Mapped[int]


class PositionRow(Base):
    """Up to where a partition has been appended.

    Attributes:
        topic_id: of this incarnation of the topic: offsets of another one mean nothing.
    """

    __tablename__ = "ledger_position"

    partition: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    topic_id: Mapped[str]
    next_offset: Mapped[int]


class UndecodableRow(Base):
    """A record that is no entry: where it is, and why. What it says is left in the topic."""

    __tablename__ = "ledger_undecodable"

    topic_id: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    record_offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    append_time: Mapped[int]
    reason: Mapped[str]


class PropertyRow(Base):
    """What this ledger was made with and cannot be changed: the topic, the key of the pseudonyms."""

    __tablename__ = "ledger_property"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
