"""The short and deterministic part of the fault harness: malformed input, retention and the auditor."""

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from infra.demo.comparison import Nature
from pipelines.queries.export import EXPORT
from pipelines.queries.fan_out import FAN_OUT
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.queries.sales import SALES
from schemas import topics
from services.domain.events import Adjust, Capture, Reserve, Transfer, Void
from services.errors import UserError
from services.messaging.avro import encoder
from services.messaging.clients import admin
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from tests.faults import poison
from tests.faults.auditor import audit
from tests.support.builders import IDS, invoice
from tests.support.kafka import publish, publish_commands, publish_invoices, read_all, records_of
from tests.support.processes import ApiProcess, run_to_the_end

SEED = 7
COMMANDS = (
    ("A", Adjust(append_time=0, command_id="adjust", points=50_00, reason="r", actor="a")),
    ("A", Reserve(append_time=0, command_id="reserve", points=20_00)),
    ("A", Capture(append_time=0, command_id="capture", redemption_id="reserve")),
    ("A", Void(append_time=0, command_id="void", redemption_id="reserve")),
    ("A", Transfer(append_time=0, command_id="gift", points=5_00, counterparty="B")),
    ("A", Reserve(append_time=0, command_id="too-much", points=90_00)),
    ("A", Reserve(append_time=0, command_id="reserve", points=20_00)),
)
"""Commands that succeed, commands that are refused, and a duplicate."""


@pytest.mark.usefixtures("topics_created")
def test_the_auditor_accepts_malformed_input_and_finds_planted_errors(
    spark, settings: Settings, tmp_path: Path
) -> None:
    """Every message is valid, a duplicate or a dead letter. The auditor reports the planted errors."""
    publish_commands(settings, *COMMANDS)
    messages = Simulation(Options(count=300, seed=SEED, customers=40, repeats=0.05, broken=0.05)).messages()
    publish(settings, topics.POS_INVOICES, ((message.key, message.value) for message in messages))
    publish(settings, topics.POS_INVOICES, poison.messages(SEED))
    publish(settings, topics.POS_INVOICES, poison.fuzzed(SEED, 400))
    run_to_the_end(spark, settings, FAN_OUT, LOYALTY_QUERY)
    run_to_the_end(spark, settings, EXPORT, SALES, LOYALTY_QUERY)  # process the credit of the transfer

    with ApiProcess(settings, tmp_path / "api.log") as api:
        api.wait_until_ready()
        verdict = audit(settings, api.url)
        assert "all agrees" == str(verdict)
        assert verdict.invoices > 750
        assert len(COMMANDS) == verdict.commands, "the duplicate does not count, and the transfer adds one"

        shipped = records_of(settings, topics.SHIPMENT)[0]
        publish(settings, topics.SHIPMENT, [(b"STR1", encoder(topics.SHIPMENT, IDS)(shipped))])
        entry = records_of(settings, topics.LOYALTY)[0]
        false = {**entry, "TotalLoyaltyPoints": entry["TotalLoyaltyPoints"] + 1, "Sequence": 10_000}
        publish(settings, topics.LOYALTY, [(b"STR1", encoder(topics.LOYALTY, IDS)(false))])
        verdict = audit(settings, api.url)
        assert 0 < verdict.count(Nature.DOUBLED)
        assert 0 < verdict.count(Nature.WRONG)


@pytest.mark.usefixtures("topics_created")
def test_unread_records_that_retention_deleted_are_reported(spark, settings: Settings) -> None:
    """The query refuses to start and names the lost offsets. With the setting that accepts the loss it continues."""

    def send(first: int, count: int) -> None:
        numbers = range(first, first + count)
        publish_invoices(settings, *(invoice(f"R{number}", f"card-R{number}") for number in numbers))

    send(0, 3)
    run_to_the_end(spark, settings, LOYALTY_QUERY)
    send(3, 4)
    name = settings.name_of(topics.POS_INVOICES)
    partition = read_all(settings, topics.POS_INVOICES)[0].partition()
    client = admin(settings)
    for future in client.delete_records([TopicPartition(name, partition, 5)]).values():
        future.result()

    with pytest.raises(UserError, match=rf"pos-invoices {partition} from offset 3 to 4"):
        LOYALTY_QUERY.start(spark, IDS, settings, available_now=True)
    run_to_the_end(spark, settings.model_copy(update={"accept_data_loss": True}), LOYALTY_QUERY)
    cards = {entry["CustomerCardNo"] for entry in records_of(settings, topics.LOYALTY)}
    assert {f"card-R{number}" for number in (0, 1, 2, 5, 6)} == cards
