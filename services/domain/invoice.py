"""The invoice with the field names of the wire. A record is a dict, before and after Avro or JSON."""

from typing import TypedDict


class LineItem(TypedDict, total=False):
    ItemCode: str | None
    ItemDescription: str | None
    ItemPrice: float | None
    ItemQty: int | None
    TotalValue: float | None


class DeliveryAddress(TypedDict, total=False):
    AddressLine: str | None
    City: str | None
    State: str | None
    PinCode: str | None
    ContactNumber: str | None


class PosInvoice(TypedDict, total=False):
    """The record that a till publishes. Any field can be missing until ``validation.first_violation`` returns None."""

    InvoiceNumber: str | None
    CreatedTime: int | None
    CustomerCardNo: str | None
    TotalAmount: float | None
    NumberOfItems: int | None
    PaymentMethod: str | None
    TaxableAmount: float | None
    CGST: float | None
    SGST: float | None
    CESS: float | None
    StoreID: str | None
    PosID: str | None
    CashierID: str | None
    CustomerType: str | None
    DeliveryType: str | None
    DeliveryAddress: DeliveryAddress | None
    InvoiceLineItems: list[LineItem] | None
    OriginalInvoiceNumber: str | None


PRIME = "PRIME"
HOME_DELIVERY = "HOME-DELIVERY"
