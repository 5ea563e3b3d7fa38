"""The HTTP API. ``python -m api`` runs one instance."""
