"""Compares the pipeline and the API with other systems (``make bench-peers``)."""
