"""`--scale api=N` while callers read: every answer is right while containers start and stop."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import httpx
import pytest

from infra.containers.stack import ContainerStack
from infra.docker.healthy import is_healthy
from infra.local.stack import private_settings
from tests.support.kafka import BalanceWriter
from tests.support.read_load import Load, Writer
from tests.support.waiting import wait_for

CARDS = [f"CARD{number}" for number in range(45)]
ANSWERS = 500
"""Reads that each state of the group must serve before it changes again."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[ContainerStack]:
    """Kafka, the topics and one API instance. The test writes the changelog in place of the pipeline."""
    stack = ContainerStack(tmp_path, private_settings(tmp_path), environment={"LOYALTY_API_ACCESS": "anyone"})
    try:
        stack.project.up("api")
        yield stack
    finally:
        stack.stop()


def is_shared(urls: list[str]) -> bool:
    """Whether each instance is ready and knows all instances and an owner for each partition."""
    if not all(is_healthy(f"{url}/readyz") for url in urls):
        return False
    known = [httpx.get(f"{url}/v1/stores/customer-balances/metadata", trust_env=False).json() for url in urls]
    shares = [[each["active"] for each in metadata["instances"] if each["active"]] for metadata in known]
    return all(len(urls) == len(share) and [0, 1, 2] == sorted(chain(*share)) for share in shares)


def test_scaling_one_three_two_under_read_load(stack: ContainerStack) -> None:
    """Reads never go back, never show a wrong total, and succeed in every state of the group."""
    urls = stack.api_urls()
    wait_for("one instance", lambda: is_shared(urls))
    asked = list(urls)
    with Load(Writer(BalanceWriter(stack.settings), CARDS), lambda: asked) as load:
        for number in (3, 2):
            wait_for_reads(load, load.findings.answers + ANSWERS)
            if number < len(asked):
                # Send no new request to an instance that stops, as a load balancer does.
                asked = [stack.project.url(container, 8080) for container in stack.project.containers("api")][:number]
            stack.project.up("api", scale={"api": number})
            urls = stack.api_urls()
            assert number == len(urls)
            asked = urls
            wait_for(f"{number} instances", lambda: is_shared(urls))  # noqa: B023  # evaluated before the next iteration
        wait_for_reads(load, load.findings.answers + ANSWERS)
    findings = load.findings
    assert [] == findings.wrong
    assert findings.answers > 3 * ANSWERS
    assert findings.longest_failure < 60, findings.reasons
    answers = {card: httpx.get(f"{url}/v1/customers/{card}/balance", trust_env=False) for url in urls for card in CARDS}
    assert {200} == {answer.status_code for answer in answers.values()}


def wait_for_reads(load: Load, answers: int) -> None:
    wait_for(f"{answers} answers; {load.findings}", lambda: load.findings.answers >= answers)
