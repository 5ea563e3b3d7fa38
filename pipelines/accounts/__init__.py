"""The inside of the loyalty query: from events to accounts in Spark's state, and to records."""
