"""The index of invoices in the state of one bucket."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from pyspark.sql.streaming.proto.StateMessage_pb2 import StateRequest

from pipelines.accounts.invoice_index import BOUGHT, FORGOTTEN, RETURNED, InvoiceIndex, News, index_memory
from pipelines.accounts.records import rows_of, writer_ids
from pipelines.runtime.state_calls import StateMaps
from services.codecs.events import decode_event
from services.domain.account.processor import process
from services.domain.events import Erase, Forward, Line, Purchase
from services.domain.invoice_index import IndexedInvoice, Returned
from services.domain.programme import DAY, Programme, Programmes
from services.messaging.avro import record_decoder, record_encoder
from tests.support.builders import IDS
from tests.support.state_server import StateServer, state_server


@contextmanager
def open_index(tmp_path: Path, most_waiting: int = 5) -> Iterator[tuple[InvoiceIndex, StateServer]]:
    """An index without numbers, and the server that stores it."""
    with state_server(tmp_path / "socket") as (handle, server):
        yield (
            InvoiceIndex(handle, StateMaps(handle, are_shared=True), Programmes(), writer_ids(IDS), most_waiting),
            server,
        )


def returned(number: str, original: str) -> bytes:
    lines = [{"ItemCode": "sofa", "TotalValue": -100.0}]
    record = {"InvoiceNumber": number, "TotalAmount": -100.0, "StoreID": "s", "OriginalInvoiceNumber": original}
    return record_encoder("Purchase", IDS.id_of("Purchase"))(record | {"InvoiceLineItems": lines})


def writes_of_numbers(server: StateServer) -> int:
    requests = (StateRequest.FromString(body) for _, body in server.requests)
    calls = [each.stateVariableRequest.mapStateCall for each in requests]
    return sum(each.stateName == "invoices" and each.WhichOneof("method") == "updateValue" for each in calls)


def steps(rows) -> dict[str, int]:
    return dict(Counter(row.id for row in rows if row.topic is None))


def test_a_waiting_return_is_forwarded_with_its_own_time_and_without_its_card(tmp_path):
    with open_index(tmp_path) as (index, server):
        assert {"waiting": 1} == steps(index.process([News(RETURNED, "p", 5, "other", returned("r", "p"))]))
        assert not any(b"other" in value for value in server.kept["invoices"].values())

        row, *rest = index.process([News(BOUGHT, "p", 9, "card", None)])
        assert ("loyalty-commands", "r/forward", b"card") == (row.topic, row.id, row.key)
        invoice = Purchase(
            5, "r", Decimal(-100), "s", "", None, original_invoice_number="p", lines=(Line("sofa", Decimal(-100)),)
        )
        assert Forward(append_time=20, command_id="r/forward", invoice=invoice) == decode_event(20, row.value)
        assert {"settled": 1, "forwarded": 1} == steps(rest)

        again = index.process([News(RETURNED, "p", 7, None, returned("s", "p")), News(RETURNED, "p", 8, "card", b"")])
        assert ["s/forward", "forwarded"] == [row.id for row in again]


def test_an_erased_account_tells_the_index_its_numbers(tmp_path):
    """The commands name them one by one. Afterwards the state names the card no more."""
    purchases = [Purchase(1, "p", Decimal(100)), Purchase(2, "q", Decimal(-1), original_invoice_number="x")]
    outcome = process(None, [*purchases, Erase(append_time=3, command_id="e")], Programmes(), "card")
    rows = [row for row in rows_of("card", outcome, writer_ids(IDS)) if row.topic == "loyalty-commands"]
    commands = [record_decoder("LoyaltyCommand", IDS.writer_schema)(row.value) for row in rows]
    assert [("forget", "p"), ("forget", "q")] == [(each["Kind"], each["Invoice"]["InvoiceNumber"]) for each in commands]

    with open_index(tmp_path) as (index, server):
        for number in ("p", "q"):
            assert [] == list(index.process([News(BOUGHT, number, 1, "card", None)]))
        for command in commands:
            number = command["Invoice"]["InvoiceNumber"]
            assert [] == list(index.process([News(FORGOTTEN, number, 3, command["CustomerCardNo"], None)]))
        assert {} == server.kept["invoices"]


def test_the_oldest_return_of_a_full_bucket_stops_waiting(tmp_path):
    news = [News(RETURNED, f"p{n}", n, None, returned(f"r{n}", f"p{n}")) for n in range(5)]
    with open_index(tmp_path, most_waiting=3) as (index, _):
        counted = [steps(index.process([each])) for each in news]
        assert [{"waiting": 1}] * 3 + [{"waiting": 1, "dropped": 1}] * 2 == counted

        rows = index.process([News(BOUGHT, f"p{n}", 9, "card", None) for n in range(5)])
        assert ["r2/forward", "r3/forward", "r4/forward"] == [row.id for row in rows if row.topic]


def test_more_returns_than_a_bucket_holds_in_one_micro_batch(tmp_path):
    news = [News(RETURNED, f"p{n}", n, None, returned(f"r{n}", f"p{n}")) for n in range(7)]
    with open_index(tmp_path, most_waiting=3) as (index, _):
        assert {"waiting": 7, "dropped": 4} == steps(index.process(news))


def test_the_bound_holds_if_one_number_has_several_places(tmp_path):
    """Two returns of p wait. Three more take all places, so both returns of p stop waiting."""
    first = [News(RETURNED, "p", n, None, returned(f"r{n}", "p")) for n in range(2)]
    more = [News(RETURNED, f"q{n}", 5 + n, None, returned(f"s{n}", f"q{n}")) for n in range(3)]
    with open_index(tmp_path, most_waiting=3) as (index, _):
        assert {"waiting": 2} == steps(index.process(first))
        assert {"waiting": 3, "dropped": 2} == steps(index.process(more))

        rows = index.process([News(BOUGHT, number, 9, "card", None) for number in ("p", "q0", "q1", "q2")])
        assert ["s0/forward", "s1/forward", "s2/forward"] == [row.id for row in rows if row.topic]


def test_a_return_that_has_been_forwarded_is_not_dropped(tmp_path):
    """Its number still has its place. The customer is erased, so the next return of the number waits."""
    first, second, *more = (News(RETURNED, number, 1, None, returned(number, number)) for number in "ppqrs")
    with open_index(tmp_path, most_waiting=3) as (index, _):
        list(index.process([first]))
        list(index.process([News(BOUGHT, "p", 2, "card", None), News(FORGOTTEN, "p", 3, "card", None)]))
        assert {"waiting": 1} == steps(index.process([second._replace(append_time=4)]))
        assert {"waiting": 3, "dropped": 1} == steps(index.process(more))


def test_a_purchase_renews_the_time_to_live_of_its_number(tmp_path):
    """A till can use a number again. Spark counts the time from the last write."""
    with open_index(tmp_path) as (index, server):
        list(index.process([News(BOUGHT, "p", 1, "card", None)]))
        assert 1 == writes_of_numbers(server)
        list(index.process([News(BOUGHT, "p", 60 * DAY, "card", None)]))
        assert 2 == writes_of_numbers(server)


def test_a_new_checkpoint_begins_with_numbers_and_waiting_returns(tmp_path):
    """The returns have places: later ones end their wait."""
    with open_index(tmp_path, most_waiting=1) as (index, _):
        index.add("known", IndexedInvoice("card"))
        index.add("unknown", IndexedInvoice("", (Returned(5, "", returned("early", "unknown")),)))
        rows = [
            *index.process([News(RETURNED, "known", 6, None, returned("r", "known"))]),
            *index.process([News(BOUGHT, "unknown", 7, "card", None)]),
        ]
        assert ["r/forward", "early/forward"] == [row.id for row in rows if row.topic]

        index.add("lost", IndexedInvoice("", (Returned(5, "", returned("late", "lost")),)))
        assert {"waiting": 1, "dropped": 1} == steps(index.process([News(RETURNED, "p", 8, None, returned("s", "p"))]))


def test_a_number_stays_as_long_as_an_account_remembers_its_purchase():
    assert 20 * DAY == index_memory(Programmes((Programme(return_window=DAY),)))
    assert 100 * DAY == index_memory(Programmes((Programme(return_window=DAY), Programme(version=1))))
