"""The rules of services.domain.validation as Spark columns."""

import math
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from services.domain.validation import (
    BLANKS,
    LARGEST_AMOUNT,
    LONGEST_TEXT,
    MOST_LINE_ITEMS,
    RULES,
    Requirement,
    Rule,
)


def first_violation(invoice: Column) -> Column:
    """The reason of the first broken rule, or null for a valid invoice."""
    return F.coalesce(*(F.when(~_holds(rule, invoice), F.lit(rule.reason)) for rule in RULES))


def _holds(rule: Rule, invoice: Column) -> Column:
    satisfied = _all_pass(rule.requirement, invoice, rule.field)
    if not rule.when:
        return satisfied
    field, value = rule.when
    applies = F.coalesce(F.upper(invoice.getField(field)) == value, F.lit(False))
    return ~applies | satisfied


def _all_pass(requirement: Requirement, record: Column, field: str) -> Column:
    head, _, rest = field.partition(".")
    if head.endswith("[]"):
        elements = record.getField(head[:-2])
        passes = F.forall(elements, lambda element: _all_pass(requirement, element, rest))
        return elements.isNull() | passes
    value = record.getField(head)
    return _all_pass(requirement, value, rest) if rest else _passes(requirement, value)


_CHECKS: dict[Requirement, Callable[[Column], Column]] = {
    Requirement.GIVEN: lambda value: value.isNotNull(),
    Requirement.NOT_BLANK: lambda text: F.btrim(text, F.lit(BLANKS)) != "",
    Requirement.SHORT: lambda text: F.length(text) <= LONGEST_TEXT,
    Requirement.NO_BLANKS_AROUND: lambda text: F.btrim(text, F.lit(BLANKS)) == text,
    Requirement.FEW: lambda elements: F.size(elements) <= MOST_LINE_ITEMS,
    # Spark orders NaN above every number, so NaN fails this check as infinity does.
    Requirement.FINITE: lambda amount: F.abs(amount) < math.inf,
    Requirement.BOUNDED: lambda amount: F.abs(amount) < LARGEST_AMOUNT,
}


def _passes(requirement: Requirement, value: Column) -> Column:
    return F.coalesce(_CHECKS[requirement](value), F.lit(requirement is not Requirement.GIVEN))
