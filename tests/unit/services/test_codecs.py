"""Conversion of accounts and their events to bytes and records."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import schemas
from services.codecs.events import _COMMANDS, command_record, credit_record, decode_event, forget_record
from services.codecs.records import (
    MARK_SEQUENCE,
    PENDING,
    balance_record,
    decision_record,
    erased_decision_record,
    mark_of,
    notification_record,
    points_bytes,
)
from services.codecs.state import decode_account, encode_account
from services.domain.account.lots import Terms
from services.domain.account.model import (
    Account,
    ErasureMarker,
    ForgottenCommand,
    PastCommand,
    PastPurchase,
    PastReturn,
    Reservation,
)
from services.domain.account.processor import process
from services.domain.command_rules import KINDS
from services.domain.entries import Kind
from services.domain.events import Adjust, Erase, Forward, Line, Purchase, Receive, Reserve, SentLot, Transfer
from services.domain.programme import Programme, Programmes
from services.messaging.avro import UndecodableError, record_decoder, record_encoder
from tests.support.builders import IDS
from tests.support.examples import examples
from tests.support.strategies import (
    ACCOUNT_EVENTS,
    ACCOUNT_EVENTS_WITH_ERASURES,
    COMMANDS,
    ERASURES,
    PROGRAMMES,
    PURCHASES,
    RETURNS,
)


def written(name, record):
    return record_encoder(name, IDS.id_of(name))(record)


def over_the_wire(name, record):
    return record_decoder(name, IDS.writer_schema)(written(name, record))


def purchase_record(purchase):
    return {
        "InvoiceNumber": purchase.invoice_number,
        "TotalAmount": float(purchase.total_amount),
        "CreatedTime": purchase.created_time,
        "StoreID": purchase.store_id,
        "CustomerType": purchase.customer_type,
        "OriginalInvoiceNumber": purchase.original_invoice_number,
        "InvoiceLineItems": [
            {
                "ItemCode": line.item_code,
                "TotalValue": float(line.value),
                "TakesBackDiscount": line.takes_back_discount,
            }
            for line in purchase.lines
        ],
        "TaxableAmount": None if purchase.taxable_amount is None else float(purchase.taxable_amount),
    }


def asked(**changes):
    return command_record("card", Reserve(append_time=0, command_id="1", points=1)) | changes


@settings(max_examples=examples(60))
@given(ACCOUNT_EVENTS, PROGRAMMES)
def test_account_survives_the_state_store(events, programmes):
    """Writing to Spark's state and reading back changes nothing."""
    account = process(None, events, programmes, "card").account
    if account:
        assert account == decode_account(encode_account(account))


KEPT = Account(
    opened_time=1,
    sequence=2,
    updated_time=3,
    debt=4,
    lots={Terms(5, 6, 7): 8},
    reservations={"redemption": Reservation(9, {Terms(): 10})},
    purchases={"invoice": PastPurchase(11, Decimal("12.50"), 13, 14, "gold", 15, "STR1", (Line("item", Decimal(16)),))},
    commands={"command": PastCommand(17)},
    tier="gold",
    period_start=18,
    period_end=19,
    earned_in_period=20,
)
KEPT_BYTES = bytes.fromhex(
    "019c0102030481930506070881aa726564656d7074696f6e920981930000000a81a7696e766f696365980ba531322e35300d"
    "0ea4676f6c640fa4535452319182a96974656d5f636f6465a46974656da576616c7565a2313681a7636f6d6d616e6411a467"
    "6f6c64121314"
)


def test_stored_accounts_stay_readable():
    """Checkpoints contain these bytes. Their meaning does not depend on names and modules of the domain."""
    assert KEPT == decode_account(KEPT_BYTES)
    assert KEPT == decode_account(encode_account(KEPT))


WITH_RETURNS = Account(
    opened_time=1,
    purchases={"bought": PastPurchase(11, Decimal(12), 13, 14, items={"item": Decimal("16.50")})},
    returns={
        "decided": PastReturn(17, 18),
        "waits": PastReturn(19, 20, "unknown", Decimal(-21), {"item": Decimal(22)}, Decimal(-20)),
    },
)

WITH_RETURNS_BYTES = (
    "019d01000000808081a6626f75676874990ba231320d0ea000a09081a46974656da531362e353080a000000082a764656369"
    "646564961112a0a130c0c0a57761697473961314a7756e6b6e6f776ea32d323181a46974656da23232a32d3230"
)


def test_stored_returns_stay_readable():
    """These bytes have the items of purchases, and returns. The bytes of later fields follow them."""
    assert WITH_RETURNS == decode_account(bytes.fromhex(WITH_RETURNS_BYTES))
    bought = WITH_RETURNS.purchases["bought"]._replace(decided_time=10)
    later = replace(WITH_RETURNS, is_blocked=True, purchases={"bought": bought}, moved_to="new", former_cards=("old",))
    assert WITH_RETURNS_BYTES[4:26] in encode_account(later).hex()
    assert later == decode_account(encode_account(later))


def test_the_marker_of_an_erased_account_survives_the_state_store():
    """The marker contains only a time."""
    assert bytes.fromhex("020c") == encode_account(ErasureMarker(12))
    assert ErasureMarker(12) == decode_account(bytes.fromhex("020c"))


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(KEPT_BYTES[:-1], id="cut off"),
        pytest.param(KEPT_BYTES + b"\1", id="too long"),
        pytest.param(b"\3" + KEPT_BYTES[1:], id="unknown format"),
        pytest.param(b"\2" + KEPT_BYTES[1:], id="no marker"),
        pytest.param(b"\1\x91\1", id="too few fields"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_damaged_state_is_refused(damaged):
    with pytest.raises(UndecodableError):
        decode_account(damaged)


@settings(max_examples=examples(40))
@given(ACCOUNT_EVENTS, PROGRAMMES, st.integers(0, 14))
def test_an_account_continues_from_the_state_store(events, programmes, cut):
    """Storing and loading between two batches changes no entry, and keeps the order of purchases and commands."""
    ordered = sorted(events, key=lambda event: event.append_time)
    account = process(None, ordered[:cut], programmes, "card").account
    stored = account and decode_account(encode_account(account))

    assert process(account, ordered[cut:], programmes, "card") == process(stored, ordered[cut:], programmes, "card")
    if account:
        assert list(account.purchases) == list(stored.purchases)
        assert list(account.commands) == list(stored.commands)


def schema_id_header(schema_id):
    return b"\0" + schema_id.to_bytes(4, "big")


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda body: schema_id_header(13) + body))
def test_other_bytes_are_neither_an_event_nor_an_account(value):
    """Both decoders raise an error that says so."""
    with pytest.raises(UndecodableError):
        decode_event(1, value)
    with pytest.raises(UndecodableError):
        decode_account(value)


@example(Purchase(1, "P", Decimal(1), lines=(Line("bag", Decimal(0)),)))
@given(PURCHASES | RETURNS)
def test_purchase_arrives_as_it_was(purchase):
    """Amounts are the decimals that the doubles show. Lines without an item or a value are left out."""
    event = decode_event(purchase.append_time, written("Purchase", purchase_record(purchase)))

    assert replace(purchase, lines=tuple(line for line in purchase.lines if line.value)) == event


def test_a_blank_original_is_no_original():
    """Otherwise the sale would wait as a return."""
    record = purchase_record(Purchase(1, "P", Decimal(1))) | {"OriginalInvoiceNumber": " \u200b"}

    assert decode_event(1, written("Purchase", record)).original_invoice_number is None


@example(Forward(append_time=9, command_id="R", invoice=Purchase(5, "R", Decimal(-9), original_invoice_number="B")), "")
@given(COMMANDS | ERASURES, st.text(max_size=5))
def test_command_arrives_as_it_was_given(command, text):
    """Encoding and decoding change no command of any kind."""
    command = replace(command, reason=text, actor=text, request_hash=text)
    event = decode_event(command.append_time, written("LoyaltyCommand", command_record("card", command)))

    assert command == event


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (asked(Kind="steal"), "no command of kind 'steal'"),
        (asked(CommandID=" "), "CommandID is blank"),
        (asked(Points=Decimal(0)), "Points out of range"),
        (asked(Points=Decimal(-1)), "Points out of range"),
        (asked(Points=Decimal(10) ** 11), "Points out of range"),
        (asked(Kind="adjust", Points=Decimal(0)), "Points out of range"),
        (asked(Kind="adjust", Points=-(Decimal(10) ** 11)), "Points out of range"),
        (asked(Kind="capture"), "RedemptionID is blank"),
        (asked(Kind="void"), "RedemptionID is blank"),
        (asked(Kind="transfer"), "Counterparty is blank"),
        (asked(Kind="receive", Counterparty="1", Lots=[{"Points": 0, "ExpiresTime": 0}]), "a lot out of range"),
        (asked(Kind="receive", Counterparty="1", Lots=[{"Points": 1, "ExpiresTime": -1}]), "a lot out of range"),
        (asked(Kind="receive", Counterparty="1", Lots=[{"Points": 10**13, "ExpiresTime": 0}]), "a lot out of range"),
        (asked(Kind="receive", Counterparty="1"), "Lots are missing"),
    ],
)
def test_malformed_command_is_named(record, reason):
    """A command that an account cannot decide raises an error with the reason."""
    with pytest.raises(UndecodableError, match=reason):
        decode_event(1, written("LoyaltyCommand", record))


def test_each_valid_kind_of_command_is_an_event():
    """A redirect is read as a purchase. A command of the kind forget is for the index of invoices, and is no event."""
    assert {*KINDS} == {*_COMMANDS, "redirect", "forget"}


@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
def test_amount_must_be_finite(amount):
    """Infinity and NaN have no decimal. Validation refuses them before."""
    record = purchase_record(Purchase(1, "1", Decimal(1))) | {"TotalAmount": amount}
    with pytest.raises(UndecodableError, match="not a finite amount"):
        decode_event(1, written("Purchase", record))


@settings(max_examples=examples(40))
@example(
    [Purchase(1, "1", Decimal(100)), Transfer(append_time=2, command_id="t", points=50, counterparty="other")],
    Programmes(),
)
@given(ACCOUNT_EVENTS_WITH_ERASURES, PROGRAMMES)
def test_records_have_all_fields_of_their_schemas(events, programmes):
    """Entries, balances, decisions and credits decode to the same values."""
    outcome = process(None, events, programmes, "card")
    records = [
        *(("Notification", notification_record("card", entry)) for entry in outcome.entries),
        *(("Balance", balance_record("card", entry)) for entry in outcome.entries),
        *(("Decision", decision_record("card", made)) for made in outcome.decisions),
        *(("LoyaltyCommand", credit_record("card", credit)) for credit in outcome.credits),
    ]
    for name, record in records:
        assert schemas.field_names(name) == list(record)
        assert record == over_the_wire(name, record)


@given(st.integers(-(10**18) + 1, 10**18 - 1) | st.sampled_from([-256, -129, -128, -127, -1, 0, 127, 128, 255]))
def test_points_as_bytes_are_the_decimals_that_fastavro_writes(hundredths):
    entry, *_ = process(None, [Adjust(append_time=2, command_id="command", points=5)], Programmes(), "card").entries
    amounts = dict.fromkeys(("points", "total", "available", "pending", "reserved"), hundredths)
    entry = replace(entry, **amounts)

    for name, record in (("Notification", notification_record), ("Balance", balance_record)):
        assert written(name, record("card", entry)) == written(name, record("card", entry, points_bytes))


def test_entry_has_the_fields_of_its_notification():
    """The notification contains every field of the entry."""
    purchase = Purchase(1, "invoice", Decimal("100.10"))
    command = Adjust(append_time=2, command_id="command", points=5, reason="why", actor="who")
    first, second = process(None, [purchase, command], Programmes((Programme(3),)), "card").entries
    record = notification_record("card", second)

    assert ("invoice", 100.1) == tuple(notification_record("card", first)[n] for n in ("EventID", "TotalAmount"))
    assert ("adjusted", "command", "why", "who", 3) == tuple(
        record[name] for name in ("Kind", "EventID", "Reason", "Actor", "ProgrammeVersion")
    )
    assert (Decimal("0.05"), Decimal("2.05")) == (record["EarnedLoyaltyPoints"], record["TotalLoyaltyPoints"])


def test_credit_becomes_the_other_end_of_the_transfer():
    """The command for the receiver has an id that follows from the transfer, so each copy after the first is a
    duplicate.
    """
    transfer = Transfer(append_time=2, command_id="transfer", points=50, counterparty="other", reason="gift")
    outcome = process(None, [Purchase(1, "1", Decimal(100)), transfer], Programmes(), "card")
    record = credit_record("card", outcome.credits[0])

    assert "other" == record["CustomerCardNo"]
    assert Receive(
        append_time=3, command_id="transfer/in", reason="gift", counterparty="card", lots=(SentLot(50, 0),)
    ) == decode_event(3, written("LoyaltyCommand", record))


def test_decision_of_an_erasure_names_nobody():
    """The decision is kept for longer than the data of the customer."""
    outcome = process(None, [Erase(append_time=1, command_id="erase")], Programmes(), "card")

    assert "card" not in decision_record("card", outcome.decisions[0]).values()
    assert Kind.ERASED == outcome.entries[0].kind


def test_a_command_of_an_erased_account_is_still_recognised():
    """The record that replaces its decision has the kind and the hash of its mark."""
    mark, erased = mark_of("C", "reserve", "hash"), erased_decision_record(ForgottenCommand("C", "reserve", "hash"))

    assert mark == erased | {"Sequence": MARK_SEQUENCE, "Status": PENDING}


def test_state_stays_small():
    """A purchase needs about 40 bytes, and 10 bytes for each of its items."""
    lines = tuple(Line(f"item-{number}", Decimal(10)) for number in range(5))
    start = 1_790_000_000_000
    purchases = [Purchase(start + n, f"5140{n:04}", Decimal("11114.5"), "STR7188", lines=lines) for n in range(11)]

    def size(count, programme):
        return len(encode_account(process(None, purchases[:count], Programmes((programme,)), "card").account))

    assert size(11, Programme()) - size(1, Programme()) <= (40 + 5 * 10) * 10


def test_each_card_of_an_erased_customer_forgets_an_invoice():
    """With the same id, the query would drop the second command as a duplicate."""
    assert 2 == len({forget_record(card, "bought")["CommandID"] for card in ("old", "new")})


def test_a_redirected_return_still_takes_back_its_discount():
    """A replaced card sends it to the new card."""
    lines = Line("milk", Decimal(-100)), Line("off", Decimal(10), takes_back_discount=True)
    returned = Purchase(5, "back", Decimal(-90), "S1", original_invoice_number="bought", lines=lines, redirect_id="r")
    record = command_record("card", returned)

    assert returned == decode_event(5, written("LoyaltyCommand", record))
