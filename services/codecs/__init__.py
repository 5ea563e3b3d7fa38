"""Converts events, entries, decisions and accounts to stored bytes and records, and back."""
