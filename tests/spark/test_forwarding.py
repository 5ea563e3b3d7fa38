"""An audit finds the returns that never reached the account that bought, and no others. A rebuild sends them.

A rebuild sends the commands of an account in their order. The index of invoices then has one owner for each number.
"""

from types import SimpleNamespace

from pyspark.sql import types as T

from pipelines.accounts.records import RECORD_TYPE
from pipelines.reconciliation.forwarding import with_differences
from pipelines.reconciliation.rebuild import _forwarded, _index, _owners, _unsent
from schemas.topics import LOYALTY_COMMANDS
from services.domain.programme import Programmes
from services.messaging.avro import decoder, record_encoder
from tests.support.builders import IDS

CUSTOMERS = (
    "pseudonym string, card string, version string, "
    "differences array<struct<`where`: string, what: string, settles: boolean>>, "
    "purchases array<struct<original: string, bought_time: bigint, since: bigint, until: bigint>>, "
    "returns array<string>, commands array<string>"
)


def customer(name, purchases, returns=(), differences=(), commands=()):
    """A verdict. Each return of these purchases must be there if it came at the times 10 to 20.

    Args:
        purchases: by number, the append time.
    """
    bought = [(number, time, 10, 20) for number, time in purchases.items()]
    return f"p-{name}", name, "1.2", [*differences], bought, [*returns], [*commands]


CUSTOMERS_WITH_RETURNS = [
    customer("A", {"a": 5, "shared": 5, "twice": 5, "late": 18}, ["known"], [("ledger", "entry 2 is missing", False)]),
    customer("B", {"b": 5, "shared": 5, "twice": 12, "late": 16}, ["of-shared"]),
    customer("C", {"c": 5}, commands=["forwarded/forward", "gift/in"]),
    customer("D", {}, commands=["forwarded/forward"]),
]
RETURNS = [
    ("lost", "a", 10),
    ("lost-too", "b", 20),
    ("known", "a", 15),
    ("forwarded", "a", 15),
    ("redirected", "a", 15),
    ("redirected-elsewhere", "a", 15),
    ("too-early", "a", 9),
    ("too-late", "b", 21),
    ("of-nobody", "x", 15),
    ("of-shared", "shared", 15),
    ("of-A", "twice", 11),
    ("of-B", "twice", 12),
    ("waits-for-B", "late", 13),
]
"""A known, a forwarded or an untimely return is not lost, and neither is one of an unknown number.

A replaced card has sent two returns to its next card. Only the first one has reached the card that bought. If two
cards have bought a number, a return belongs to the last purchase before it, or to the first one after it.
"""
RECORDS = [
    ("!forwarded/forward", "p-former"),
    ("!redirected/redirected", "p-A"),
    ("!redirected-elsewhere/redirected", "p-B"),
    ("#lost", "p-A"),
    ("!lost", "p-A"),
    (None, None),
]


def facts(spark):
    """Customers, returns and records as ``not_forwarded`` takes them."""
    encode = record_encoder("Purchase", IDS.id_of("Purchase"))
    returns = [
        (number, original, time, encode({"InvoiceNumber": number, "TotalAmount": -1.0, "StoreID": "s"}))
        for number, original, time in RETURNS
    ]
    return (
        spark.createDataFrame(CUSTOMERS_WITH_RETURNS, CUSTOMERS),
        spark.createDataFrame(returns, "event_id string, original string, append_time bigint, event binary"),
        spark.createDataFrame(RECORDS, "identity string, pseudonym string"),
    )


def test_a_return_and_a_command_that_are_nowhere_are_differences(spark):
    """The other differences of the customers stay."""
    found = with_differences(*facts(spark)).collect()

    events = "events"
    assert {
        "A": [
            (events, "not forwarded: return lost of invoice a", True),
            (events, "not forwarded: return of-A of invoice twice", True),
            (events, "not forwarded: return redirected-elsewhere of invoice a", True),
            ("ledger", "entry 2 is missing", False),
        ],
        "B": [
            (events, "not forwarded: return lost-too of invoice b", True),
            (events, "not forwarded: return of-B of invoice twice", True),
            (events, "not forwarded: return waits-for-B of invoice late", True),
        ],
        "C": [(events, "not sent: gift/in", True)],
    } == {row.card: [tuple(each) for each in row.differences] for row in found}
    assert {(f"p-{card}", "1.2") for card in "ABC"} == {(row.pseudonym, row.version) for row in found}


def test_a_rebuild_sends_the_returns_that_an_audit_misses(spark):
    """It sends no other return. A return that was settled long ago would take points again."""
    customers, returns, records = facts(spark)
    accounts = customers.withColumnRenamed("card", "CustomerCardNo")

    rows = _forwarded(SimpleNamespace(ids=IDS), accounts, returns, records).collect()

    decode = decoder(LOYALTY_COMMANDS, IDS)
    sent = {(row.id, bytes(row.key), decode(bytes(row.value))["IssuedTime"]) for row in rows}
    assert {
        ("lost/forward", b"A", 10),
        ("lost-too/forward", b"B", 20),
        ("redirected-elsewhere/forward", b"A", 15),
        ("of-A/forward", b"A", 11),
        ("of-B/forward", b"B", 12),
        ("waits-for-B/forward", b"B", 13),
    } == sent


def test_the_last_customer_who_bought_with_a_number_is_its_owner(spark):
    """A till can use a number again after the repeat horizon. Both accounts then have a purchase with this number."""
    bought = [("A", [("first-A", 10), ("first-B", 30), ("a", 10)]), ("B", [("first-A", 30), ("first-B", 10)])]
    schema = "CustomerCardNo string, purchases array<struct<original: string, bought_time: bigint>>"
    owners = _owners(spark.createDataFrame(bought, schema))
    _, returns, _ = facts(spark)

    rows = _index(
        SimpleNamespace(programmes=Programmes()),
        owners,
        returns.where("original = 'x'").join(owners, "original", "left"),
        20,
    ).collect()

    assert [("a", "A"), ("first-A", "B"), ("first-B", "A"), ("x", "")] == sorted(
        (row.invoice, row.owner) for row in rows
    )


def test_a_rebuild_sends_the_commands_to_a_card_in_their_order(spark):
    """The parts of an account arrive in the order in which the account has cut itself. Sent commands are left out."""
    parts = [(number, f"move-{number % 2}/{number // 2}/moved") for number in range(40)]
    rows = [(each, LOYALTY_COMMANDS.name, name, name[:6].encode(), b"", None) for each, name in parts]
    commands = spark.createDataFrame(rows, T.StructType([T.StructField("position", T.IntegerType()), *RECORD_TYPE]))
    sent = spark.createDataFrame([("move-0/0/moved",), ("move-1/19/moved",)], "id string")

    written = [(bytes(row.key), row.id) for row in _unsent(commands.repartition(3, "id"), sent).collect()]

    for number in range(2):
        key = f"move-{number}"
        of_key = [name for written_key, name in written if written_key == key.encode()]
        assert [f"{key}/{part}/moved" for part in range(1 - number, 20 - number)] == of_key
    assert 38 == len(written)
