"""The verdict on a value of loyalty-commands."""

from collections.abc import Mapping

from services.domain.command_rules import first_violation
from services.verdicts.verdict import Judge, Verdict, judge_of_avro


def judge_of_commands(known: Mapping[int, str]) -> Judge:
    """A judge of values of loyalty-commands. The key of a command must be its card.

    Args:
        known: the schemas that can have written a value, by their ids.
    """
    judge_avro = judge_of_avro("LoyaltyCommand", known)

    def judge(value: bytes | None, key: bytes | None = None) -> Verdict:
        verdict = judge_avro(value, key)
        return verdict if verdict.record is None else verdict._replace(reason=first_violation(verdict.record, key))

    return judge
