"""The loyalty query's processor, on the state calls it makes."""

from contextlib import contextmanager
from decimal import Decimal
from types import SimpleNamespace

from pipelines.accounts.operator import AccountOperator
from pipelines.accounts.records import rows_of, writer_ids
from services.codecs.events import command_record
from services.domain.account.processor import advance, process
from services.domain.events import Erase, Purchase
from services.domain.programme import Programme, Programmes
from services.messaging.avro import record_encoder
from services.messaging.schema_ids import FolderSchemaIds
from tests.support.state_server import state_server

DAY = 24 * 3600 * 1000
IDS = FolderSchemaIds()
INTERVAL = 10_000


@contextmanager
def a_bucket(tmp_path, programmes):
    """The processor with the state of one bucket, and what is kept there."""
    with state_server(tmp_path / "socket") as (handle, server):
        processor = AccountOperator(programmes, writer_ids(IDS), INTERVAL)
        processor.init(handle)
        yield processor, server


def bought(card, number, time, amount="100"):
    return card, Purchase(time, number, Decimal(amount))


def batch(processor, *events):
    """The rows that these events, each with its card, lead to."""
    rows = [
        SimpleNamespace(CustomerCardNo=card, append_time=e.append_time, event=framed(card, e)) for card, e in events
    ]
    return list(processor.handleInputRows((1,), iter(rows), None))


def framed(card, event):
    if isinstance(event, Purchase):
        record = {"InvoiceNumber": event.invoice_number, "TotalAmount": float(event.total_amount)}
        encode = record_encoder("Purchase", IDS.id_of("Purchase"))
        return encode(record | {"StoreID": "", "CustomerType": "PRIME", "InvoiceLineItems": []})
    return record_encoder("LoyaltyCommand", IDS.id_of("LoyaltyCommand"))(command_record(card, event))


def wakes(processor, timer, now):
    """The rows that a timer leads to."""
    values = SimpleNamespace(getCurrentProcessingTimeInMs=lambda: now)
    return list(processor.handleExpiredTimer((1,), values, SimpleNamespace(getExpiryTimeInMs=lambda: timer)))


def test_customers_of_a_bucket_are_decided_each_alone(tmp_path):
    """Together they get the rows that each would get by itself, batch after batch, in the order of the cards."""
    programmes = Programmes()
    batches = [
        [bought("b", "1", 1), bought("a", "2", 2), bought("b", "3", 3)],
        [bought("c", "4", 4), bought("b", "5", 5), bought("b", "1", 6)],
    ]
    accounts, expected = {}, []
    for events in batches:
        for card in sorted({card for card, _ in events}):
            own = [event for whose, event in events if whose == card]
            outcome = process(accounts.get(card), own, programmes, card)
            accounts[card] = outcome.account
            expected += rows_of(card, outcome, writer_ids(IDS))
    with a_bucket(tmp_path, programmes) as (processor, _):
        assert expected == [row for events in batches for row in batch(processor, *events)]


def test_of_an_erased_customer_nothing_stays(tmp_path):
    """Neither the account nor the name that a timer would call; others of the bucket keep both."""
    with a_bucket(tmp_path, Programmes((Programme(valid_for=365 * DAY),))) as (processor, server):
        batch(processor, bought("4711", "1", 1), bought("4712", "2", 1))
        batch(processor, ("4711", Erase(append_time=2, command_id="C1")))
        kept = {name: b"".join([*state, *state.values()]) for name, state in server.kept.items()}
        assert {"accounts": False, "timers": False, "waiting": False} == {n: b"4711" in k for n, k in kept.items()}
        assert {"accounts": True, "timers": False, "waiting": True} == {n: b"4712" in k for n, k in kept.items()}


def test_a_timer_wakes_whom_it_was_set_for(tmp_path):
    """Those whose points are due then, from however many batches, each once; afterwards it knows nobody."""
    programmes = Programmes((Programme(pending=DAY),))
    with a_bucket(tmp_path, programmes) as (processor, server):
        batch(processor, bought("4711", "1", 1))
        batch(processor, bought("4712", "2", 2), bought("4713", "3", 2 + INTERVAL))
        first, second = sorted(server.timers)
        expected = []
        for card, number, time in (("4711", "1", 1), ("4712", "2", 2)):
            account = process(None, [bought(card, number, time)[1]], programmes, card).account
            expected += rows_of(card, advance(account, first, programmes), writer_ids(IDS))
        assert expected == wakes(processor, first, first)
        assert [] == wakes(processor, first, first)
        assert ["4713"] == [row.key.decode() for row in wakes(processor, second, second)][:1]
        assert ({}, {}) == (server.kept["timers"], server.kept["waiting"])
