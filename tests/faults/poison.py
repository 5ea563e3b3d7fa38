"""Malformed messages that could stop a reader of pos-invoices."""

import json
import random
from collections.abc import Iterator
from typing import Any

from schemas import topics
from services.messaging.avro import encoder, header
from services.pos_simulator.simulation import Options, Simulation
from tests.support.builders import IDS, invoice

_YEAR = 365 * 24 * 3_600_000
_LARGEST = 900_000
"""The size of a large value in bytes, below the limit of the topic (1 MiB)."""

Message = tuple[bytes | None, bytes | None]
"""Key and value."""


def _invoice(number: str, **changes: Any) -> dict[str, Any]:
    return {**invoice(number, f"card-{number}"), **changes}


def messages(seed: int) -> list[Message]:
    """One message of each kind, in an order that depends on the seed."""
    encode = encoder(topics.POS_INVOICES, IDS)
    whole = encode(_invoice("P0"))
    values = [
        *(whole[:length] for length in range(0, len(whole), 7)),
        *(json.dumps(each, allow_nan=True).encode() for each in _invoices("J")),
        *(encode(each) for each in _invoices("A") if _fits_avro(each)),
        *_no_json(),
        whole + b"\x00",
        header(0x7FFF_FFFF) + whole[5:],
        header(11) + whole[5:],
        b"\x01" + whole[1:],
        # Large lengths without the data: gigabytes of text, billions of line items.
        header(9) + b"\x02\xfe\xff\xff\xff\x0f",
        header(9) + b"\x00" * 17 + b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"",
    ]
    mixed: list[Message] = [(b"STR1", value) for value in values]
    mixed += [(None, None), (b"STR1", None), (None, encode(_invoice("K1"))), (b"\xff\xfe", encode(_invoice("K2")))]
    random.Random(seed).shuffle(mixed)
    return mixed


def _invoices(prefix: str) -> Iterator[dict[str, Any]]:
    amounts = [float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e11, 99_999_999_999.99, -0.0, 5e-324, 0.005]
    for number, amount in enumerate(amounts):
        yield _invoice(f"{prefix}-amount-{number}", TotalAmount=amount)
    for number, created in enumerate([0, -1, 2**63 - 1, -(2**63), 1_770_000_000_000 + 10 * _YEAR]):
        yield _invoice(f"{prefix}-time-{number}", CreatedTime=created)
    texts = ["\u0000", "\U0001f6d2" * 60, "e\u0301\u202e\u200dx", "\ufffe\uffff", "ꙮ" * 128, "x" * 129, "x" * _LARGEST]
    for number, text in enumerate(texts):
        yield _invoice(f"{prefix}-text-{number}", CustomerCardNo=text or "x")
        yield _invoice(f"{prefix}-city-{number}", DeliveryAddress={"City": text})
    line = {"ItemCode": "1", "ItemPrice": 1.0, "ItemQty": 1, "TotalValue": 1.0}
    yield _invoice(f"{prefix}-items-10000", InvoiceLineItems=[line] * 10_000)
    yield _invoice(f"{prefix}-items-10001", InvoiceLineItems=[line] * 10_001)
    yield _invoice(f"{prefix}-no-items", InvoiceLineItems=[])
    for missing in ("InvoiceNumber", "StoreID", "CustomerCardNo", "TotalAmount"):
        yield _invoice(f"{prefix}-without-{missing}", **{missing: None})
    yield _invoice(f"{prefix}-blank", CustomerCardNo=" \t\n")
    yield _invoice(f"{prefix}-delivery", DeliveryType="home-delivery", DeliveryAddress=None)


def _no_json() -> Iterator[bytes]:
    yield from (b"{", b"{}", b"[]", b"null", b'"text"', b"{" * 5_000, b'{"a":' * 5_000, b"\xef\xbb\xbf{}")
    yield json.dumps(_invoice("J-deep")).encode()[:-1] + b',"x":' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    yield json.dumps(_invoice("J-twice")).encode() * 2
    yield json.dumps(_invoice("J-types", TotalAmount={"a": 1})).encode()
    yield json.dumps(_invoice("J-string", TotalAmount="100")).encode()
    yield json.dumps(_invoice("J-lone")).encode().replace(b"card-J-lone", b"\\ud800")
    yield json.dumps(_invoice("J-latin")).encode().replace(b"card", b"c\xe9rd")


def _fits_avro(each: dict[str, Any]) -> bool:
    # fastavro cannot encode text that is not valid in UTF-8, so such values exist only as JSON.
    return all(
        not isinstance(value, str) or value.encode("utf-8", "ignore").decode() == value for value in each.values()
    )


def fuzzed(seed: int, count: int) -> Iterator[Message]:
    """Valid values in every format with changed, removed or inserted bytes, and random bytes."""
    rng = random.Random(seed)
    good = [message.value for message in Simulation(Options(count=200, seed=seed + 7_000)).messages()]
    for _ in range(count):
        value = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(value)) if value else 0
            match rng.randrange(4):
                case 0:
                    value[place : place + 1] = rng.randbytes(1)
                case 1:
                    del value[place:]
                case 2:
                    value[place:place] = rng.randbytes(rng.randint(1, 8))
                case 3:
                    value[place : place + rng.randint(1, 8)] = b""
        yield b"STR1", bytes(value) if rng.random() < 0.95 else rng.randbytes(rng.randint(0, 64))
