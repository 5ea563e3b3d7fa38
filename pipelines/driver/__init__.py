"""Keeps the queries of a process running, and stops them."""
