"""Finds the events of accounts in the values of pos-invoices and loyalty-commands.

The loyalty query, the archive, the audit and the rebuild call the same functions.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.domain.invoice import PosInvoice
from services.domain.returns import takes_back_discount
from services.domain.validation import BLANKS, LONGEST_TEXT, in_milliseconds
from services.messaging.avro import AVRO_ERRORS, Record, not_of_its_schema, record_encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.verdicts import KnownSchemas, judge_of


class Found(NamedTuple):
    """What a value means for accounts. For a value that is not valid, only ``reason`` is set.

    Attributes:
        reason: why the value becomes a dead letter; None if it is valid.
        identity: the invoice number or the command id. A later record with the same identity is a duplicate.
        CustomerCardNo: null for a return without a card, and for an invoice that is no event.
        event: a framed Purchase or LoyaltyCommand (schemas/ids.json); null if the value is no event of an account.
        invoice: an invoice number for the index of invoices. The index adds it, or forgets its card if ``event`` is
            null.
        original: the number of the original invoice that a return names.
    """

    reason: str | None
    identity: str | None = None
    CustomerCardNo: str | None = None
    event: bytes | None = None
    invoice: str | None = None
    original: str | None = None


class Find(Protocol):
    """Finds the event in a record. The arguments are the same as those of ``Judge``."""

    def __call__(self, value: bytes | None, key: bytes | None, read: Any = None, /) -> Found: ...


def find_in_invoices(customer_types: Collection[str], known: KnownSchemas) -> Find:
    """Finds the purchases and returns in the values of pos-invoices.

    Args:
        customer_types: the types that earn points in any version of the programme, in upper case.
    """
    encode = _encoder("Purchase")

    def found_in(invoice: PosInvoice) -> Found:
        number = invoice["InvoiceNumber"]
        # The first character distinguishes an invoice number from a command id.
        identity = f"#{number}"
        # Validation refuses blanks around the card of a PRIME customer only, and a programme can have other types.
        card = (_given(invoice["CustomerCardNo"]) or "").strip(BLANKS) or None
        earns = card is not None and (invoice["CustomerType"] or "").upper() in customer_types
        original = _given(invoice["OriginalInvoiceNumber"])
        # A return takes points back with any card, and also from a customer who has left the programme.
        if not earns and original is None:
            return Found(None, identity)
        event = encode(purchase_record(invoice))
        # No valid invoice has a longer number, so the index need not look for it.
        findable = original if original is not None and len(original) <= LONGEST_TEXT else None
        return Found(None, identity, card, event, number if earns else None, findable)

    return _find(POS_INVOICES, known, found_in)


def purchase_record(invoice: PosInvoice) -> dict[str, object]:
    """The record Purchase of an invoice. Only a return needs to know which lines take back a discount."""
    lines: Iterable[Mapping[str, object]] = invoice["InvoiceLineItems"] or []
    if _given(invoice["OriginalInvoiceNumber"]) is not None:
        lines = [
            {**line, "TakesBackDiscount": takes_back_discount(line["TotalValue"], line["ItemPrice"], line["ItemQty"])}
            for line in invoice["InvoiceLineItems"] or []
        ]
    return {**in_milliseconds(invoice), "InvoiceLineItems": lines}


def find_in_commands(known: KnownSchemas) -> Find:
    """Finds the commands in the values of loyalty-commands."""
    encode = _encoder("LoyaltyCommand")

    def found_in(command: Record) -> Found:
        identity, card = f"!{command['CommandID']}", command["CustomerCardNo"]
        if command["Kind"] == "forget":
            return Found(None, identity, card, invoice=command["Invoice"]["InvoiceNumber"])
        return Found(None, identity, card, encode(command))

    return _find(LOYALTY_COMMANDS, known, found_in)


def _find(topic: Topic, known: KnownSchemas, found_in: Callable[[Any], Found]) -> Find:
    """Calls ``found_in`` for the record of each valid value."""
    judge = judge_of(topic, known)

    def find(value: bytes | None, key: bytes | None, read: Any = None) -> Found:
        verdict = judge(value, key, read)
        if verdict.reason is not None:
            return Found(verdict.reason)
        try:
            return found_in(verdict.record)
        except AVRO_ERRORS:
            # A registered schema can allow values that the current schema cannot store, such as longer decimals.
            return Found(not_of_its_schema(topic.value))

    return find


def _encoder(name: str) -> Callable[[Mapping[str, object]], bytes]:
    return record_encoder(name, FolderSchemaIds().id_of(name))


def _given(text: str | None) -> str | None:
    return text if text and text.strip(BLANKS) else None
