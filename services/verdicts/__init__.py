"""Verdicts on the values of topics: the record that a value holds, or the reason why it becomes a dead letter.

The pipeline and ``loyalty conformance`` call the same functions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.domain.validation import in_milliseconds
from services.messaging import avro
from services.verdicts.commands import judge_of_commands
from services.verdicts.invoices import judge_of_invoices
from services.verdicts.verdict import Judge, Verdict, judge_of_avro

FAULT = "a fault of the pipeline: report it, and replay the record when it is mended"
"""The reason of a value for which the rules raise an error."""

__all__ = ["Judge", "Verdict", "judge_of", "judge_of_plain"]


def judge_of(topic: Topic, known: Mapping[int, str]) -> Judge:
    """A judge of the values of a topic, with all rules of the topic.

    Args:
        known: the schemas that can have written a value, by their ids.
    """
    name = str(topic.value)
    if topic == POS_INVOICES:
        return _with_body(judge_of_invoices(known), name, in_milliseconds)
    if topic == LOYALTY_COMMANDS:
        return _with_body(judge_of_commands(known), name)
    return judge_of_plain(name, known)


def judge_of_plain(name: str, known: Mapping[int, str]) -> Judge:
    """A judge of Avro records of this name, without further rules."""
    return _with_body(judge_of_avro(name, known), name)


def _with_body(judge: Judge, name: str, prepare: Callable[[Any], Any] = lambda record: record) -> Judge:
    """Add the body of each valid record.

    The body is always written again. fastavro also reads values that Java refuses, such as a number in more bytes than
    it needs, and values that cannot be written, such as an int of more than 32 bits.
    """
    encode = avro.body_encoder(name)

    def with_body(verdict: Verdict) -> Verdict:
        try:
            return verdict._replace(body=encode(prepare(verdict.record)))
        except avro.AVRO_ERRORS:
            return verdict._replace(reason=avro.not_of_its_schema(name))

    def complete(value: bytes | None, key: bytes | None) -> Verdict:
        try:
            verdict = judge(value, key)
            return verdict if verdict.reason is not None else with_body(verdict)
        except Exception as error:  # noqa: BLE001 - a mistake in the rules must not stop all other records
            return Verdict(f"{FAULT} ({type(error).__name__})")

    return complete
