"""The tables of the ledger. Points are hundredths, times are milliseconds since the epoch.

Each change of this module needs a migration.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
    literal_column,
    text,
)

# SQLite generates ids only for columns of the type INTEGER, which has 64 bits there.
_ID = BigInteger().with_variant(Integer(), "sqlite")

# The names of constraints are fixed, so that a migration can name them in both databases.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

HAS_ACTOR = text("actor <> ''")
"""The condition of the index of actors."""

HAS_INVOICE = text("invoice_number <> ''")
"""The condition of the index of invoice numbers."""


def actor_prefix(actor: ColumnElement[str]) -> ColumnElement[str]:
    """The expression of the index of actors: their first 128 characters."""
    return func.substr(actor, text("1"), text("128"))


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger(), nullable=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text(), nullable=False)


def _number_in_key(name: str) -> Column[int]:
    return Column(name, BigInteger(), primary_key=True, autoincrement=False)


ACCOUNT = Table(
    "ledger_account",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("card", Text()),
    _text("pseudonym"),
    _number("opened_time"),
    _number("last_sequence"),
    Column("erased_time", BigInteger()),
    UniqueConstraint("pseudonym", "opened_time"),
    # A B-tree index of PostgreSQL refuses texts of a few thousand bytes, so one such card would stop the ledger.
    Index(None, "card", postgresql_using="hash"),
)
"""Accounts: a card from one opening to its erasure.

Pseudonym and opened time identify the account before and after the erasure. So the ledger finds the account of a record
that it reads again. ``card`` is null after the erasure. ``erased_time`` is null before the erasure. ``last_sequence``
is the highest sequence number in the ledger.
"""

ENTRY = Table(
    "ledger_entry",
    METADATA,
    Column("account_id", _ID, ForeignKey(ACCOUNT.c.id), primary_key=True),
    _number_in_key("sequence"),
    _text("kind"),
    *map(_number, ("points", "total", "available", "pending", "reserved", "time", "programme_version")),
    *map(_text, ("tier", "event_id", "invoice_number")),
    Column("total_amount", Double(), nullable=False),
    _number("expires_time"),
    *map(_text, ("reason", "actor")),
    Column("counterparty", Text()),
    Index(None, "counterparty", postgresql_using="hash", sqlite_where=text("counterparty IS NOT NULL")),
    # Few actors have many entries each. A hash index would be slow for them, and a B-tree index needs short texts.
    Index(
        "ix_ledger_entry_actor",
        actor_prefix(literal_column("actor")),
        postgresql_where=HAS_ACTOR,
        sqlite_where=HAS_ACTOR,
    ),
    # The helpdesk finds a customer by an invoice. A hash index takes texts of any length.
    Index(None, "invoice_number", postgresql_using="hash", postgresql_where=HAS_INVOICE, sqlite_where=HAS_INVOICE),
    # SQLite then stores the rows in the order of the primary key. They are read in this order.
    sqlite_with_rowid=False,
)
"""The fields of ``services.domain.entries.Entry`` without ``balance_details``.

``total_amount`` is the double of the invoice.
"""

GAP = Table(
    "ledger_gap",
    METADATA,
    Column("account_id", _ID, ForeignKey(ACCOUNT.c.id), primary_key=True),
    _number_in_key("first_sequence"),
    _number("last_sequence"),
)
"""Ranges of missing sequence numbers of an account. Both ends are missing too."""

POSITION = Table("ledger_position", METADATA, _number_in_key("partition"), _text("topic_id"), _number("next_offset"))
"""The position up to which each partition was appended.

``topic_id`` is the broker's id of the topic. A topic that is deleted and created again has another id.
"""

UNDECODABLE = Table(
    "ledger_undecodable",
    METADATA,
    Column("topic_id", Text(), primary_key=True),
    _number_in_key("partition"),
    _number_in_key("record_offset"),
    _number("append_time"),
    _text("reason"),
)
"""Records that are not entries: their positions and the reasons. Their values stay in the topic."""

PROPERTY = Table("ledger_property", METADATA, Column("name", Text(), primary_key=True), _text("value"))
"""Properties that must not change: the topic, and the id of the pseudonym key."""
