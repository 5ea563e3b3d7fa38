"""The names of Spark's observations. Queries make them, and ``runtime.query_metrics`` turns them into metrics."""

IDENTIFIED, UNIQUE = "identified", "unique"
"""The rows before and after the deduplication."""

DEAD_LETTER_ROWS = "dead letters"
"""The invalid records of a query."""

ROWS = "rows"
"""The name of the number of rows in these observations."""

RETURNS = "returns"
"""The returns in the index of invoices. RETURN_STEPS are the names of their numbers."""

RETURN_STEPS = ("waiting", "settled", "forwarded", "dropped")
