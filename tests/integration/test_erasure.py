"""An erasure removes a customer from every store. Later events of the card open a new account."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

from infra.local.stack import environment_of
from pipelines.accounts.invoice_index import INVOICES
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.runtime.state_calls import SHARED
from schemas import topics
from services.domain.events import Adjust, Capture, Erase, Reserve, Transfer
from services.settings import Settings
from services.verdicts import judge_of
from tests.support.builders import IDS, invoice
from tests.support.kafka import publish_commands, publish_invoices, read_all, records_of
from tests.support.ledger import bytes_of
from tests.support.processes import ApiProcess, run_to_the_end, running_ledger

STATE_VARIABLES = {0: [SHARED, INVOICES], 1: ["segments"]}
CARD, FRIEND = "9265846829", "4629185211"


def spark_state_text(spark: SparkSession, settings: Settings) -> list[str]:
    """All rows of the loyalty query's state, of every operator and variable, as text."""
    checkpoint = LOYALTY_QUERY.checkpoint(settings)
    _ = spark.streams.active  # starts the coordinator that state readers need
    operators = spark.read.format("state-metadata").load(checkpoint).select("operatorId").collect()
    assert [*STATE_VARIABLES] == sorted(row.operatorId for row in operators)
    rows = []
    for operator, variables in STATE_VARIABLES.items():
        for variable in variables:
            options = {"operatorId": operator, "stateVarName": variable}
            rows += map(str, spark.read.format("statestore").options(**options).load(checkpoint).collect())
    return rows


def latest_of(settings: Settings, topic: topics.Topic) -> dict[bytes, bytes]:
    """The records of a topic that compaction keeps."""
    kept: dict[bytes, bytes] = {}
    for message in read_all(settings, topic):
        key, value = bytes(message.key() or b""), message.value()
        kept.pop(key, None)
        if value is not None:
            kept[key] = bytes(value)
    return kept


def served(api: ApiProcess) -> str:
    """All entries of all stores of the instance."""
    stores = [each["name"] for each in api.http.get("/v1/stores").json()["stores"]]
    return "".join(api.http.get(f"/v1/stores/{store}/all").text for store in stores)


@pytest.mark.usefixtures("topics_created")
@pytest.mark.timeout(1500)
def test_no_store_contains_an_erased_card(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """State, changelogs, API stores and the ledger contain no erased card. Amounts stay under a pseudonym."""
    publish_invoices(settings, invoice("I1", CARD, 1000.0), invoice("I2", FRIEND, 500.0))
    publish_invoices(settings, invoice("R0", CARD, -1.0, OriginalInvoiceNumber="unknown"))
    publish_commands(
        settings,
        (CARD, Reserve(append_time=0, command_id="open", points=100)),
        (CARD, Reserve(append_time=0, command_id="spent", points=200)),
        (CARD, Adjust(append_time=0, command_id="sorry", points=50, reason=f"for {CARD}", actor="desk")),
        (FRIEND, Transfer(append_time=0, command_id="gift", points=300, counterparty=CARD)),
    )
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    publish_commands(settings, (CARD, Capture(append_time=0, command_id="captured", redemption_id="spent")))
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    assert any(CARD in row for row in spark_state_text(spark, settings)), "it was nowhere, so nothing was proven"

    publish_commands(settings, (CARD, Erase(append_time=0, command_id="erase")))
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    run_to_the_end(spark, settings, LOYALTY_QUERY)  # the index of invoices forgets the card
    assert any("I2" in row for row in spark_state_text(spark, settings)), "the index still knows other invoices"
    entries = records_of(settings, topics.LOYALTY)
    assert any(entry["Counterparty"] == CARD for entry in entries)
    with running_ledger(settings, len(entries), tmp_path / "ledger.log"):
        pass
    assert FRIEND.encode() in (file := bytes_of(settings.ledger_url))
    assert CARD.encode() not in file
    with ApiProcess(settings, tmp_path / "api.log") as api:
        api.wait_until_ready()
        assert [] == [row for row in spark_state_text(spark, settings) if CARD in row]
        for changelog in (topics.LOYALTY_BALANCES, topics.LOYALTY_DECISIONS):
            kept = latest_of(settings, changelog)
            assert kept
            assert CARD.encode() not in b"".join([*kept.keys(), *kept.values()])
        assert FRIEND in (everything := served(api))
        assert CARD not in everything
        assert 404 == api.balance(CARD).status_code

        publish_invoices(settings, invoice("I3", CARD, 50.0))
        run_to_the_end(spark, settings, LOYALTY_QUERY)
        balance = api.http.get(f"/v1/customers/{CARD}/balance", params={"minSequence": 1, "timeout": 30}).json()
        assert ("1.00", 1) == (balance["TotalLoyaltyPoints"], balance["Sequence"])


def test_a_card_with_a_slash_is_erased_as_the_guide_says(settings: Settings, topics_created: list[str]) -> None:  # noqa: ARG001
    """The program of the guide sends a valid command."""
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "erase-a-customer.md"
    program = dedent(guide.read_text(encoding="utf-8").partition("<<'END'\n")[2].partition("    END\n")[0])
    environment = os.environ | environment_of(settings)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)

    (message,) = read_all(settings, topics.LOYALTY_COMMANDS)
    verdict = judge_of(topics.LOYALTY_COMMANDS, IDS.known(topics.LOYALTY_COMMANDS))(message.value(), message.key())
    assert (None, "47/11", "erase") == (verdict.reason, verdict.record["CustomerCardNo"], verdict.record["Kind"])
