"""Broken messages of tills."""

import random
from collections.abc import Callable
from enum import StrEnum

import orjson

from services.domain.invoice import HOME_DELIVERY, PRIME, PosInvoice
from services.messaging import avro

Encode = Callable[[PosInvoice], bytes]

UNKNOWN_SCHEMA_ID = 0x7FFF_FFFF
"""Schema registries count from 1 and do not reach this number."""


class Breakage(StrEnum):
    """A kind of broken message."""

    NOT_AVRO = "not-avro"
    CUT_AVRO = "cut-avro"
    CUT_JSON = "cut-json"
    UNKNOWN_SCHEMA = "unknown-schema-id"
    NO_INVOICE_NUMBER = "no-invoice-number"
    NO_STORE = "no-store"
    NAN_AMOUNT = "nan-amount"
    INFINITE_AMOUNT = "infinite-amount"
    PRIME_WITHOUT_CARD = "prime-without-card"
    DELIVERY_WITHOUT_ADDRESS = "delivery-without-address"
    DELIVERY_WITHOUT_CONTACT = "delivery-without-contact"


def break_invoice(
    breakage: Breakage, invoice: PosInvoice, encode: Encode, rng: random.Random
) -> tuple[bytes | None, bytes]:
    """The key and the value of a broken message that is made from a valid invoice. The invoice does not change.

    The key is None if the shop is unknown.
    """
    key = (invoice.get("StoreID") or "").encode()
    match breakage:
        case Breakage.NOT_AVRO:
            return key, b"\x15PRINTER " + rng.randbytes(24)
        case Breakage.CUT_AVRO:
            value = encode(invoice)
            return key, value[: len(value) // 2]
        case Breakage.CUT_JSON:
            value = orjson.dumps(invoice)
            return key, value[: len(value) // 2]
        case Breakage.UNKNOWN_SCHEMA:
            return key, avro.header(UNKNOWN_SCHEMA_ID) + encode(invoice)[len(avro.header(0)) :]
    invalid = _invalid(breakage, invoice)
    return key if invalid.get("StoreID") else None, encode(invalid)


def _invalid(breakage: Breakage, invoice: PosInvoice) -> PosInvoice:
    address = invoice.get("DeliveryAddress")
    changes: dict[Breakage, PosInvoice] = {
        Breakage.NO_INVOICE_NUMBER: {"InvoiceNumber": None},
        Breakage.NO_STORE: {"StoreID": None},
        Breakage.NAN_AMOUNT: {"TotalAmount": float("nan")},
        Breakage.INFINITE_AMOUNT: {"TotalAmount": float("inf")},
        Breakage.PRIME_WITHOUT_CARD: {"CustomerType": PRIME, "CustomerCardNo": None},
        Breakage.DELIVERY_WITHOUT_ADDRESS: {"DeliveryType": HOME_DELIVERY, "DeliveryAddress": None},
        Breakage.DELIVERY_WITHOUT_CONTACT: {
            "DeliveryType": HOME_DELIVERY,
            "DeliveryAddress": {**(address or {"AddressLine": "Counter 1"}), "ContactNumber": None},
        },
    }
    return {**invoice, **changes[breakage]}
