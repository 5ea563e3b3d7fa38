"""The ledger: every entry of every account, once, in SQL. It follows the topic loyalty; nobody else writes to it."""
