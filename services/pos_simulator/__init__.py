"""Simulated trading days of a chain of shops, and the replay of recorded invoices."""
