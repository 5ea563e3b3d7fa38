"""Values that are read at once are exactly what fastavro reads."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import schemas
from infra.demo.invoice_oracle import rows
from pipelines.columns import batch_reader
from pipelines.columns.batch_reader import BatchReader
from schemas import topics
from services.account_events import find_in_invoices
from services.domain.invoice import PRIME
from services.messaging.avro import Record, body_encoder, decoder, encoder, header
from services.verdicts import judge_with_body
from tests.support.builders import IDS, balance, invoice
from tests.support.examples import examples
from tests.support.mutations import damaged_invoices
from tests.support.unreadable import reasons, with_large_quantity

KNOWN = IDS.known(topics.POS_INVOICES)
NEWEST = IDS.writer_id(topics.POS_INVOICES)
READER = BatchReader("PosInvoice", KNOWN, fewest=1)
DECODE = decoder(topics.POS_INVOICES, IDS)
WRITE = encoder(topics.POS_INVOICES, IDS)
JUDGE = judge_with_body(topics.POS_INVOICES, KNOWN)
GOOD = [WRITE(invoice(InvoiceNumber=f"n{number}", CustomerType=PRIME)) for number in range(100)]


@cache
def damaged() -> list[bytes]:
    return [*damaged_invoices(examples(6000), seed=7), *reasons(), *map(with_large_quantity, KNOWN)]


def test_the_values_equal_those_of_fastavro() -> None:
    both = zip(damaged(), READER.read(damaged()), strict=True)
    read = [(value, record) for value, record in both if record is not None]
    assert all(repr(DECODE(value)) == repr(record) for value, record in read)
    assert examples(100) < len(read) < len(damaged()) / 2


def test_verdicts_and_events_are_the_same() -> None:
    find = find_in_invoices({PRIME}, KNOWN)
    for value, record in zip(damaged(), READER.read(damaged()), strict=True):
        assert repr(JUDGE(value, b"STR1", record)) == repr(JUDGE(value, b"STR1"))
        assert find(value, b"STR1", record) == find(value, b"STR1")


def test_a_damaged_value_does_not_stop_the_others() -> None:
    values = [*GOOD[:50], GOOD[50][:-1], *GOOD[51:]]
    few = [*BatchReader("PosInvoice", KNOWN).read(values)]
    assert [*map(DECODE, GOOD[:25])] == few[:25]
    assert few[50] is None
    assert values.index(GOOD[50][:-1]) == [record is None for record in READER.read(values)].index(True)
    assert 99 == sum(record is not None for record in READER.read(values))


def _with_item_quantity(varint: bytes) -> bytes:
    """An invoice of one line, whose quantity has these bytes."""
    marked = invoice(InvoiceNumber="n")
    marked["InvoiceLineItems"][0]["ItemQty"] = 63
    before, found, after = body_encoder("PosInvoice")(marked).rpartition(b"\x7e")
    assert found
    return header(NEWEST) + before + varint + after


@pytest.mark.parametrize(
    "value",
    [
        GOOD[0] + b"\0",
        _with_item_quantity(b"\xfe\x80\0"),
        WRITE(invoice(StoreID="STR#")).replace(b"STR#", b"STR\xff"),
        with_large_quantity(NEWEST),
    ],
    ids=["bytes follow", "a number in more bytes than it needs", "not UTF-8", "more than 32 bits"],
)
def test_doubtful_values_are_left_to_fastavro(value: bytes) -> None:
    assert [None] == [*READER.read([value])]


def test_other_values_are_left_to_fastavro() -> None:
    older = [header(schema_id) + GOOD[0][5:] for schema_id in KNOWN if schema_id != NEWEST]
    values = [None, b"", b"{}", header(999_999) + GOOD[0][5:], *older]
    assert older
    assert [None] * len(values) == [*READER.read(values)]


def test_a_registered_id_of_the_same_schema_is_read() -> None:
    reader = BatchReader("PosInvoice", {4711: KNOWN[NEWEST], 4712: "no schema"}, fewest=1)
    assert [DECODE(GOOD[0]), None] == [*reader.read([header(4711) + GOOD[0][5:], header(4712) + GOOD[0][5:]])]


def test_a_schema_with_other_comments_aliases_and_defaults_has_the_same_bytes() -> None:
    assert read_with(lambda field: field | {"doc": "Ours.", "aliases": ["ours"], "default": None}) == [DECODE(GOOD[0])]


@pytest.mark.parametrize(
    "change",
    [{"name": "Other"}, {"type": ["string", "null"]}, {"type": ["null", {"type": "string", "logicalType": "uuid"}]}],
)
def test_a_schema_with_another_name_or_type_is_left_to_fastavro(change: dict[str, Any]) -> None:
    assert read_with(lambda field: field | change) == [None]


def read_with(changed: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Record | None]:
    """A good value, read with a registered schema whose first field is changed."""
    schema = schemas.current("PosInvoice")
    first, *others = schema["fields"]
    registered = json.dumps(schema | {"fields": [changed(first), *others]})
    return [*BatchReader("PosInvoice", {4711: registered}, fewest=1).read([header(4711) + GOOD[0][5:]])]


def test_the_lines_of_invoices_are_read_too() -> None:
    write, decode = encoder(topics.HADOOP, IDS), decoder(topics.HADOOP, IDS)
    values = [write(dict(row)) for value in GOOD for row in rows(DECODE(value))]
    assert [*map(decode, values)] == [*BatchReader("HadoopRecord", IDS.known(topics.HADOOP)).read(values)]


def test_a_panic_leaves_the_values_to_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library panics when it writes a decimal. A panic is no Exception, and would end the query."""
    name = topics.LOYALTY_BALANCES.value
    monkeypatch.setattr(batch_reader, "BATCHED", {name})
    value = encoder(topics.LOYALTY_BALANCES, IDS)(balance("card", "1.25")[2])
    assert [None] == [*BatchReader(name, IDS.known(topics.LOYALTY_BALANCES), fewest=1).read([value])]


def test_values_are_read_in_parts_of_limited_size() -> None:
    """Records of all values at once would need much more memory than the values."""
    large = [WRITE(invoice(InvoiceNumber=f"n{number}", StoreID="S" * 2**15)) for number in range(96)]
    records = BatchReader("PosInvoice", KNOWN).read(large)
    assert DECODE(large[0]) == next(records)
    assert any(len(part) < len(large) for part in batch_reader._parts(large))
    assert large == [value for part in batch_reader._parts(large) for value in part]
    assert [*map(DECODE, large[1:])] == [*records]
    assert [] == [*READER.read([])]


def test_a_value_that_is_larger_than_a_part_is_left_to_fastavro() -> None:
    """If it is too large for an invoice, nobody reads it."""
    large = WRITE(invoice(StoreID="S" * batch_reader._MOST_BYTES))
    assert [DECODE(GOOD[0]), None] == [*READER.read([GOOD[0], large])]


@pytest.mark.program
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux names threads there")
def test_a_worker_has_few_threads() -> None:
    """Spark runs a worker for each core, and a pool of threads in each would be the square of that."""
    code = """
from pathlib import Path
from typing import Any
from pipelines.columns.batch_reader import BatchReader
from schemas import topics
from tests.support.builders import IDS, invoice
from services.messaging.avro import encoder
value = encoder(topics.POS_INVOICES, IDS)(invoice())
assert [*BatchReader("PosInvoice", IDS.known(topics.POS_INVOICES)).read([value] * 100)] != [None] * 100
print(sum(task.read_text().startswith("tokio") for task in Path("/proc/self/task").glob("*/comm")))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TOKIO_WORKER_THREADS"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert int(found.stdout) <= 2  # with two cores and without the limit there are three
