"""Topics as tables, with a fake consumer. tests/integration/test_sql.py has a real broker."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from decimal import Decimal
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import schemas
from schemas import topics
from schemas.topics import HADOOP, LOYALTY, LOYALTY_BALANCES, LOYALTY_DECISIONS, POS_INVOICES, STORE_SALES, Topic
from services.domain.validation import INVOICE_TOO_LARGE, LARGEST_INVOICE
from services.messaging.avro import encoder
from services.settings import Settings
from services.sql.database import Database, SqlError
from services.sql.topics import TopicSource, table_name
from tests.support.builders import CARD, IDS, MINUTE, NOON, balance, entry, invoice, notification, sales, shop


class FakeMessage:
    def __init__(self, offset: int, key: str, value: bytes | None, headers: dict[str, str]) -> None:
        self._offset, self._key, self._value, self._headers = offset, key, value, headers

    def key(self) -> bytes:
        return self._key.encode()

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [(name, value.encode()) for name, value in self._headers.items()] or None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, NOON + self._offset

    def error(self) -> None:
        return None


class Log:
    """Topics in memory. It remembers which topics are read."""

    def __init__(self) -> None:
        self.records: dict[str, list[FakeMessage]] = {topic.name: [] for topic in topics.ALL}
        self.read: list[str] = []

    def append(self, topic: Topic, key: str, value: bytes | dict[str, Any] | None, **headers: str) -> None:
        if isinstance(value, dict):
            value = encoder(topic, IDS)(value)
        records = self.records[topic.name]
        records.append(FakeMessage(len(records), key, value, headers))

    def records_of(self, _: object, name: str, __: str) -> Iterable[FakeMessage]:
        self.read.append(name)
        return self.records[name]

    def assign(self, _: object) -> None:
        pass

    def consume(self, *_: object) -> list[FakeMessage]:
        return self.records[LOYALTY_BALANCES.name]

    def close(self) -> None:
        pass


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr("services.sql.topics.require_broker", lambda _: None)
    monkeypatch.setattr("services.sql.topics.records_of", log.records_of)
    return log


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("database")
    with closing(Database(Settings(ledger_url=f"sqlite:///{folder / 'none'}", export_dir=str(folder)))) as opened:
        yield opened


@pytest.fixture
def database(log: Log, opened: Database) -> Database:  # noqa: ARG001  # the topics of the database
    return opened


def rows(database: Database, statement: str) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in database.run(statement).columns), strict=True))


def test_only_topics_that_the_statement_names_are_read(database: Database, log: Log) -> None:
    """A statement reads each topic once, also if it names it twice. The next statement reads it again."""
    database.run("SELECT count(*) FROM hadoop JOIN hadoop AS again USING (InvoiceNumber)")
    database.run("DESCRIBE loyalty")
    assert ["hadoop"] == log.read
    log.append(HADOOP, "S1", {"InvoiceNumber": "1", "City": "Pune", "TotalValue": 2.5})
    assert [("Pune", 2.5)] == rows(database, "SELECT City, sum(TotalValue) FROM hadoop GROUP BY 1")
    assert ["hadoop"] * 2 == log.read


def test_a_statement_sees_one_state_of_a_topic(database: Database, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB runs the parts of a statement in several threads, and records arrive meanwhile."""

    def read_slowly(*arguments: Any) -> Iterable[FakeMessage]:
        log.append(HADOOP, "S1", {"InvoiceNumber": "1"})
        time.sleep(0.5)
        return log.records_of(*arguments)

    monkeypatch.setattr("services.sql.topics.records_of", read_slowly)
    assert [(1,), (1,)] == rows(database, "SELECT count(*) FROM hadoop UNION ALL SELECT count(*) FROM hadoop")


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_every_topic_is_a_table(database: Database, topic: Topic) -> None:
    """The columns are the fields of its schema, and then the time and position of the record."""
    columns = [name for name, _ in database.columns()[table_name(topic)]]
    assert ["AppendTime", "RecordPartition", "RecordOffset"] == columns[-3:]
    assert not topic.value or schemas.field_names(topic.value) == columns[:-3]


def test_a_record_that_was_written_twice_is_one_row(database: Database, log: Log) -> None:
    """Records with equal ids are one; records without an id are all kept."""
    record = notification(CARD, entry(1, 205))
    log.append(LOYALTY, CARD, record, ce_id=f"{CARD}@1000.1")
    log.append(LOYALTY, CARD, record, ce_id=f"{CARD}@1000.1")
    log.append(LOYALTY, CARD, record)
    assert [(0, Decimal("2.05")), (2, Decimal("2.05"))] == rows(
        database, "SELECT RecordOffset, EarnedLoyaltyPoints FROM loyalty"
    )


def test_each_record_of_a_long_topic_is_one_row(database: Database, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows come in several batches."""
    monkeypatch.setattr("services.sql.arrow.BATCH_ROWS", 2)
    for number in range(5):
        log.append(HADOOP, "S1", {"InvoiceNumber": str(number)})
    assert [(str(number),) for number in range(5)] == rows(database, "SELECT InvoiceNumber FROM hadoop ORDER BY 1")


def test_tills_can_use_the_same_ids(database: Database, log: Log) -> None:
    """An id of CloudEvents is unique for its source only."""
    for number, till in (("1", "/till/1"), ("2", "/till/2"), ("2", "/till/2")):
        log.append(POS_INVOICES, "S1", invoice(number), ce_id="7", ce_source=till)
    assert [("1",), ("2",)] == rows(database, "SELECT InvoiceNumber FROM pos_invoices ORDER BY 1")


def test_a_compacted_topic_has_the_newest_record_of_each_key(database: Database, log: Log) -> None:
    """A late older record does not count. A deleted key is no row, until it is written again. After an erasure the
    account of a card begins again with the first sequence number.
    """
    for sequence, opened in ((4, NOON), (1, NOON + 1), (5, NOON)):
        _, _, record = balance("D", f"{sequence}.00", sequence)
        log.append(LOYALTY_BALANCES, "D", record | {"OpenedTime": opened})
    for card, points, sequence in (("A", "1.00", 1), ("A", "3.00", 3), ("A", "2.00", 2), ("B", "9.00", 1)):
        log.append(*balance(card, points, sequence))
    log.append(LOYALTY_BALANCES, "B", None)
    log.append(LOYALTY_BALANCES, "C", None)
    log.append(*balance("C", "0.50", 1))
    statement = "SELECT CustomerCardNo, TotalLoyaltyPoints FROM loyalty_balances ORDER BY 1"
    assert [("A", Decimal("3.00")), ("C", Decimal("0.50")), ("D", Decimal("1.00"))] == rows(database, statement)


def test_the_decision_of_an_erased_customer_names_no_customer(database: Database, log: Log) -> None:
    """The record after an erasure has no account, and so no time at which the account was opened."""
    done = {"CommandID": "c", "Sequence": 2, "Status": "done", "Kind": "adjust", "CustomerCardNo": CARD}
    erased = {"CommandID": "c", "Sequence": 3, "Status": "erased", "Kind": "adjust", "CustomerCardNo": ""}
    log.append(LOYALTY_DECISIONS, "c", done | {"OpenedTime": NOON})
    log.append(LOYALTY_DECISIONS, "c", erased)
    assert [("erased", "")] == rows(database, "SELECT Status, CustomerCardNo FROM loyalty_decisions")


def test_sales_by_minute_has_the_latest_figures(database: Database, log: Log) -> None:
    """There is one row for each store and minute."""
    for record in (sales("S1", NOON, "10.00"), sales("S1", NOON, "10.00", "-2.50"), sales("S1", NOON + MINUTE, "1.00")):
        log.append(*record)
    found = rows(database, "SELECT Invoices, Net, Smallest, Largest FROM sales_by_minute ORDER BY Minute")
    amounts = [[Decimal(amount) for amount in each] for each in (("7.50", "-2.50", "10.00"), ("1.00",) * 3)]
    assert [(2, *amounts[0]), (1, *amounts[1])] == found
    assert STORE_SALES.name == log.read[0]


def test_an_interrupted_read_ends(log: Log) -> None:
    """Ctrl-C does not wait until the whole topic is read."""
    for number in range(3):
        log.append(HADOOP, "S1", {"InvoiceNumber": str(number)})
    interrupted = Event()
    records = TopicSource(HADOOP, Settings(), interrupted)._records()
    assert "0" == next(records)["InvoiceNumber"]
    interrupted.set()
    assert [] == [*records]


def test_the_last_record_of_a_key_without_a_version_counts(database: Database, log: Log) -> None:
    """Also of two records with the same version: a pipeline that starts again can write a balance again."""
    for city in ("Pune", "Kochi"):
        log.append(*shop("S1", city))
    for points in ("1.00", "2.00"):
        log.append(*balance("A", points, 1))
    statement = "SELECT City, TotalLoyaltyPoints FROM stores, loyalty_balances"
    assert [("Kochi", Decimal("2.00"))] == rows(database, statement)


def test_records_that_cannot_be_decoded_are_counted(database: Database, log: Log) -> None:
    """They stop no statement and hide no other record. Each statement has its own count."""
    good = encoder(HADOOP, IDS)({"InvoiceNumber": "1"})
    for value in (b"junk", good, good + b"!", b"\0\0\0\0\xff", None, good):
        log.append(HADOOP, "S1", value)
    for _ in range(2):
        assert [(2,)] == rows(database, "SELECT count(*) FROM hadoop")
        assert 4 == sum(database.skipped["hadoop"].values())
    database.run("SELECT 1")
    assert {} == database.skipped


def test_a_value_that_fits_no_column_is_counted(database: Database, log: Log) -> None:
    """Avro allows a decimal with more digits than its schema says. The other rows of its batch stay."""
    digits = (10**30).to_bytes(13, "big", signed=True)
    good = encoder(LOYALTY_BALANCES, IDS)(balance("A", "1.00")[2])
    one = (100).to_bytes(1, "big", signed=True)
    at = good.index(b"\x02" + one)
    bad = good[:at] + bytes([len(digits) * 2]) + digits + good[at + 2 :]
    for number, value in enumerate((good, bad, good)):
        log.append(LOYALTY_BALANCES, str(number), value)
    assert [(2,)] == rows(database, "SELECT count(*) FROM loyalty_balances")
    assert {"loyalty_balances": {"a value does not fit its column": 1}} == database.skipped


def test_invoices_of_simple_tills_are_rows(database: Database, log: Log) -> None:
    """JSON counts as in the pipeline: a whole number is a text where one is expected, and other types are refused."""
    log.append(POS_INVOICES, "S1", invoice("1", amount=10.0))
    log.append(
        POS_INVOICES, "S1", b' {"InvoiceNumber": 2, "TotalAmount": 5, "InvoiceLineItems": [{"ItemCode": 7}], "x": 1}'
    )
    log.append(POS_INVOICES, "S1", b'{"InvoiceNumber": "3", "TotalAmount": "five"}')
    log.append(POS_INVOICES, "S1", b"[]")
    log.append(POS_INVOICES, "S1", b'{"InvoiceNumber": 18446744073709551617, "TotalAmount": 1}')
    log.append(POS_INVOICES, "S1", b'{"InvoiceNumber": "6", "TotalAmount": 1, "TotalAmount": 2}')
    log.append(POS_INVOICES, "S1", b'{"InvoiceNumber": "7"}'.ljust(LARGEST_INVOICE + 1))
    too_large = encoder(POS_INVOICES, IDS)({"InvoiceNumber": "8", "StoreID": "S" * LARGEST_INVOICE})
    log.append(POS_INVOICES, "S1", too_large)
    largest = {"InvoiceNumber": "9", "StoreID": "S" * (2 * LARGEST_INVOICE - len(too_large))}
    log.append(POS_INVOICES, "S1", largest)
    statement = "SELECT InvoiceNumber, TotalAmount, InvoiceLineItems[1].ItemCode FROM pos_invoices ORDER BY 1"
    found = rows(database, statement)
    assert [("1", 10.0, "458"), (str(2**64 + 1), 1.0, None), ("2", 5.0, "7"), ("9", None, None)] == found
    assert {
        "TotalAmount is a text, and must be a number": 1,
        "a list in JSON, and must be one JSON object": 1,
        "the field TotalAmount is given twice": 1,
        INVOICE_TOO_LARGE: 2,
    } == database.skipped["pos_invoices"]


def test_a_deletion_in_a_followed_topic_is_no_row_and_no_mistake(
    database: Database, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(LOYALTY_BALANCES, "A", None)
    log.append(*balance("B", "1.00", 1))
    monkeypatch.setattr("services.sql.topics.clients.consumer", lambda *_: log)
    monkeypatch.setattr("services.sql.topics.watermarks_of", lambda *_: {})
    database.run("SELECT 1")  # forgets the mistakes of other statements
    recorded: list[str] = []
    monkeypatch.setattr(database, "_on_read", recorded.append)
    followed = database.follow("SELECT CustomerCardNo FROM loyalty_balances")
    next(followed)
    assert ["loyalty_balances"] == recorded, "the audit trail has each read"
    assert [{"CustomerCardNo": "B"}] == next(followed).to_pylist()
    assert {} == database.skipped


@pytest.mark.parametrize(("code", "is_raised"), [(KafkaError._PARTITION_EOF, False), (KafkaError._TRANSPORT, True)])
def test_an_error_of_kafka_ends_a_followed_topic(
    database: Database, log: Log, monkeypatch: pytest.MonkeyPatch, code: int, *, is_raised: bool
) -> None:
    """The end of a partition is no error and no row."""
    log.append(*balance("A", "1.00", 1))
    end: Any = SimpleNamespace(error=lambda: KafkaError(code))
    log.records[LOYALTY_BALANCES.name].append(end)
    monkeypatch.setattr("services.sql.topics.clients.consumer", lambda *_: log)
    monkeypatch.setattr("services.sql.topics.watermarks_of", lambda *_: {})
    followed = database.follow("SELECT CustomerCardNo FROM loyalty_balances")
    next(followed)
    with pytest.raises(KafkaException) if is_raised else nullcontext():
        assert [{"CustomerCardNo": "A"}] == next(followed).to_pylist()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELECT 1", "exactly one topic, and this one reads 0"),
        ("SELECT * FROM hadoop, loyalty", "exactly one topic, and this one reads 2"),
        ("SELECT count(*) FROM hadoop", "leave out aggregates"),
        ("SELECT City, sum(TotalValue) FROM hadoop GROUP BY City", "leave out aggregates"),
        ("SELECT DISTINCT City FROM hadoop", "leave out aggregates"),
        ("SELECT City FROM hadoop ORDER BY City", "leave out aggregates"),
        ("SELECT City FROM hadoop LIMIT 3", "leave out aggregates"),
        ("SELECT row_number() OVER () FROM hadoop", "leave out aggregates"),
        ("SELECT nothing FROM hadoop", "nothing"),
        ("FROM hadoop; SELECT 1", "needs one SELECT statement"),
        ("COPY (FROM hadoop) TO 'x.csv'", "needs one SELECT statement"),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM dead_letters_by_reason", "leave out aggregates"),
    ],
)
def test_a_statement_to_follow_selects_and_filters(database: Database, statement: str, error: str) -> None:
    """A statement that needs all records would give a wrong answer for each batch of them."""
    with pytest.raises(SqlError, match=error):
        next(database.follow(statement))
