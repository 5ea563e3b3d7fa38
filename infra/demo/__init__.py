"""``make demo``: sends a trading day, and compares all outputs with an independent oracle."""
