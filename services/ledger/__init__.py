"""The ledger stores every entry of every account once, in SQL. Only the ledger process writes to it."""
