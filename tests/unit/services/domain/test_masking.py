"""Masking and flattening."""

import copy
import json

from hypothesis import given

import schemas
from services.domain.invoice import HadoopRecord
from services.domain.masking import flatten, mask
from tests.support.strategies import ANY_INVOICES

SECRETS = ("card-secret", "cashier-secret", "address-secret", "contact-secret")


@given(ANY_INVOICES)
def test_masking_leaves_the_invoice_alone(invoice):
    """The invoice that is masked is the one the other branches still need."""
    before = copy.deepcopy(invoice)

    mask(invoice)
    flatten(invoice)

    assert repr(before) == repr(invoice)


@given(ANY_INVOICES)
def test_no_personal_field_survives(invoice):
    """Neither the masked invoice nor its flat records hold a card, a cashier, an address line or a contact."""
    card, cashier, address_line, contact = SECRETS
    invoice |= {"CustomerCardNo": card, "CashierID": cashier}
    invoice["DeliveryAddress"] = {"City": "Gonda", "AddressLine": address_line, "ContactNumber": contact}

    shown = json.dumps([mask(invoice), flatten(invoice)])

    assert not any(secret in shown for secret in SECRETS)


@given(ANY_INVOICES)
def test_one_record_per_line_item(invoice):
    """Records follow the line items one by one, and carry the invoice's own fields."""
    records = flatten(invoice)

    assert len(invoice["InvoiceLineItems"] or []) == len(records)
    for record, item in zip(records, invoice["InvoiceLineItems"] or [], strict=True):
        assert invoice["InvoiceNumber"] == record["InvoiceNumber"]
        assert item["ItemCode"] == record["ItemCode"]


@given(ANY_INVOICES)
def test_masking_keeps_the_rest(invoice):
    """Masking changes nothing but the personal fields, so flattening gives the same before and after."""
    assert repr(flatten(invoice)) == repr(flatten(mask(invoice)))


def test_record_is_the_contract():
    """The flat record has the fields of schemas/HadoopRecord.avsc, in its order."""
    assert schemas.field_names("HadoopRecord") == list(HadoopRecord.__annotations__)
