"""``python -m tests.support.release_maker CHECKOUT ARCHIVE`` creates the data of a release for ``release_data``.

It starts a broker, and runs the code of the checkout: the loyalty query, an API instance and the ledger. It uses only
what every release has: processes, environment variables, invoices as JSON, and the HTTP API.
"""

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import typer

from infra.local.broker import LocalBroker
from infra.local.ports import HOST
from infra.local.processes import ManagedProcess
from infra.local.stack import Service, environment_of, private_settings
from schemas.topics import POS_INVOICES
from services.messaging.clients import admin
from services.settings import Settings
from tests.conftest import SHUFFLE_PARTITIONS
from tests.support.builders import invoice
from tests.support.kafka import publish, read_each
from tests.support.processes import SMALL_JVM
from tests.support.release_data import DESCRIPTION, FOLDERS, RECORDS, Release, topic_ids

_DEADLINE_SECONDS = 240.0

PROGRAMME = """\
loyalty-factor: 0.02
pending: PT5M
reserve-for: PT1M
valid-for: P3650D
return-window: P730D
"""
"""When a test continues, all timers are due. Purchases can be returned for two years."""

LINES = [
    {"ItemCode": "458", "ItemPrice": 300.0, "ItemQty": 2, "TotalValue": 600.0},
    {"ItemCode": "283", "ItemPrice": 400.0, "ItemQty": 1, "TotalValue": 400.0},
]


def main(checkout: Path, archive: Path) -> None:
    """Run the code of a checkout of a release, and write its data into an archive (.tar.xz)."""
    checkout, archive = checkout.resolve(strict=True), archive.resolve()
    os.chdir(checkout)
    os.environ["PYTHONPATH"] = str(checkout)
    commit = _output(["git", "rev-parse", "HEAD"])
    with TemporaryDirectory(prefix="release-") as folder:
        directory = Path(folder)
        settings = private_settings(
            directory,
            topic_prefix=f"release-{commit[:7]}-",
            shuffle_partitions=SHUFFLE_PARTITIONS,
            timer_interval=timedelta(seconds=1),
            programme_notice=timedelta(0),
            spark_master="local[2]",
            spark_driver_memory="700m",
            spark_java_options=SMALL_JVM,
        )
        broker = LocalBroker(directory, int(settings.kafka_bootstrap_servers.rpartition(":")[2]))
        broker.start()
        try:
            _live(settings, directory)
            release = Release(commit, folder, settings.topic_prefix, topic_ids(settings), int(time.time() * 1000))
            _pack(archive, directory, settings, release)
        finally:
            broker.stop()


def _live(settings: Settings, directory: Path) -> None:
    """Send purchases, a duplicate, a return and commands. The pipeline does not process the last purchase."""
    loyalty = [sys.executable, "-c", "from services.cli import app; app()"]
    programme = directory / "programme.yaml"
    programme.write_text(PROGRAMME, encoding="utf-8")
    for arguments in (["topics", "create"], ["programme", "publish", str(programme)]):
        subprocess.run([*loyalty, *arguments], env=environment_of(settings), check=True)

    def service(name: str, module: str, port: int, *arguments: str) -> Service:
        process = ManagedProcess(name, directory / "run", directory / "log", stop_timeout=120)
        return Service(module, settings, process, f"http://{HOST}:{port}", "", arguments)

    pipeline = service("pipeline", "pipelines", settings.metrics_port, "--query", "loyalty")
    api = service("api", "api", settings.api_port)
    ledger = service("ledger", "services.ledger", settings.ledger_metrics_port)
    services = [pipeline, api, ledger]
    try:
        pipeline.start(lambda: True)
        api.start()
        ledger.start()
        with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as http:
            _send(settings, invoice("I1", "A", 1000.0, InvoiceLineItems=LINES), invoice("I2", "A", 200.0))
            _send(settings, invoice("I3", "B", 50.0), invoice("I4", "C", 100.0), invoice("I1", "A", 1000.0))
            expected = {"A": "24.00", "B": "1.00", "C": "2.00"}
            _until(lambda: {card: _points(http, card) for card in expected} == expected)
            _send(settings, invoice("R2", "A", -100.0, OriginalInvoiceNumber="I2"))
            _until(lambda: _points(http, "A") == "22.00")
            _command(http, "adjustment", "/v1/customers/A/adjustments", points="10.00", reason="gift", actor="desk")
            captured = _command(http, "first", "/v1/customers/A/redemptions", points="3.00")["RedemptionID"]
            _command(http, "capture", f"/v1/redemptions/{captured}/capture")
            _command(http, "open", "/v1/customers/A/redemptions", points="2.00")
            _command(http, "transfer", "/v1/transfers", **{"from": "A", "to": "B", "points": "1.00"})
            _until(lambda: _points(http, "B") == "2.00")
            _command(http, "erase", "/v1/customers/C", method="DELETE")
            _until(lambda: http.get("/v1/customers/C/balance").status_code == httpx.codes.NOT_FOUND)
        # The ledger follows within a second, and stops after its transaction.
        entries = _count(settings, "loyalty")
        _until(lambda: _ledger_entries(settings) == entries)
        pipeline.stop()
        _send(settings, invoice("I5", "B", 30.0))
    finally:
        for each in services:
            each.stop()


def _send(settings: Settings, *invoices: dict[str, Any]) -> None:
    publish(settings, POS_INVOICES, [(each["StoreID"].encode(), json.dumps(each).encode()) for each in invoices])


def _command(http: httpx.Client, key: str, path: str, method: str = "POST", **body: str) -> dict[str, Any]:
    answer = http.request(method, path, json=body or None, headers={"Idempotency-Key": key})
    answer.raise_for_status()
    decision: dict[str, Any] = answer.json()
    return decision


def _points(http: httpx.Client, card: str) -> str | None:
    points: str | None = http.get(f"/v1/customers/{card}/balance").json().get("TotalLoyaltyPoints")
    return points


def _count(settings: Settings, topic: str) -> int:
    return sum(each["topic"] == topic for each in _records(settings))


def _ledger_entries(settings: Settings) -> int:
    import sqlite3

    with closing(sqlite3.connect(settings.ledger_url.removeprefix("sqlite:///"))) as database:
        (count,) = database.execute("SELECT count(*) FROM ledger_entry").fetchone()
    return int(count)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the release has not processed its records after {_DEADLINE_SECONDS:.0f} s: read the logs of its "
                "processes"
            )
        time.sleep(0.2)


def _records(settings: Settings) -> Iterator[dict[str, Any]]:
    """The records of all topics in the order of their offsets, with bytes as base64."""
    names = [name for name in admin(settings).list_topics().topics if name.startswith(settings.topic_prefix)]
    for name in sorted(names):
        for message in read_each(settings, name):
            yield {
                "topic": name.removeprefix(settings.topic_prefix),
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp": message.timestamp()[1],
                "key": _text(message.key()),
                "value": _text(message.value()),
                "headers": [[header, _text(value)] for header, value in dict(message.headers() or ()).items()],
            }


def _text(value: bytes | str | None) -> str | None:
    return None if value is None else base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _pack(archive: Path, directory: Path, settings: Settings, release: Release) -> None:
    records = "".join(f"{json.dumps(record)}\n" for record in _records(settings))
    with tarfile.open(archive, "w:xz") as packed:
        for name in FOLDERS:
            packed.add(directory / name, name, filter=lambda entry: None if entry.name.endswith(".crc") else entry)
        for name, text in {RECORDS: records, DESCRIPTION: release.text}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            packed.addfile(entry, io.BytesIO(text.encode()))


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    typer.run(main)
