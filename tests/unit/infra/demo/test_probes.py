"""What the demo reads besides topics: infra.demo.probes."""

from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from infra.demo.comparison import Balance, LedgerEntry
from infra.demo.probes import BalanceReader, LedgerReader
from tests.support.builders import balance, entry
from tests.support.clusters import Group
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


def test_a_card_with_a_slash_has_a_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group.of(1)
    group.share(lambda _: 0, lambda _: None)
    of_release_0_1, (topic, card, record) = balance("50/03", "1.50"), balance("5003", "2.50")
    group.write([of_release_0_1, (topic, card, {**(record or {}), "NextExpiryPoints": Decimal(0)})])
    (instance,) = group.instances
    with TestClient(instance.app) as client:
        monkeypatch.setattr("infra.demo.probes._client", lambda _: client)
        with closing(BalanceReader("", 1, None)) as reader:
            found = reader.balances(["50/03", "5003"])
            assert {"1/2": 404} == reader.statuses(["1/2"])
    assert {"50/03": Balance(Decimal("1.50"), 1, next_expiry=None), "5003": Balance(Decimal("2.50"), 1)} == found
