"""Simulated trading days of a chain of stores, and the replay of recorded invoices."""
