import hashlib
from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import topics
from services.domain.invoice import PosInvoice
from services.domain.returns import InvoiceKind
from services.domain.validation import first_violation
from services.messaging import avro
from services.pos_simulator import invoicing
from services.pos_simulator.broken import Breakage
from services.pos_simulator.simulation import Kind, Message, Options, Simulation
from tests.support.builders import IDS, purchase
from tests.support.examples import examples
from tests.support.oracles import is_home_delivery, is_prime

DECODE = avro.decoder(topics.POS_INVOICES, IDS)


def tell(**options: object) -> list[Message]:
    return list(Simulation(Options(**options)).messages())  # type: ignore[arg-type]


def invoices(messages: list[Message]) -> list[PosInvoice]:
    return [message.invoice for message in messages if message.kind is Kind.INVOICE and message.invoice]


@pytest.fixture(scope="module")
def day() -> list[Message]:
    """A day with many duplicates and broken messages."""
    return tell(count=6_000, prime=0.4, home_delivery=0.3, repeats=0.1, broken=0.2, seed=7)


@given(seed=st.integers(0, 2**40), repeats=st.floats(0, 0.5), broken=st.floats(0, 0.5), customers=st.integers(2, 50))
@settings(max_examples=examples(15), deadline=None)
def test_same_seed_gives_same_bytes(seed: int, repeats: float, broken: float, customers: int) -> None:
    """Two simulations with equal options give equal messages in the same order."""
    options = {"count": 60, "seed": seed, "repeats": repeats, "broken": broken, "customers": customers}

    assert [(m.key, m.value) for m in tell(**options)] == [(m.key, m.value) for m in tell(**options)]


def test_bytes_are_the_same_on_every_machine() -> None:
    """A day has a fixed digest, independent of the hash seed and the version of Python."""
    digest = hashlib.sha256(
        b"".join((m.key or b"") + m.value for m in tell(count=500, seed=42, broken=0.1, repeats=0.1))
    )

    assert digest.hexdigest()[:16] == "d96cc8b665b5d869"


def test_other_seeds_share_no_invoice_number() -> None:
    """Two seeds have no common invoice number, also if they begin with the same digits."""
    numbers = [invoice["InvoiceNumber"] for seed in (1, 11, 111) for invoice in invoices(tell(count=300, seed=seed))]

    assert len(numbers) == len(set(numbers))


def test_invoice_numbers_never_collide(day: list[Message]) -> None:
    """Two invoices have the same number only if one is a duplicate."""
    numbers = [invoice["InvoiceNumber"] for invoice in invoices(day)]

    assert len(numbers) == len(set(numbers))


def test_the_count_includes_duplicates_and_broken_messages(day: list[Message]) -> None:
    assert 6_000 == len(day)


def test_shares_are_near_the_options(day: list[Message]) -> None:
    """The shares are within four standard deviations (at most 0.03 for these counts)."""
    kinds = Counter(message.kind for message in day)
    valid = invoices(day)

    assert 0.1 == pytest.approx(kinds[Kind.REPEAT] / len(day), abs=0.03)
    assert 0.2 == pytest.approx(kinds[Kind.BROKEN] / len(day), abs=0.03)
    assert 0.4 == pytest.approx(sum(map(is_prime, valid)) / len(valid), abs=0.03)
    assert 0.3 == pytest.approx(sum(map(is_home_delivery, valid)) / len(valid), abs=0.03)


@pytest.mark.parametrize("share", [0, 1])
def test_shares_of_none_and_all_are_exact(share: int) -> None:
    """Share 0 gives no such invoices, and share 1 gives only such invoices."""
    valid = invoices(tell(count=300, prime=share, home_delivery=share, repeats=0, broken=0))

    assert [bool(share)] * 300 == [is_prime(invoice) for invoice in valid]
    assert [bool(share)] * 300 == [is_home_delivery(invoice) for invoice in valid]


def test_a_duplicate_repeats_an_earlier_message(day: list[Message]) -> None:
    """It has the key and the bytes of an earlier invoice. Some follow directly, others much later."""
    first_at: dict[tuple[bytes | None, bytes], int] = {}
    distances = []
    for position, message in enumerate(day):
        if message.kind is Kind.INVOICE:
            first_at[message.key, message.value] = position
        elif message.kind is Kind.REPEAT:
            distances.append(position - first_at[message.key, message.value])

    assert 1 == min(distances)
    assert len(day) / 2 < max(distances)


def test_every_invoice_is_valid_and_equals_its_decoded_bytes(day: list[Message]) -> None:
    for message in day:
        if message.invoice is not None:
            assert message.invoice == DECODE(message.value)
            assert first_violation(message.invoice) is None
            assert message.key == str(message.invoice["StoreID"]).encode()


def test_amounts_add_up_exactly(day: list[Message]) -> None:
    """Decimals agree: price x quantity, the sum of lines, and taxes rounded half up to cents."""
    exact = lambda amount: Decimal(repr(amount))  # noqa: E731
    for invoice in invoices(day):
        items = invoice["InvoiceLineItems"] or []
        for item in items:
            assert exact(item["TotalValue"]) == exact(item["ItemPrice"]) * (item["ItemQty"] or 0)
        total = exact(invoice["TotalAmount"])
        assert total == sum(exact(item["TotalValue"]) for item in items)
        assert total == exact(invoice["TaxableAmount"])
        half_gst = (total * Decimal("0.025")).quantize(Decimal("0.01"), "ROUND_HALF_UP")
        assert half_gst == exact(invoice["CGST"]) == exact(invoice["SGST"])
        assert (total * Decimal("0.00125")).quantize(Decimal("0.01"), "ROUND_HALF_UP") == exact(invoice["CESS"])
        assert len(items) == invoice["NumberOfItems"] == len({item["ItemCode"] for item in items})


def test_returns_and_exchanges_are_valid_and_name_their_originals() -> None:
    """Their shares are near what was asked. Most have another store than the original, and some come before it."""
    messages = tell(count=3_000, repeats=0, broken=0, returns=0.1, exchanges=0.05)
    valid = invoices(messages)
    position = {invoice["InvoiceNumber"]: number for number, invoice in enumerate(valid)}
    kinds: dict[InvoiceKind, list[PosInvoice]] = {kind: [] for kind in InvoiceKind}
    for message, invoice in zip(messages, valid, strict=True):
        assert first_violation(invoice) is None
        assert invoice == DECODE(message.value)
        values = [item["TotalValue"] or 0 for item in invoice["InvoiceLineItems"] or []]
        assert Decimal(repr(invoice["TotalAmount"])) == sum(map(Decimal, map(repr, values)))
        kinds[purchase(0, invoice).invoice_kind].append(invoice)

    assert 250 < len(kinds[InvoiceKind.RETURN]) < 350
    assert 120 < len(kinds[InvoiceKind.EXCHANGE]) < 180
    returned = [*kinds[InvoiceKind.RETURN], *kinds[InvoiceKind.EXCHANGE]]
    pairs = [
        (each, valid[position[each["OriginalInvoiceNumber"]]])
        for each in returned
        if each["OriginalInvoiceNumber"] in position
    ]
    assert len(returned) - 1 <= len(pairs)
    own = sum(each["CustomerCardNo"] == original["CustomerCardNo"] for each, original in pairs)
    without = sum(each["CustomerCardNo"] is None for each, _ in pairs)
    assert 0.6 * len(pairs) < own < 0.85 * len(pairs)
    assert 0.1 * len(pairs) < without < 0.2 * len(pairs)
    assert own + without < len(pairs), "some return under another card"
    assert len(pairs) / 2 < sum(each["StoreID"] != original["StoreID"] for each, original in pairs)
    assert {True, False} == {
        position[each["InvoiceNumber"]] < position[original["InvoiceNumber"]] for each, original in pairs
    }
    assert {True, False} == {(each["TotalAmount"] or 0) < 0 for each in kinds[InvoiceKind.RETURN]}


def test_offline_tills_send_late_and_lose_no_invoice() -> None:
    """A fifth of the invoices comes after later ones. All numbers are there when the evening ends."""
    late = invoices(tell(count=2_000, repeats=0, broken=0, offline=0.2))
    numbers = [int(str(invoice["InvoiceNumber"]).partition("-")[2]) for invoice in late]
    assert [*range(1, 2_001)] == sorted(numbers)

    times = [invoice["CreatedTime"] or 0 for invoice in late]
    delayed = sum(max(times[: place + 1]) - time > 60_000 for place, time in enumerate(times))
    assert 0.1 * len(late) < delayed < 0.3 * len(late)
    assert times[-20:] == sorted(times[-20:]), "all tills are back before the evening ends"


@pytest.mark.parametrize("repeats", [0, 0.5])
@pytest.mark.parametrize("count", [1, 5, 200, 1_000])
def test_offline_tills_lose_no_invoice_of_a_small_day(count: int, repeats: float) -> None:
    """No till waits when the day ends, although it has few messages and many of them are duplicates."""
    for seed in range(1, 7):
        told = tell(count=count, seed=seed, repeats=repeats, broken=0, offline=0.5)
        numbers = {int(str(invoice["InvoiceNumber"]).partition("-")[2]) for invoice in invoices(told)}
        assert (count, {*range(1, max(numbers) + 1)}) == (len(told), numbers)


def test_invoices_are_written_in_shop_hours_and_in_order() -> None:
    """All times are ascending and from 09:00 to 22:00 in the time zone of the stores. The evening is busiest."""
    messages = tell(count=3_000, repeats=0, broken=0, day=date(2026, 11, 8))
    times = [datetime.fromtimestamp((i["CreatedTime"] or 0) / 1000, invoicing.TIME_ZONE) for i in invoices(messages)]

    assert {date(2026, 11, 8)} == {time.date() for time in times}
    assert set(range(9, 22)) == {time.hour for time in times}
    assert times == sorted(times)
    assert 18 == Counter(time.hour for time in times).most_common(1)[0][0]


def test_customers_come_back_and_shop_in_several_stores() -> None:
    """Some customers come much more often, to several stores. A card keeps its type."""
    valid = invoices(tell(count=5_000, customers=1_000, repeats=0, broken=0))
    visits = Counter(invoice["CustomerCardNo"] for invoice in valid)
    regular = visits.most_common(1)[0][0]

    assert 4 * len(valid) / len(visits) < visits[regular]
    assert 3 == len({invoice["StoreID"] for invoice in valid if invoice["CustomerCardNo"] == regular})
    types = {(invoice["CustomerCardNo"], invoice["CustomerType"]) for invoice in valid}
    assert len(types) == len(visits)


def test_broken_messages_change_no_invoice() -> None:
    """Invoice n has the same number, card and lines with and without broken messages."""
    smooth = invoices(tell(count=200, repeats=0, broken=0))
    rough = {i["InvoiceNumber"]: i for i in invoices(tell(count=200, repeats=0, broken=0.3))}

    assert 0 < len(rough) < 200
    assert [i for i in smooth if i["InvoiceNumber"] in rough] == list(rough.values())


def test_each_kind_of_broken_message_is_made(day: list[Message]) -> None:
    """All kinds of broken messages have about the same frequency."""
    counts = Counter(message.breakage for message in day if message.breakage)

    assert set(Breakage) == set(counts)
    assert max(counts.values()) < 2 * min(counts.values())


NO_ADDRESS = "DeliveryAddress.{} is missing though DeliveryType is HOME-DELIVERY"
FAULTS = {
    **dict.fromkeys((Breakage.NOT_AVRO, Breakage.CUT_AVRO, Breakage.CUT_JSON), "undecodable"),
    Breakage.UNKNOWN_SCHEMA: "unknown schema id",
    Breakage.NO_INVOICE_NUMBER: "InvoiceNumber is missing",
    Breakage.NO_STORE: "StoreID is missing",
    Breakage.NAN_AMOUNT: "TotalAmount is not a number: it is NaN or infinite",
    Breakage.INFINITE_AMOUNT: "TotalAmount is not a number: it is NaN or infinite",
    Breakage.PRIME_WITHOUT_CARD: "CustomerCardNo is missing though CustomerType is PRIME",
    Breakage.DELIVERY_WITHOUT_ADDRESS: NO_ADDRESS.format("AddressLine"),
    Breakage.DELIVERY_WITHOUT_CONTACT: NO_ADDRESS.format("ContactNumber"),
}
"""The fault that a reader must find."""


@pytest.mark.parametrize("breakage", list(Breakage))
def test_a_broken_message_has_the_fault_of_its_kind(breakage: Breakage, day: list[Message]) -> None:
    """A reader finds the fault of the message, and for an invalid invoice its reason."""
    broken = [message for message in day if message.breakage is breakage]

    assert broken
    for message in broken:
        assert Kind.BROKEN is message.kind
        assert message.invoice is None
        assert FAULTS[breakage] == fault_of(message.value)
        assert (message.key is None) == (breakage is Breakage.NO_STORE)


def fault_of(value: bytes) -> str | None:
    """The fault that a reader finds. A value is JSON if it begins with a brace, and Avro otherwise."""
    try:
        invoice = orjson.loads(value) if value.startswith(b"{") else DECODE(value)
    except ValueError as error:
        return "unknown schema id" if "unknown schema id" in str(error) else "undecodable"
    return first_violation(invoice)


@pytest.mark.parametrize(
    "wrong",
    [{"count": -1}, {"seed": -1}, {"prime": 1.1}, {"repeats": 0.6, "broken": 0.6}, {"customers": 1}, {"stores": 0}],
)
def test_impossible_options_are_refused(wrong: dict[str, float]) -> None:
    """The error names the option."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Options(**wrong)  # type: ignore[arg-type]
