"""The Alembic migrations of the ledger. ``services.ledger.database.migrate`` runs them."""
