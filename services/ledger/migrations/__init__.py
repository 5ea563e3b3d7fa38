"""Alembic's migrations of the ledger, run by ``services.ledger.database.migrate``."""
