"""Accounts and what happens to them as bytes and records: between the domain and Spark, Kafka and HTTP."""

from services.codecs.events import LARGEST_POINTS, command, credit_command, event_of
from services.codecs.records import balance, decision, entry_of, notification
from services.codecs.state import dump, load

__all__ = [
    "LARGEST_POINTS",
    "balance",
    "command",
    "credit_command",
    "decision",
    "dump",
    "entry_of",
    "event_of",
    "load",
    "notification",
]
