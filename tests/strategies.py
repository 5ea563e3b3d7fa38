"""Invoices for property tests: as tills send them, and as they should not."""

from hypothesis import strategies as st

# Avro strings are UTF-8, so lone surrogates cannot reach the system.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BLANK_OR_TEXT = st.none() | st.sampled_from(["", " ", "\t\n"]) | TEXTS
AMOUNTS = st.integers(-10_000_000_00, 10_000_000_00).map(lambda cents: cents / 100)
ANY_AMOUNT = st.none() | st.floats() | AMOUNTS | st.sampled_from([1e11, -1e11, 9.99e10])
TIMES = st.integers(0, 4_102_444_800_000)

ITEMS = st.fixed_dictionaries(
    {
        "ItemCode": BLANK_OR_TEXT,
        "ItemDescription": BLANK_OR_TEXT,
        "ItemPrice": ANY_AMOUNT,
        "ItemQty": st.none() | st.integers(-(2**31), 2**31 - 1),
        "TotalValue": ANY_AMOUNT,
    }
)
ADDRESSES = st.fixed_dictionaries(
    dict.fromkeys(("AddressLine", "City", "State", "PinCode", "ContactNumber"), BLANK_OR_TEXT)
)
ANY_INVOICES = st.fixed_dictionaries(
    {
        **dict.fromkeys(
            ("InvoiceNumber", "CustomerCardNo", "PaymentMethod", "StoreID", "PosID", "CashierID"), BLANK_OR_TEXT
        ),
        **dict.fromkeys(("TotalAmount", "TaxableAmount", "CGST", "SGST", "CESS"), ANY_AMOUNT),
        "CreatedTime": st.none() | TIMES,
        "NumberOfItems": st.none() | st.integers(0, 1000),
        "CustomerType": st.sampled_from([None, "PRIME", "Prime", "NONPRIME", ""]),
        "DeliveryType": st.sampled_from([None, "HOME-DELIVERY", "home-delivery", "TAKEAWAY"]),
        "DeliveryAddress": st.none() | ADDRESSES,
        "InvoiceLineItems": st.none() | st.lists(ITEMS, max_size=3),
    }
)
"""Every field can be missing, blank or absurd."""

NUMBERS = st.from_regex(r"[0-9]{8}", fullmatch=True)
VALID_INVOICES = st.builds(
    lambda invoice, number, store, amount, card, address, contact: {
        **invoice,
        "InvoiceNumber": number,
        "StoreID": store,
        "TotalAmount": amount,
        **dict.fromkeys(("TaxableAmount", "CGST", "SGST", "CESS"), amount),
        "CustomerCardNo": card,
        "DeliveryAddress": {**address, "AddressLine": "1 High Street", "ContactNumber": contact},
        "InvoiceLineItems": [
            {**item, "ItemPrice": amount, "TotalValue": amount} for item in invoice["InvoiceLineItems"] or []
        ],
    },
    ANY_INVOICES,
    NUMBERS,
    NUMBERS,
    AMOUNTS,
    NUMBERS,
    ADDRESSES,
    NUMBERS,
)
"""Nothing that validation asks for is missing."""

FLAWS = [
    *({name: blank} for name in ("InvoiceNumber", "StoreID", "CustomerCardNo") for blank in (None, "", " \t")),
    *(
        {name: amount}
        for name in ("TotalAmount", "TaxableAmount", "CGST", "SGST", "CESS")
        for amount in (float("nan"), float("inf"), -1e11)
    ),
    *(
        {"InvoiceLineItems": [{"ItemPrice": 1.0, "TotalValue": 1.0}, {name: float("nan")}]}
        for name in ("ItemPrice", "TotalValue")
    ),
    {"DeliveryAddress": None},
    {"DeliveryAddress": {"AddressLine": "1 High Street", "ContactNumber": " "}},
    *({name: "é" * 129} for name in ("InvoiceNumber", "StoreID", "PosID", "CustomerCardNo", "PaymentMethod")),
    {"CustomerType": "x" * 129},
    {"DeliveryType": "x" * 129},
    *(
        {"DeliveryAddress": {"AddressLine": "1 High Street", "ContactNumber": "1", name: "x" * 129}}
        for name in ("City", "State", "PinCode")
    ),
    {"InvoiceLineItems": [{}] * 10_001},
]
"""What breaks each rule, whatever else an invoice says."""


def flawed(invoice, flaw):
    """A valid invoice that breaks one rule."""
    return {**invoice, "CustomerType": "PRIME", "DeliveryType": "HOME-DELIVERY", **flaw}
