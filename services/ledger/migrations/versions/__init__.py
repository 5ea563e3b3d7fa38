"""The versions of the ledger's schema, one module for each."""
