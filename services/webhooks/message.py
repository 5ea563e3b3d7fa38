"""Builds the request of a notification: a JSON body, an id for deduplication and a signature.

It follows the specification Standard Webhooks 1.0.0 (standard-webhooks/standard-webhooks, spec/standard-webhooks.md).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
from standardwebhooks import Webhook

from services.domain.entries import Kind
from services.domain.formats import time_text
from services.messaging.avro import Record

_TIMES = ("UpdatedTime", "OpenedTime", "ExpiresTime")
_NOT_SENT = "Actor"
"""It can name an employee, and no receiver needs it."""

_ID_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Message:
    """A notification in the form in which it is sent. Equal notifications give equal messages.

    Attributes:
        identity: the header webhook-id. It does not show the card. But whoever reads it can find the card by trial, so
            no log has it. It has no full stop, because full stops separate the signed parts.
        kind: the kind of the notification; a text if this version does not know the kind.
    """

    identity: str
    kind: Kind | str
    body: bytes

    @classmethod
    def of(cls, notification: Record) -> "Message":
        """The message of a decoded Notification. Raises OverflowError for a time outside of the years 1 to 9999."""
        entry = "{CustomerCardNo}@{OpenedTime}.{Sequence}".format(**notification)
        body = {
            "type": f"loyalty.{notification['Kind']}",
            "timestamp": time_text(notification["UpdatedTime"]),
            "data": {name: _json(name, value) for name, value in notification.items() if name != _NOT_SENT},
        }
        digest = hashlib.sha256(entry.encode()).hexdigest()[:_ID_DIGITS]
        return cls(f"msg_{digest}", notification["Kind"], orjson.dumps(body))


def signed(message: Message, secrets: Iterable[bytes], now: datetime) -> dict[str, str]:
    """The headers of one attempt. The signature covers ``now``, so that a receiver can refuse old copies."""
    text = message.body.decode()
    signatures = (Webhook(secret).sign(message.identity, now.astimezone(UTC), text) for secret in secrets)
    return {
        "content-type": "application/json",
        "webhook-id": message.identity,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def _json(name: str, value: Any) -> Any:
    if name in _TIMES:
        return time_text(value) if value else None
    return str(value) if isinstance(value, Decimal) else value
