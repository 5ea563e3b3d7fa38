"""The rules of services.domain.validation as Spark columns."""

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


def _passes(requirement: Requirement, value: Column) -> Column:
    match requirement:
        case Requirement.PRESENT:
            return F.coalesce(F.btrim(value, F.lit(BLANKS)) != "", F.lit(False))
        case Requirement.SHORT:
            return value.isNull() | (F.length(value) <= LONGEST_TEXT)
        case Requirement.FEW:
            return value.isNull() | (F.size(value) <= MOST_LINE_ITEMS)
        case Requirement.AMOUNT:
            # Spark orders NaN above every number, so NaN fails this check as infinity does.
            return F.coalesce(F.abs(value) < LARGEST_AMOUNT, F.lit(False))
        case Requirement.AMOUNT_IF_PRESENT:
            return value.isNull() | _passes(Requirement.AMOUNT, value)
