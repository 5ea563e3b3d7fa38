"""The loyalty branch in Quix Streams: python quix_app.py BROKER GROUP PREFIX STATE_DIR."""

import sys
from typing import Any

from invoices import notification, purchase
from quixstreams import Application, State


def running_total(bought: dict[str, Any], state: State) -> bytes:
    points, sequence = state.get("account", default=(0, 0))
    points, sequence = points + bought["Earned"], sequence + 1
    state.set("account", (points, sequence))
    record: bytes = notification(bought, points, sequence)
    return record


def bought(value: bytes | None, _key: Any, timestamp: int, _headers: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = purchase(value, timestamp)
    return found


def main() -> None:
    broker, group, prefix, state_dir = sys.argv[1:]
    app = Application(
        broker, consumer_group=group, auto_offset_reset="earliest", state_dir=state_dir, loglevel="WARNING"
    )
    invoices = app.topic(f"{prefix}pos-invoices", key_deserializer="bytes", value_deserializer="bytes")
    loyalty = app.topic(f"{prefix}loyalty", key_serializer="string", value_serializer="bytes")
    sdf = app.dataframe(invoices)
    sdf = sdf.apply(bought, metadata=True).filter(lambda value: value is not None)
    sdf = sdf.group_by("CustomerCardNo", key_serializer="string", key_deserializer="string")
    sdf = sdf.apply(running_total, stateful=True)
    sdf.to_topic(loyalty)
    app.run()


if __name__ == "__main__":
    main()
