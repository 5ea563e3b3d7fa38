"""What the demo reads besides topics: infra.demo.probes."""

from contextlib import closing
from decimal import Decimal
from pathlib import Path

from infra.demo.comparison import LedgerEntry
from infra.demo.probes import LedgerReader
from tests.support.builders import entry
from tests.support.ledger import Ledger


def test_the_ledger_is_read_with_its_positions(tmp_path: Path) -> None:
    """Before the ledger has made its tables, it has no position."""
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with closing(LedgerReader(url)) as reader:
        assert {} == reader.positions()
        with closing(Ledger(url)) as ledger:
            ledger.append(("1", entry(1, points=1_050)), ("2", entry(1, points=-50)))
        assert {0: 2} == reader.positions()
        found = {each.card: each for each in reader.entries()}
    assert LedgerEntry("1", 1, "earned", Decimal("10.5"), Decimal("10.5")) == found["1"]
    assert Decimal("-0.5") == found["2"].points
