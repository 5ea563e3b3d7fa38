"""What analysts may see of an invoice. Nothing here changes the invoice it is given."""

from typing import cast

from services.domain.invoice import HadoopRecord, PosInvoice

PERSONAL_FIELDS = ("CustomerCardNo", "CashierID")
PERSONAL_ADDRESS_FIELDS = ("AddressLine", "ContactNumber")

_OF_INVOICE = ("InvoiceNumber", "CreatedTime", "StoreID", "PosID", "CustomerType", "PaymentMethod", "DeliveryType")
_OF_ADDRESS = ("City", "State", "PinCode")
_OF_ITEM = ("ItemCode", "ItemDescription", "ItemPrice", "ItemQty", "TotalValue")


def mask(invoice: PosInvoice) -> PosInvoice:
    """A copy whose personal fields are null."""
    masked: dict[str, object] = {**invoice, **dict.fromkeys(PERSONAL_FIELDS)}
    if address := invoice.get("DeliveryAddress"):
        masked["DeliveryAddress"] = {**address, **dict.fromkeys(PERSONAL_ADDRESS_FIELDS)}
    return cast(PosInvoice, masked)


def flatten(invoice: PosInvoice) -> list[HadoopRecord]:
    """One record per line item, in the order of the invoice; an invoice without line items has none."""
    of_invoice = {field: invoice.get(field) for field in _OF_INVOICE}
    address = invoice.get("DeliveryAddress") or {}
    of_address = {field: address.get(field) for field in _OF_ADDRESS}
    return [
        cast(HadoopRecord, {**of_invoice, **of_address, **{field: item.get(field) for field in _OF_ITEM}})
        for item in invoice.get("InvoiceLineItems") or []
    ]
