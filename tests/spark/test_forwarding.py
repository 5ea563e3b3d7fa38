"""The audit finds the returns that never reached the account that bought, and no others."""

from pipelines.reconciliation.forwarding import with_differences

CUSTOMERS = (
    "pseudonym string, card string, version string, "
    "differences array<struct<`where`: string, what: string, settles: boolean>>, "
    "purchases array<struct<original: string, since: bigint, until: bigint>>, returns array<string>"
)


def customer(name, purchases, returns=(), differences=()):
    """A verdict. Each return of these purchases must be there if it came at the times 10 to 20."""
    bought = [(number, 10, 20) for number in purchases]
    return f"p-{name}", name, "1.2", [*differences], bought, [*returns]


def test_a_return_that_no_account_and_no_command_has_is_a_difference(spark):
    """A known, a forwarded, a redirected or an untimely return is no difference, and neither is one of an unknown
    number.
    """
    customers = [
        customer("A", ["a", "shared"], ["known"], [("ledger", "entry 2 is missing", False)]),
        customer("B", ["b", "shared"], ["of-shared"]),
        customer("C", ["c"]),
    ]
    returns = [
        ("lost", "a", 10),
        ("lost-too", "b", 20),
        ("known", "a", 15),
        ("forwarded", "a", 15),
        ("redirected", "a", 15),
        ("too-early", "a", 9),
        ("too-late", "b", 21),
        ("of-nobody", "x", 15),
        ("of-shared", "shared", 15),
    ]
    records = [("!forwarded/forward",), ("!redirected/redirected",), ("#lost",), ("!lost",), (None,)]

    found = with_differences(
        spark.createDataFrame(customers, CUSTOMERS),
        spark.createDataFrame(returns, "event_id string, original string, append_time bigint"),
        spark.createDataFrame(records, "identity string"),
    ).collect()

    events = "events"
    assert {
        "A": [(events, "not forwarded: return lost of invoice a", True), ("ledger", "entry 2 is missing", False)],
        "B": [(events, "not forwarded: return lost-too of invoice b", True)],
    } == {row.card: [tuple(each) for each in row.differences] for row in found}
    assert {("p-A", "1.2"), ("p-B", "1.2")} == {(row.pseudonym, row.version) for row in found}
