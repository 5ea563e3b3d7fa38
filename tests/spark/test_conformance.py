"""The pipeline and `loyalty conformance` give the same verdict on thousands of whole and damaged values."""

from pipelines.columns.decoding import check_invoices
from schemas import topics
from services.verdicts import judge_of
from tests.spark.test_parity import as_records
from tests.support.builders import IDS
from tests.support.mutations import damaged_invoices

MESSAGES = 4000


def test_pipeline_and_command_agree_on_damaged_values(spark):
    """Both accept a value, or refuse it for the same reason. There are more than 200 reasons among the values."""
    values = damaged_invoices(MESSAGES, seed=1)

    rows = check_invoices(as_records(spark, values), IDS).select("offset", "reason").collect()

    of_pipeline = {values[row.offset]: row.reason for row in rows}
    check = judge_of(topics.POS_INVOICES, IDS.known(topics.POS_INVOICES))
    of_command = {value: check(value, b"STR1").reason for value in values}
    different = {
        value: (of_pipeline[value], reason) for value, reason in of_command.items() if of_pipeline[value] != reason
    }
    assert {} == different
    assert MESSAGES == len(of_pipeline)
    assert 300 < sum(reason is None for reason in of_pipeline.values()) < MESSAGES / 2
    assert len(set(of_pipeline.values())) > 200
