"""Compares all facts of each customer with the account that the events give. Audit and rebuild share this step."""

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from pipelines.reconciliation.context import Context
from pipelines.reconciliation.facts import FACT_TYPE, pseudonymize
from services.audit.comparison import Coverage, CustomerResult, compare
from services.audit.facts import Facts, FactsReader
from services.domain.recomputation import Recomputed
from services.messaging.schema_ids import schema_ids

_ROWS = 200
"""Customers in one Arrow batch. A batch for each customer would take longer than the comparison of a small account."""


class Customer(NamedTuple):
    """A customer with all facts and the recomputed account. ``card`` is None if it is not known."""

    pseudonym: str
    card: str | None
    facts: Facts
    result: CustomerResult
    recomputed: Recomputed


def by_customer(
    context: Context,
    facts: DataFrame,
    coverage: Coverage,
    row_of: Callable[[Customer], dict[str, Any]],
    row_type: T.StructType,
) -> DataFrame:
    """Compare the facts of each customer. Gives one row for each of them, of the type ``row_type``.

    ``row_of`` gives the values of a row by the names of its columns.
    """
    settings, programmes, pseudonyms = context.settings, context.programmes, context.pseudonyms
    arrow = to_arrow_schema(row_type)

    def results(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        read, pseudonym_of = FactsReader(schema_ids(settings)).read, pseudonymize(pseudonyms)
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for pseudonym, of_customer in groupby(rows, key=itemgetter(0)):
            listed = list(of_customer)
            card = next((card for _, card, *_ in listed if card), None)
            known = read(((source, time, value) for *_, source, time, value in listed), card, pseudonym)
            result, recomputed = compare(card or pseudonym, known, programmes, coverage, pseudonym_of)
            yield row_of(Customer(pseudonym, card, known, result, recomputed))

    def compare_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = results(batches)
        while chunk := list(islice(found, _ROWS)):
            yield pa.RecordBatch.from_pylist(chunk, arrow)

    # Sort by source too. Otherwise the result depends on the order in which Spark's tasks end.
    sorted_facts = facts.select(*FACT_TYPE.names).repartition("pseudonym").sortWithinPartitions("pseudonym", "source")
    return sorted_facts.mapInArrow(compare_all, row_type)
