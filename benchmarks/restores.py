"""Writes the balances for restores, and runs the plain consumer that restores are compared with."""

import json
import subprocess
import sys
from decimal import Decimal
from statistics import median
from typing import Any

from schemas.topics import LOYALTY_BALANCES
from services.messaging.avro import encoder
from services.messaging.schema_ids import schema_ids
from services.settings import Settings
from tests.support.kafka import BalanceWriter


def card(number: int) -> str:
    return f"{number:010}"


def write_balances(settings: Settings, count: int) -> None:
    """Write one record for each customer, with all fields that the pipeline sets."""
    changelog, encode = BalanceWriter(settings), encoder(LOYALTY_BALANCES, schema_ids(settings))
    for number in range(count):
        points = Decimal(number % 50_000) / 100
        record = {
            "CustomerCardNo": card(number),
            "TotalLoyaltyPoints": points,
            "AvailableLoyaltyPoints": points,
            "PendingLoyaltyPoints": Decimal(0),
            "ReservedLoyaltyPoints": Decimal(0),
            "Sequence": 1 + number % 9,
            "OpenedTime": 1_690_000_000_000 + number,
            "UpdatedTime": 1_700_000_000_000 + number,
        }
        changelog.raw(card(number), encode(record))
    changelog.flush()


def read_into_nothing(settings: Settings) -> dict[str, float]:
    """Read the topic of balances with a plain consumer in a new process."""
    command = ["benchmarks.plain_consumer", settings.kafka_bootstrap_servers, settings.name_of(LOYALTY_BALANCES)]
    run = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def compared(restores: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    """Compare each restore with the plain consumer that ran right after it."""
    ours, plain = [each for each, _ in restores], [each for _, each in restores]
    return {
        **{name: round(median(each[name] for each in ours), 1) for name in ours[0]},
        "plain_consumer_records_per_second": round(median(each["records_per_second"] for each in plain)),
        "plain_consumer_cpu_microseconds": round(median(each["cpu_microseconds"] for each in plain), 2),
        "ratio_to_plain_consumer": round(
            median(a["restore_records_per_second"] / b["records_per_second"] for a, b in restores), 3
        ),
        "restores": restores,
    }
