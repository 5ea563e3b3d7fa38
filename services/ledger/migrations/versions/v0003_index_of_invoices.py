"""An index of invoice numbers: the helpdesk finds a customer by an invoice."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        # A large table needs more time than the usual statement.
        op.execute("SET LOCAL statement_timeout = 0")
    has_invoice = sa.text("invoice_number <> ''")
    op.create_index(
        "ix_ledger_entry_invoice_number",
        "ledger_entry",
        ["invoice_number"],
        postgresql_using="hash",
        postgresql_where=has_invoice,
        sqlite_where=has_invoice,
    )
