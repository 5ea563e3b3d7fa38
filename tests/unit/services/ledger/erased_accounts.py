"""The entries of an account up to its erasure."""

from typing import Any

from services.domain.entries import Kind
from tests.support.builders import entry

WORDS = "for Anna"


def erased(sequence: int) -> Any:
    return entry(sequence, kind=Kind.ERASED, points=-100 * (sequence - 1), total=0, available=0)


LIFE = [
    ("4711", entry(1)),
    ("4711", entry(2, kind=Kind.ADJUSTED, reason=WORDS, actor="4711")),
    ("4711", entry(3, kind=Kind.REFUSED, points=0, reason="insufficient-points", actor="clerk")),
    ("4711", entry(4, kind=Kind.SENT, points=-50, reason=WORDS, counterparty="0815")),
    ("0815", entry(1, kind=Kind.RECEIVED, points=50, reason=WORDS, counterparty="4711", actor="4711")),
    ("4711", erased(5)),
]
