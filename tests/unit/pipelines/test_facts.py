"""Facts that were read without Spark."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from pipelines.reconciliation.facts import from_python
from services.audit.facts import Source
from services.audit.sources import Fact


class Card(str):
    """A string that can have weak references."""

    __slots__ = ("__weakref__",)


def test_python_holds_few_facts_as_objects_at_once() -> None:
    """A ledger has millions of entries, and a Python object needs several times as much memory as its value."""
    alive: WeakSet[Card] = WeakSet()
    most = 0

    def facts() -> Iterator[Fact]:
        nonlocal most
        for number in range(50_000):
            alive.add(card := Card(number))
            most = max(most, len(alive))
            yield Fact(card, None, b"value")

    spark = SimpleNamespace(createDataFrame=lambda table, _: table)
    context: Any = SimpleNamespace(spark=spark, pseudonyms=SimpleNamespace(of=lambda card: f"p-{card}"))
    table: Any = from_python(context, Source.LEDGER, facts())
    assert isinstance(table, pa.Table)
    assert 50_000 == table.num_rows
    last = {"pseudonym": "p-49999", "card": "49999", "source": "ledger", "time": 0, "value": b"value"}
    assert [last] == table.slice(49_999).to_pylist()
    assert most <= 20_000


def test_an_empty_ledger_has_no_facts() -> None:
    spark = SimpleNamespace(createDataFrame=lambda table, _: table)
    table: Any = from_python(SimpleNamespace(spark=spark, pseudonyms=None), Source.LEDGER, iter(()))  # type: ignore[arg-type]
    assert 0 == table.num_rows
