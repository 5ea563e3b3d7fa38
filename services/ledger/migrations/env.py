"""Alembic runs this module. The migration uses the connection and the transaction of ``database.migrate``."""

from alembic import context

from services.ledger.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table="ledger_version",
    transactional_ddl=True,
)
context.run_migrations()
