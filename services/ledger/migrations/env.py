"""Alembic runs this module. It migrates on the connection, and in the transaction, of its caller."""

from alembic import context

from services.ledger.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table="ledger_version",
    transactional_ddl=True,
)
context.run_migrations()
