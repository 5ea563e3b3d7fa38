"""An index of actors: an erasure finds the entries of other accounts that name the customer as actor."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        # A large table needs more time than the usual statement.
        op.execute("SET LOCAL statement_timeout = 0")
    has_actor = sa.text("actor <> ''")
    op.create_index(
        "ix_ledger_entry_actor",
        "ledger_entry",
        [sa.text("substr(actor, 1, 128)")],
        postgresql_where=has_actor,
        sqlite_where=has_actor,
    )
