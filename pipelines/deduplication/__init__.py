"""Remembers identities, and drops repeats."""
