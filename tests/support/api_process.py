"""A real API process (``python -m api``) for tests, with what they ask it."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import httpx
from confluent_kafka import Producer

from infra.local.ports import HOST, free_port
from infra.local.stack import environment_of
from schemas.topics import LOYALTY_BALANCES
from services.messaging import clients
from services.messaging.avro import encoder
from services.messaging.schema_ids import schema_ids
from services.settings import Settings

DEADLINE_SECONDS = 240.0
ROOT = Path(__file__).parents[2]


class ApiProcess:
    """One instance on a free port; its log is a file, as a pipe that nobody reads would stop it."""

    def __init__(self, settings: Settings, log: Path) -> None:
        port = free_port()
        options = ["--host", HOST, "--port", str(port), "--state-dir", str(settings.state_dir)]
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "api", *options],
                cwd=ROOT,
                env=environment_of(settings),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.url = f"http://{HOST}:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=40, trust_env=False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask /readyz until its report is as wanted; returns the report."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the API ended by itself:\n{self._log.read_text()}"
            with contextlib.suppress(httpx.TransportError):
                report: dict[str, Any] = self.http.get("/readyz").json()
                if is_so(report):
                    return report
        raise AssertionError(f"not in time:\n{self._log.read_text()}")

    def ready(self) -> dict[str, Any]:
        """Wait until it is ready and has no lag."""
        return self.wait_until(lambda report: report["ready"] and not any(p["lag"] for p in report["partitions"]))

    def owned(self, store: str) -> list[int]:
        """The partitions of a store that it answers for as their owner: a moment after the group gave them to it."""
        held = self.http.get("/v1/instances/local").json()["partitions"]
        return [each["partition"] for each in held if each["store"] == store and each["role"] == "active"]

    def balance(self, card: str) -> httpx.Response:
        return self.http.get(f"/v1/customers/{card}/balance")

    def points(self, cards: Iterator[str] | list[str]) -> dict[str, str]:
        """Card to points as served; customers that are unknown are left out."""
        answers = {card: self.balance(card) for card in cards}
        assert {each.status_code for each in answers.values()} <= {200, 404}
        return {card: each.json()["TotalLoyaltyPoints"] for card, each in answers.items() if each.status_code == 200}

    def pause(self) -> None:
        """SIGSTOP: it holds its connections, and knows nothing of the time that passes."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def log_lines(self, *parts: str) -> list[str]:
        """The lines of its log that hold all of these."""
        return [line for line in self._log.read_text().splitlines() if all(part in line for part in parts)]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        self.http.close()

    def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        return self._process.wait(DEADLINE_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(DEADLINE_SECONDS)
        self.http.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self.http.close()


def balances_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The partitions of the balances in a report of /readyz, in their order."""
    return [each for each in report["partitions"] if each["store"] == "customer-balances"]


class Changelog:
    """Writes loyalty-balances as the pipeline does, and whatever else a test wants there."""

    def __init__(self, settings: Settings) -> None:
        self._topic = settings.name_of(LOYALTY_BALANCES)
        self._producer: Producer = clients.producer(settings, "test-changelog")
        self._encode = encoder(LOYALTY_BALANCES, schema_ids(settings))

    def balance(self, card: str, points: str, sequence: int, updated: int = 1_700_000_000_000) -> None:
        record: Mapping[str, Any] = {
            "CustomerCardNo": card,
            "TotalLoyaltyPoints": Decimal(points),
            "Sequence": sequence,
            "UpdatedTime": updated,
        }
        self.raw(card, self._encode(record))

    def raw(self, card: str, value: bytes | None) -> None:
        while True:
            with contextlib.suppress(BufferError):
                self._producer.produce(self._topic, key=card.encode(), value=value)
                self._producer.poll(0)
                return
            self._producer.poll(0.5)

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_SECONDS) == 0
