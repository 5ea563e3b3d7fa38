"""Warnings about records that the pipeline accepts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from schemas.topics import POS_INVOICES
from services.conformance.review import HOUR, Finding, Review, Sent
from services.messaging.avro import encoder, header
from tests.support.builders import IDS, invoice

NOW = 1_770_000_000_000
PARTITIONS = 3
OF_STR1 = 0
"""The partition of the key STR1: murmur2 of it, modulo 3."""


def sent(number: str = "1", place: str = "1:0", **changes: Any) -> Sent:
    """A record of a topic, with an invoice in JSON of now."""
    return Sent(place, json.dumps(invoice(number, **changes)).encode(), NOW, b"STR1", (OF_STR1, PARTITIONS))


def reviewed(*records: Sent) -> list[Finding]:
    review = Review(IDS)
    findings = list(map(review, records))
    for finding in findings:
        review.complete(finding)
    return findings


def warning(record: Sent) -> str:
    """The only warning about one record, which the pipeline accepts."""
    (finding,) = reviewed(record)
    assert finding.reason is None
    (found,) = finding.warnings
    return found


def test_a_good_record_has_neither_a_reason_nor_a_warning() -> None:
    value = encoder(POS_INVOICES, IDS)(invoice())
    avro = Sent("1:1", value, NOW, b"STR1", (OF_STR1, PARTITIONS))
    assert [Finding("1:0", None, [], "STR1", None)] == reviewed(sent())
    assert [Finding("1:1", None, [], "STR1", None)] == reviewed(avro)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"CreatedTime": None}, "has no CreatedTime"),
        ({"CreatedTime": NOW - HOUR - 1}, "more than an hour behind the broker's clock"),
        ({"CreatedTime": NOW + HOUR + 1}, "more than an hour ahead of the broker's clock"),
        ({"CreatedTime": NOW // 1000}, "CreatedTime is in seconds"),
        ({"CreatedTime": NOW * 1000}, "CreatedTime is after the year 9999"),
        ({"CreatedTime": 0}, "CreatedTime is 1 January 1970 or earlier"),
        ({"CreatedTime": -1}, "CreatedTime is 1 January 1970 or earlier"),
        ({"PosID": "POS7 "}, "PosID has blanks at its start or end"),
        ({"CustomerType": "GOLD"}, "CustomerType is none of PRIME, NONPRIME"),
        ({"Totalamount": 1}, "the field 'Totalamount' is unknown and is ignored; is it TotalAmount?"),
        ({"posid": "POS7"}, "the field 'posid' is unknown and is ignored; is it PosID?"),
        ({"InvoiceLineItems": [{"ItemCode": "1", "Colour": 2}]}, "'InvoiceLineItems[].Colour' is unknown"),
        ({"DeliveryAddress": {"Town": "Gonda"}}, "'DeliveryAddress.Town' is unknown"),
        ({"InvoiceLineItems": []}, "has no InvoiceLineItems"),
        ({"TotalAmount": -5.0}, "is a return without OriginalInvoiceNumber"),
        ({"OriginalInvoiceNumber": "9"}, "that OriginalInvoiceNumber names is not among the records that were read"),
    ],
)
def test_a_doubtful_record_has_one_warning(changes: dict[str, Any], expected: str) -> None:
    assert expected in warning(sent(**changes))


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_a_clock_that_is_off_by_an_hour_gives_no_warning(off: int) -> None:
    assert [[]] == [each.warnings for each in reviewed(sent(CreatedTime=NOW + off))]


def test_warnings_about_the_key() -> None:
    good = sent()
    assert "has no key" in warning(Sent("1:0", good.value, NOW, None, (OF_STR1, PARTITIONS)))
    assert "the key is not the StoreID" in warning(Sent("1:0", good.value, NOW, b"STR2", (OF_STR1, PARTITIONS)))
    assert "set partitioner=murmur2_random" in warning(Sent("1:0", good.value, NOW, b"STR1", (1, PARTITIONS)))


def test_a_file_has_no_key_and_no_time_of_the_broker() -> None:
    assert [[]] == [each.warnings for each in reviewed(Sent("file:1", sent(CreatedTime=NOW - 10 * HOUR).value))]
    assert "CreatedTime is 1 January 1970 or earlier" in warning(Sent("file:1", sent(CreatedTime=-1).value))


def test_a_repeated_number_is_a_repetition_or_another_invoice() -> None:
    same, other = sent(place="1:1"), sent(place="1:2", amount=7.0)
    warnings = [each.warnings for each in reviewed(sent(), same, other)]
    assert [] == warnings[0]
    assert ["repeats the record at 1:0, and is ignored"] == [text.partition(": enable")[0] for text in warnings[1]]
    assert ["another invoice at 1:0 has the same InvoiceNumber, so this one is ignored"] == warnings[2]


def test_the_invoice_that_the_broker_appended_later_is_ignored() -> None:
    """The partitions are read in any order."""
    early, other = (
        replace(sent(place="2:9"), time=NOW - HOUR // 2),
        replace(sent(place="2:8", amount=7.0), time=NOW - HOUR),
    )
    warnings = [each.warnings for each in reviewed(sent(), early, other, sent(place="1:1"))]
    assert [] == warnings[0]
    assert ["the record at 1:0 repeats this one, and is ignored"] == [
        text.partition(": enable")[0] for text in warnings[1]
    ]
    assert ["another invoice at 2:9 has the same InvoiceNumber, so that one is ignored"] == warnings[2]
    assert ["another invoice at 2:8 has the same InvoiceNumber, so this one is ignored"] == warnings[3]


def test_a_refused_record_does_not_use_up_its_number() -> None:
    refused = sent(TotalAmount=None)
    first, second = reviewed(refused, sent(place="1:1"))
    assert "TotalAmount is missing" == first.reason
    assert [] == second.warnings


def test_a_return_may_come_before_its_invoice() -> None:
    """The invoice may be in another partition."""
    returned = sent("2", place="1:1", OriginalInvoiceNumber="1", TotalAmount=-5.0)
    (finding, _) = reviewed(returned, sent("1"))
    assert [] == finding.warnings


def test_a_return_with_blanks_around_the_number_of_its_invoice_finds_no_invoice() -> None:
    """The pipeline keeps the blanks, so the return takes nothing."""
    returned = sent("2", place="1:1", OriginalInvoiceNumber=" 1 ", TotalAmount=-5.0)
    (_, finding) = reviewed(sent("1"), returned)
    assert [
        "OriginalInvoiceNumber has blanks at its start or end: most readers do not remove them",
        "the invoice that OriginalInvoiceNumber names is not among the records that were read",
    ] == finding.warnings


def test_an_older_schema_is_named() -> None:
    value = header(2) + encoder(POS_INVOICES, IDS)({**invoice(), "OriginalInvoiceNumber": None})[5:-1]
    assert "written in schema 2: the newest schema of this project is 9" == warning(
        Sent("1:0", value, NOW, b"STR1", (OF_STR1, PARTITIONS))
    )


def test_warnings_repeat_no_value_of_a_customer() -> None:
    card = "4629185211"
    findings = reviewed(sent(card=f" {card}", CustomerType="NONPRIME "), sent(place="1:1", card=card))
    assert card not in repr(findings)


Lines = Sequence[tuple[str | None, float, float, int]]
"""ItemCode, TotalValue, ItemPrice and ItemQty of each line."""


def warnings_about(bought: Lines, returned: Lines, order: int = 1) -> list[str]:
    """The warnings about a purchase and an invoice that names it. The order -1 reads the second one first."""

    def record(number: str, lines: Lines, original: str | None = None) -> Sent:
        names = ("ItemCode", "TotalValue", "ItemPrice", "ItemQty")
        items = [dict(zip(names, each, strict=True)) for each in lines]
        total = sum(each[1] for each in lines)
        return sent(number, f"{number}:1", TotalAmount=total, InvoiceLineItems=items, OriginalInvoiceNumber=original)

    records = [record("1", bought), record("2", returned, "1")]
    return [each for finding in reviewed(*records[::order]) for each in finding.warnings]


@pytest.mark.parametrize(
    ("discount", "taken_back", "is_sold"),
    [((-10, -10, 1), (10, -10, -1), False), ((-10, 10, -1), (10, 10, 1), True), ((-10, -10, 1), (10, 10, 1), True)],
    ids=["negative price", "negative quantity", "the price changes its sign"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_line_that_takes_back_a_discount_and_counts_as_sold(discount, taken_back, is_sold, order) -> None:
    """The account would earn points for it. The return can be read before its original."""
    goods = ("milk", 100, 100, 1), ("off", *discount)
    back = ("milk", -100, 100, -1), ("off", *taken_back)
    warnings = warnings_about(goods, back, order)

    assert is_sold == any("takes back a discount of the original, but counts as sold" in each for each in warnings)
    assert is_sold == bool(warnings)


@pytest.mark.parametrize(
    ("bought", "returned"),
    [
        ([("milk", 100, 100, 1), ("off", -10, -10, 1)], [("off", 10, 10, 1)]),
        ([(None, 100, 100, 1), (None, -10, -10, 1)], [(None, -90, 90, -1), (None, 150, 150, 1)]),
        ([("", 100, 100, 1), ("", -10, -10, 1)], [("", -90, 90, -1), ("", 150, 150, 1)]),
        ([("milk", 100, 100, 1), ("milk", -10, -10, 1)], [("milk", -90, 90, -1), ("milk", 90, 90, 1)]),
    ],
    ids=[
        "a return, because all lines are positive",
        "an exchange without codes",
        "an exchange with empty codes",
        "another size",
    ],
)
def test_a_line_that_may_be_no_discount_has_no_warning(bought: Lines, returned: Lines) -> None:
    """It has no code, or the code of goods. In a return with positive amounts, all lines are returned."""
    assert [] == warnings_about(bought, returned)
