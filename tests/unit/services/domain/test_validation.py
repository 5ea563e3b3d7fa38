"""The rules for valid invoices."""

import math
import sys
from unicodedata import category

import pytest
from hypothesis import given

from services.domain.validation import BLANKS, LARGEST_AMOUNT, RULES, first_violation, is_in_seconds
from tests.support.strategies import ANY_INVOICES, VALID_INVOICES

VALID = {
    "InvoiceNumber": "51402977",
    "StoreID": "STR7188",
    "TotalAmount": 11114.0,
    "CustomerType": "PRIME",
    "CustomerCardNo": "4629185211",
    "DeliveryType": "HOME-DELIVERY",
    "DeliveryAddress": {"AddressLine": "444-1842 Dui. Rd.", "ContactNumber": "7243866404"},
    "InvoiceLineItems": [{"ItemPrice": 1644.0, "TotalValue": 3288.0}],
}


@given(VALID_INVOICES)
def test_complete_invoices_are_valid(invoice):
    """An invoice with all required fields breaks no rule."""
    assert first_violation(invoice) is None


@given(ANY_INVOICES)
def test_any_record_gets_a_known_answer(invoice):
    """For any record the result is None or the reason of one of the rules."""
    assert first_violation(invoice) in {None, *(rule.reason for rule in RULES)}


def test_blanks_are_white_space_and_all_control_and_format_characters():
    """Format characters above U+FFFF, such as the tags of emoji, count too. People see none of them."""
    characters = map(chr, range(sys.maxunicode + 1))
    assert {each for each in characters if each.isspace() or category(each) in {"Cc", "Cf"}} == set(BLANKS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"InvoiceNumber": None}, "InvoiceNumber is missing"),
        ({"InvoiceNumber": " \t\u200b"}, "InvoiceNumber is blank"),
        ({"StoreID": None}, "StoreID is missing"),
        ({"StoreID": ""}, "StoreID is blank"),
        ({"TotalAmount": None}, "TotalAmount is missing"),
        ({"TotalAmount": math.nan}, "TotalAmount is not a number: it is NaN or infinite"),
        ({"TotalAmount": -math.inf}, "TotalAmount is not a number: it is NaN or infinite"),
        (
            {"TotalAmount": LARGEST_AMOUNT},
            "TotalAmount is too large: it must be between -100,000,000,000 and 100,000,000,000",
        ),
        ({"TotalAmount": 1e300}, "TotalAmount is too large: it must be between -100,000,000,000 and 100,000,000,000"),
        ({"SGST": math.inf}, "SGST is not a number: it is NaN or infinite"),
        (
            {"InvoiceLineItems": [{}, {"ItemPrice": math.nan}]},
            "InvoiceLineItems[].ItemPrice is not a number: it is NaN or infinite",
        ),
        *(
            (
                {"CustomerCardNo": card},
                "CustomerCardNo has blanks at its start or end though CustomerType is PRIME",
            )
            for card in (
                " 4629185211",
                "4629185211\t",
                "4629185211\N{NO-BREAK SPACE}",
                "\N{ZERO WIDTH SPACE}4629185211",
                "\0024629185211\003",
                "4629185211\0",
            )
        ),
        *(
            (
                {"CustomerCardNo": f"{blank}p1-{'a2' * 26}{blank}", "CustomerType": type_},
                "CustomerCardNo is a pseudonym: send the card of the customer",
            )
            for type_, blank in (("PRIME", ""), ("NONPRIME", ""), ("STAFF", " "), ("NONPRIME", "\N{ZERO WIDTH SPACE}"))
        ),
        ({"DeliveryType": "HOME-DELIVERY "}, "DeliveryType has blanks at its start or end"),
        ({"CustomerType": "\N{NO-BREAK SPACE}PRIME"}, "CustomerType has blanks at its start or end"),
        ({"CustomerCardNo": None}, "CustomerCardNo is missing though CustomerType is PRIME"),
        ({"CustomerCardNo": "", "CustomerType": "prime"}, "CustomerCardNo is blank though CustomerType is PRIME"),
        ({"InvoiceLineItems": [{}] * 10_001}, "InvoiceLineItems has more than 10000 elements"),
        ({"InvoiceLineItems": [{"ItemPrice": math.nan}] * 10_001}, "InvoiceLineItems has more than 10000 elements"),
        ({"DeliveryAddress": None}, "DeliveryAddress.AddressLine is missing though DeliveryType is HOME-DELIVERY"),
        (
            {"DeliveryAddress": {"AddressLine": "1 High Street", "ContactNumber": ""}},
            "DeliveryAddress.ContactNumber is blank though DeliveryType is HOME-DELIVERY",
        ),
    ],
)
def test_reason_names_field_and_condition(change, reason):
    """The reason names the field and the condition under which the field is required."""
    assert reason == first_violation({**VALID, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"CustomerType": "NONPRIME", "CustomerCardNo": None},
        {"DeliveryType": "TAKEAWAY", "DeliveryAddress": None},
        *({"CustomerCardNo": card} for card in (f"p1-{'a2' * 25}", f"p1-{'a2' * 26}x", f"p1-{'A2' * 26}")),
        {"InvoiceLineItems": None},
        {"InvoiceLineItems": [{}] * 10_000},
        {"TotalAmount": -11114.0},
        {"CGST": None},
    ],
)
def test_a_field_that_no_rule_requires_may_be_missing(change):
    """Only PRIME customers need a card, and only home deliveries an address. A negative amount is a return."""
    assert first_violation({**VALID, **change}) is None


@pytest.mark.parametrize(
    "name",
    ["InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "CustomerType", "PaymentMethod", "DeliveryType"],
)
def test_a_text_that_is_copied_into_records_has_a_largest_length(name):
    assert first_violation({**VALID, name: "x" * 128}) is None
    assert f"{name} is longer than 128 characters" == first_violation({**VALID, name: "x" * 129})


@pytest.mark.parametrize(
    ("created_time", "expected"),
    [(None, False), (10**9 - 1, False), (10**9, True), (10**10 - 1, True), (10**10, False)],
)
def test_a_time_of_september_2001_to_2286_can_be_in_seconds(created_time, expected):
    assert expected == is_in_seconds(created_time)
