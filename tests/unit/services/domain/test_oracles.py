"""Tests the oracle of flat records, with which tests/spark compares the pipeline."""

import copy
import json

from hypothesis import given

import schemas
from tests.support.oracles import flatten
from tests.support.strategies import ANY_INVOICES

SECRETS = ("card-secret", "cashier-secret", "address-secret", "contact-secret")


@given(ANY_INVOICES)
def test_flattening_leaves_the_invoice_alone(invoice):
    """``flatten`` does not change its argument."""
    before = copy.deepcopy(invoice)

    flatten(invoice)

    assert repr(before) == repr(invoice)


@given(ANY_INVOICES)
def test_no_personal_field_survives(invoice):
    """The flat records contain no card, cashier, address line or contact."""
    card, cashier, address_line, contact = SECRETS
    invoice |= {"CustomerCardNo": card, "CashierID": cashier}
    invoice["DeliveryAddress"] = {"City": "Gonda", "AddressLine": address_line, "ContactNumber": contact}

    text = json.dumps(flatten(invoice))

    assert not any(secret in text for secret in SECRETS)


@given(ANY_INVOICES)
def test_one_record_per_line_item(invoice):
    """There is one record for each line item, in the same order, with the fields of the invoice."""
    records = flatten(invoice)

    assert len(invoice["InvoiceLineItems"] or []) == len(records)
    for record, item in zip(records, invoice["InvoiceLineItems"] or [], strict=True):
        assert invoice["InvoiceNumber"] == record["InvoiceNumber"]
        assert item["ItemCode"] == record["ItemCode"]
        assert list(record) == schemas.field_names("HadoopRecord")
