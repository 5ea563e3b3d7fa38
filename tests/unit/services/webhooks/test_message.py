"""The request of a notification: body, id and signature."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import fastavro.utils
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

import schemas
from services.webhooks.message import Message, signed

SECRETS = (b"0123456789abcdef0123456789abcdef", b"another one: abcdef0123456789abc")


def notification(**fields: Any) -> dict[str, Any]:
    record: dict[str, Any] = next(iter(fastavro.utils.generate_many(schemas.current("Notification"), 1)))
    times = {"UpdatedTime": 1_795_000_000_123, "OpenedTime": 1_794_000_000_000, "ExpiresTime": 0}
    points = {name: Decimal("1.50") for name in record if name.endswith("LoyaltyPoints")}
    return {**record, **times, **points, "Kind": "earned", **fields}


def test_the_body_has_every_field_of_the_notification_but_the_actor() -> None:
    """Names are those of the topic, times are ISO 8601 in UTC, points are exact texts, and a missing time is null.

    The actor can be the name of an employee.
    """
    message = Message.of(notification(CustomerCardNo="4711", TotalAmount=0.1, Sequence=7, Actor="token:anna"))
    body = json.loads(message.body)

    assert [name for name in schemas.field_names("Notification") if name != "Actor"] == list(body["data"])
    assert "anna" not in message.body.decode()
    assert ("loyalty.earned", "2026-11-18T11:06:40.123Z") == (body["type"], body["timestamp"])
    assert ("2026-11-06T21:20:00.000Z", None) == (body["data"]["OpenedTime"], body["data"]["ExpiresTime"])
    assert ("4711", 0.1, 7, "1.50") == tuple(
        body["data"][name] for name in ("CustomerCardNo", "TotalAmount", "Sequence", "TotalLoyaltyPoints")
    )


def test_the_id_of_a_message_is_that_of_its_entry() -> None:
    """Equal entries have equal ids, and different entries have different ids."""
    one = notification(CustomerCardNo="4711", Sequence=7)
    others = [{**one, "CustomerCardNo": "4712"}, {**one, "Sequence": 8}, {**one, "OpenedTime": 1}]
    others += [{**one, "OpenedTime": 12, "Sequence": 3}, {**one, "OpenedTime": 1, "Sequence": 23}]

    assert Message.of(one).identity == Message.of({**one, "Reason": "read again"}).identity
    assert 6 == len({Message.of(each).identity for each in [one, *others]})


@given(st.text(min_size=1, max_size=40))
def test_the_id_has_letters_and_digits_for_every_card(card: str) -> None:
    """The id is signed, and it is a header."""
    identity = Message.of(notification(CustomerCardNo=card)).identity
    assert identity.removeprefix("msg_").isalnum()
    assert 36 == len(identity.encode("ascii"))


def test_the_signature_follows_the_specification() -> None:
    """A signature is v1 and the base64 of HMAC-SHA256 over id, timestamp and body. Each secret gives one."""
    message, now = Message.of(notification()), datetime(2026, 11, 21, 17, 0, 0, 999_999, tzinfo=UTC)

    headers = signed(message, SECRETS, now)

    assert str(int(now.timestamp())) == headers["webhook-timestamp"]
    content = f"{message.identity}.{headers['webhook-timestamp']}.".encode() + message.body
    digests = [hmac.digest(secret, content, hashlib.sha256) for secret in SECRETS]
    assert " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests) == headers["webhook-signature"]


def test_the_signature_does_not_depend_on_the_time_zone() -> None:
    message, now = Message.of(notification()), datetime(2026, 11, 21, 17, tzinfo=UTC)
    assert signed(message, SECRETS, now) == signed(message, SECRETS, now.astimezone(timezone(timedelta(hours=5.5))))


def test_receivers_verify_with_either_secret_and_notice_changes() -> None:
    """The library of the specification accepts both secrets, and refuses a changed body."""
    message = Message.of(notification())
    headers = signed(message, SECRETS, datetime.now(UTC))

    for secret in SECRETS:
        assert "loyalty.earned" == Webhook(secret).verify(message.body, headers)["type"]
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[0]).verify(message.body.replace(b"earned", b"burned"), headers)


@pytest.mark.parametrize("time", [2**62, -(2**62), 253_402_300_800_000])
def test_a_time_that_no_calendar_has_is_an_error(time: int) -> None:
    """The dispatcher writes a dead letter after this error."""
    with pytest.raises((ValueError, OverflowError)):
        Message.of(notification(UpdatedTime=time))
