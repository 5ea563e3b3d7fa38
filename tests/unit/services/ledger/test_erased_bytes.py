"""The bytes of an erased customer in SQLite's files: services.ledger.appender."""

from pathlib import Path

import pytest
from sqlalchemy import text

from services.domain.entries import Kind
from services.ledger.database import reading_engine
from tests.support.builders import entry
from tests.support.ledger import Ledger, bytes_of

CARD = "9265846829"


@pytest.mark.parametrize("dies", [True, False])
def test_no_byte_of_a_card_stays(tmp_path: Path, *, dies: bool) -> None:
    """Free pages and the write-ahead log do not contain the card. An open reader delays the truncation of the log. If
    the process dies before it, the next process truncates the log.
    """
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    entries = [(CARD, entry(number, reason="words " * 50)) for number in range(1, 200)]
    ledger.append(*entries, *(("B", entry(number, counterparty=CARD)) for number in range(1, 200)))
    assert CARD.encode() in bytes_of(ledger.url)
    ledger.appender.checkpoint_after_erasure()  # of the log that the previous process can have left
    reader = reading_engine(ledger.url)
    with reader.connect() as connection:
        connection.execute(text("BEGIN"))
        assert connection.scalar(text("SELECT count(*) FROM ledger_entry"))
        ledger.append((CARD, entry(200, kind=Kind.ERASED, points=0)))
        ledger.appender.checkpoint_after_erasure()
        assert CARD.encode() in bytes_of(ledger.url)
        ledger.append(("C", entry(1)))  # the next batch erases nobody
    process = Ledger(ledger.url) if dies else ledger
    process.appender.checkpoint_after_erasure()
    assert CARD.encode() not in bytes_of(ledger.url)
    process.close()
    ledger.close()
