"""Accounts, entries, gaps, positions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _accounts()
    _entries()
    op.create_table(
        "ledger_gap",
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("first_sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["ledger_account.id"], name="fk_ledger_gap_account_id"),
        sa.PrimaryKeyConstraint("account_id", "first_sequence", name="pk_ledger_gap"),
    )
    op.create_table(
        "ledger_position",
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("partition", name="pk_ledger_position"),
    )
    op.create_table(
        "ledger_undecodable",
        sa.Column("topic_id", sa.Text(), nullable=False),
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("record_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("append_time", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition", "record_offset", name="pk_ledger_undecodable"),
    )
    op.create_table(
        "ledger_property",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_ledger_property"),
    )


def _accounts() -> None:
    op.create_table(
        "ledger_account",
        sa.Column("id", _ID, nullable=False),
        sa.Column("card", sa.Text(), nullable=True),
        sa.Column("pseudonym", sa.Text(), nullable=False),
        sa.Column("opened_time", sa.BigInteger(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("erased_time", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_account"),
        sa.UniqueConstraint("pseudonym", "opened_time", name="uq_ledger_account_pseudonym_opened_time"),
    )
    op.create_index("ix_ledger_account_card", "ledger_account", ["card"], postgresql_using="hash")


def _entries() -> None:
    numbers = ("points", "total", "available", "pending", "reserved", "time", "programme_version")
    op.create_table(
        "ledger_entry",
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in numbers),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("tier", "event_id", "invoice_number")),
        sa.Column("total_amount", sa.Double(), nullable=False),
        sa.Column("expires_time", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("reason", "actor")),
        sa.Column("counterparty", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["ledger_account.id"], name="fk_ledger_entry_account_id"),
        sa.PrimaryKeyConstraint("account_id", "sequence", name="pk_ledger_entry"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_ledger_entry_counterparty",
        "ledger_entry",
        ["counterparty"],
        postgresql_using="hash",
        sqlite_where=sa.text("counterparty IS NOT NULL"),
    )
