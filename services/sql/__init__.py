"""SQL over the exported files, the ledger and the topics, with DuckDB in this process and without a network."""
