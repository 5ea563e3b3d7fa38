"""Verdicts on the values of topics: the record that a value holds, or the reason why it becomes a dead letter."""
