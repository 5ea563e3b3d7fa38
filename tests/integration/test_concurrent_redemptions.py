"""Parallel redemptions on the real stack: exactly as many succeed as the balance covers, despite kills."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from schemas import topics
from services.messaging.avro import encoder
from services.settings import Settings
from tests.support.builders import IDS
from tests.support.kafka import publish, records_of, unique_records_of
from tests.support.processes import ApiProcess, start_pipeline, wait_until
from tests.support.waiting import REPORT_POLL_SECONDS

ATTEMPTS, COVERED = 50, 10
POINTS_EACH = Decimal("10.00")
PATIENCE_SECONDS = 480.0


@pytest.fixture
def api(settings: Settings, topics_created: list[str], tmp_path: Path) -> Iterator[ApiProcess]:  # noqa: ARG001
    with ApiProcess(settings, tmp_path / "api.log") as instance:
        instance.wait_until_ready()
        yield instance


def earn(settings: Settings, card: str) -> None:
    """Publish one PRIME invoice that earns points for COVERED redemptions and not for one more."""
    points = POINTS_EACH * COVERED + Decimal("9.98")
    invoice = {
        "InvoiceNumber": f"I-{card}",
        "StoreID": "STR1",
        "CustomerType": "PRIME",
        "CustomerCardNo": card,
        "TotalAmount": float(points * 50),
    }
    publish(settings, topics.POS_INVOICES, [(b"STR1", encoder(topics.POS_INVOICES, IDS)(invoice))])


def redeem(api: ApiProcess, card: str, attempt: int) -> httpx.Response:
    """Request a redemption, and poll until it is decided."""
    answer = api.http.post(
        f"/v1/customers/{card}/redemptions",
        params={"timeout": 30},
        json={"points": str(POINTS_EACH)},
        headers={"Idempotency-Key": f"{card}-{attempt}"},
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while answer.status_code == httpx.codes.ACCEPTED:
        assert time.monotonic() < deadline, answer.text
        answer = api.http.get(answer.headers["Location"], params={"timeout": 5})
    return answer


def redeem_all(api: ApiProcess, card: str, pool: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    return [pool.submit(redeem, api, card, attempt) for attempt in range(ATTEMPTS)]


def reserved(settings: Settings, card: str) -> list[str]:
    entries = unique_records_of(settings, topics.LOYALTY).values()
    return [entry["EventID"] for entry in entries if (entry["CustomerCardNo"], entry["Kind"]) == (card, "reserved")]


def assert_covered_redemptions_only(settings: Settings, api: ApiProcess, card: str) -> None:
    """There are COVERED reservations of different commands, and the balance shows exactly these."""
    assert COVERED == len(set(reserved(settings, card))) == len(reserved(settings, card))
    kinds = Counter(entry["Kind"] for entry in unique_records_of(settings, topics.LOYALTY).values())
    assert {"earned": 1, "reserved": COVERED, "refused": ATTEMPTS - COVERED} == kinds
    balance = api.balance(card).json()
    assert ("109.98", "9.98", "100.00") == (
        balance["TotalLoyaltyPoints"],
        balance["AvailableLoyaltyPoints"],
        balance["ReservedLoyaltyPoints"],
    )


@contextmanager
def pipeline(settings: Settings, log: Path) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run the loyalty query in a process. Yields a function that waits for a condition."""
    with log.open("a", encoding="utf-8") as output:
        process = start_pipeline(
            settings,
            output,
            *("--query", "loyalty"),
            LOYALTY_MAX_OFFSETS_PER_TRIGGER=str(settings.max_offsets_per_trigger),
        )
        try:
            yield lambda condition: wait_until(condition, process, output, REPORT_POLL_SECONDS)
        finally:
            # SIGKILL for the process and its children, like a power failure.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(1500)
def test_exactly_the_covered_redemptions_succeed(settings: Settings, api: ApiProcess, tmp_path: Path) -> None:
    """50 parallel redemptions are sent for a balance that covers 10. The pipeline gets SIGKILL after the first
    decisions. A new pipeline on the same checkpoint decides the rest. 10 succeed, 40 are refused, and retries change
    nothing.
    """
    few_a_batch = settings.model_copy(update={"max_offsets_per_trigger": 6})
    earn(settings, "A")
    with ThreadPoolExecutor(ATTEMPTS) as pool:
        with pipeline(few_a_batch, tmp_path / "first.log") as wait:
            wait(lambda: api.balance("A").status_code == httpx.codes.OK)
            asked = redeem_all(api, "A", pool)
            wait(lambda: bool(reserved(settings, "A")))
        decided = [each for each in records_of(settings, topics.LOYALTY_DECISIONS) if each["Sequence"] > 1]
        assert len({each["CommandID"] for each in decided}) < ATTEMPTS, "it was killed too late to prove anything"
        with pipeline(settings, tmp_path / "second.log") as wait:
            wait(lambda: all(each.done() for each in asked))
            again = redeem_all(api, "A", pool)
            wait(lambda: all(each.done() for each in again))

    # A poll for the decision is answered with 200 and the decision.
    outcomes = Counter(answer.json().get("Status", answer.status_code) for answer in (each.result() for each in asked))
    assert COVERED == outcomes["done"] + outcomes[httpx.codes.CREATED]
    statuses = Counter(each.result().status_code for each in again)
    assert {httpx.codes.CREATED: COVERED, httpx.codes.CONFLICT: ATTEMPTS - COVERED} == statuses
    assert_covered_redemptions_only(settings, api, "A")
