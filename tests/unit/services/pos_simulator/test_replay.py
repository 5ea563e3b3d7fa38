import codecs
from io import BytesIO

import pytest

from schemas import topics
from services.messaging import avro
from services.pos_simulator.replay import Format, Recorded, lines_of, recorded
from tests.support.builders import IDS

INVOICE = b'{"InvoiceNumber": "7", "StoreID": "STR1", "TotalAmount": 5}'


def replayed(*lines: bytes, wanted: Format = Format.AVRO) -> list[Recorded]:
    return list(recorded(lines, wanted, IDS))


def test_an_invoice_becomes_avro_under_its_store() -> None:
    """Absent fields are null."""
    [message] = replayed(INVOICE + b"\n")

    assert (b"STR1", Format.AVRO) == (message.key, message.written)
    read = avro.decoder(topics.POS_INVOICES, IDS)(message.value)
    assert {"InvoiceNumber": "7", "StoreID": "STR1", "TotalAmount": 5.0} == {
        k: v for k, v in read.items() if v is not None
    }


def test_a_line_of_json_is_sent_unchanged() -> None:
    """The message has the spaces of the line."""
    assert [(b"STR1", INVOICE, Format.JSON)] == replayed(INVOICE + b"\r\n", wanted=Format.JSON)


@pytest.mark.parametrize(
    "line", [b'{"StoreID": "STR1", "TotalAm', b"[1]", b"null", b"\xff\xfe", b"\x00\x00\x00\x00\x02"]
)
def test_a_line_that_is_no_object_is_sent_unchanged(line: bytes) -> None:
    """A line without a store has no key. The pipeline writes it to the dead letters."""
    assert [(None, line, None)] == replayed(line)


def test_only_the_line_break_is_removed_from_raw_bytes() -> None:
    """It belongs to the file."""
    assert [(None, b"  torn line \t", None)] == replayed(b"  torn line \t\n")


@pytest.mark.parametrize(
    "line",
    [
        b'{"StoreID": "STR1", "TotalAmount": "5"}',
        b'{"StoreID": "STR1", "NumberOfItems": 1099511627776}',
        b'{"StoreID": "STR1", "InvoiceLineItems": [1]}',
        b'{"StoreID": "STR1", "DeliveryAddress": "at home"}',
        b'{"StoreID": "STR1", "TotalAmount": 1' + b"0" * 400 + b"}",
        b'{"StoreID": "STR1", "TotalAmount": 10, "TotalAmount": 99}',
    ],
)
def test_an_object_that_the_pipeline_refuses_is_sent_unchanged(line: bytes) -> None:
    """The pipeline says why. Avro would have one of two values, or none. The replay continues."""
    messages = replayed(line, INVOICE)

    assert (None, line, None) == messages[0]
    assert [Format.AVRO] == [message.written for message in messages[1:]]


@pytest.mark.parametrize("wanted", Format)
def test_a_store_can_be_a_number(wanted: Format) -> None:
    """The pipeline reads it as a text, too."""
    assert [b"7"] == [message.key for message in replayed(b'{"StoreID": 7}', wanted=wanted)]


@pytest.mark.parametrize("store", [b"", b'"StoreID": null', b'"StoreID": ""'])
def test_without_a_store_there_is_no_key(store: bytes) -> None:
    """The key is null and not empty, so the record can go to any partition."""
    assert [None] == [message.key for message in replayed(b"{" + store + b"}")]


def test_blank_lines_are_no_messages() -> None:
    """Blank lines, for example at the end of a file, are ignored."""
    assert [] == replayed(b"\n", b"  \r\n", b"")


@pytest.mark.parametrize("wanted", Format)
def test_a_byte_order_mark_is_no_part_of_an_invoice(wanted: Format) -> None:
    """Each file can begin with one. Elsewhere it is a part of the line, which is then no invoice."""
    marked = codecs.BOM_UTF8 + INVOICE + b"\n"

    messages = replayed(*lines_of([BytesIO(marked + marked), BytesIO(b""), BytesIO(marked)]), wanted=wanted)

    good = replayed(INVOICE, wanted=wanted)
    assert [*good, Recorded(None, marked.rstrip(), None), *good] == messages
