"""Which returns an account must know, and which commands it has sent, so that the audit finds lost ones."""

from decimal import Decimal

from pipelines.reconciliation.audit import _RESULT, _examination
from pipelines.reconciliation.customers import Customer
from pipelines.reconciliation.forwarding import Returnable, commands_of, returnables
from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.codecs.events import forward_record
from services.domain.account.processor import process
from services.domain.events import Erase, Purchase, Replace, Transfer
from services.domain.programme import DAY, Programme, Programmes
from services.messaging.avro import record_encoder
from tests.support.builders import IDS

NOW = 1_790_000_000_000
PROGRAMMES = Programmes((Programme(return_window=30 * DAY),))


def account_after(*events):
    return process(None, events, PROGRAMMES, "card").account


def test_a_return_must_be_there_for_as_long_as_the_purchase_can_be_returned():
    """At each change, the account forgets old returns. So older returns may be missing."""
    account = account_after(Purchase(NOW, "I1", Decimal(10)), Purchase(NOW + DAY, "I2", Decimal(10)))
    assert NOW + DAY == account.updated_time

    assert [
        Returnable("I1", NOW, NOW - 29 * DAY, NOW + 30 * DAY),
        Returnable("I2", NOW + DAY, NOW - 29 * DAY, NOW + 31 * DAY),
    ] == [*returnables(account, PROGRAMMES, account.updated_time)]


def test_the_commands_of_a_return_have_the_ids_that_the_query_gives_them():
    """The index of invoices sends one command, and a replaced card another. An invoice number may be very long."""
    for number in ("R1", "9" * 128):
        record = {"InvoiceNumber": number, "TotalAmount": -1.0, "StoreID": "s"}
        from_index = forward_record("card", NOW, record_encoder("Purchase", IDS.id_of("Purchase"))(record))
        replaced = account_after(Replace(append_time=NOW, command_id="c", counterparty="other"))
        returned = Purchase(NOW + 1, number, Decimal(-1), original_invoice_number="I1")
        ((_, redirected),) = process(replaced, [returned], PROGRAMMES, "card").commands

        assert (from_index["CommandID"], redirected.event_id) == commands_of(number)


def test_the_audit_looks_for_the_commands_of_an_account_unless_the_topic_can_have_deleted_them():
    events = [
        Purchase(NOW, "I1", Decimal(1000)),
        Transfer(append_time=NOW + 1, command_id="gift", points=100, counterparty="friend"),
        Transfer(append_time=NOW + 2, command_id="too-much", points=9_999, counterparty="friend"),
        Replace(append_time=NOW + 3, command_id="lost", counterparty="new"),
        Purchase(NOW + 4, "I2", Decimal(10)),
        Erase(append_time=NOW + 5, command_id="bye"),
    ]
    facts = Facts(events, {Source.LOYALTY: process(None, events, PROGRAMMES, "card").entries})

    def commands(events_from, record_from=0):
        coverage = Coverage(frozenset({Source.LOYALTY}), events_from, record_from, record_from, NOW + DAY)
        customer = Customer("p-card", "card", facts, *compare("card", facts, PROGRAMMES, coverage, "p-{}".format))
        row = _examination(PROGRAMMES, coverage)(customer)
        assert _RESULT.names == [*row]
        return row["recomputed"], row["commands"]

    assert (True, ["gift/in", "lost/0/moved", "I2/redirected", "bye/0/card"]) == commands(0)
    assert commands(0) == commands(NOW)
    assert (True, []) == commands(NOW + 1)
    assert (True, []) == commands(0, record_from=NOW + 1), "the order of the events is a guess"
    facts.events.pop(0)
    assert (False, []) == commands(NOW + 1)
