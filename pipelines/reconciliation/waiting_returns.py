"""Lists the returns that wait in the index of invoices for their purchases.

``python -m pipelines.reconciliation.waiting_returns``, or ``loyalty returns``, runs it. It may run beside the pipeline.
"""

import dataclasses
from dataclasses import dataclass
from decimal import Decimal
from typing import cast

import typer
from pyspark.sql import functions as F

from pipelines.accounts.invoice_index import INVOICES, decode_waiting
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.reconciliation.context import Context, open_context
from pipelines.reconciliation.facts import state_variable
from services.cli.output import AsJson, report, table
from services.codecs.events import decode_event
from services.domain.events import Purchase
from services.domain.formats import seconds_text


@dataclass(frozen=True, slots=True)
class WaitingReturn:
    """A return whose purchase is not known.

    Attributes:
        append_time: when the broker appended it, milliseconds since the epoch.
        expires_time: the time until which it waits.
    """

    invoice: str
    original: str
    store: str
    amount: Decimal
    append_time: int
    expires_time: int


def waiting_returns(context: Context) -> list[WaitingReturn]:
    """The returns that wait, the oldest first. Raises UnreadableError."""
    variable = state_variable(context, LOYALTY_QUERY.checkpoint(context.settings), INVOICES)
    waiting = F.col("user_map_value.value.waiting")
    rows = variable.where(F.length(waiting) > 0).select(
        "user_map_key.number", waiting.alias("waiting"), F.col("user_map_value.ttlExpirationMs").alias("expires")
    )
    found = []
    for row in rows.collect():
        for each in decode_waiting(bytes(row.waiting)):
            event = cast(Purchase, decode_event(each.append_time, each.invoice))
            store, amount = event.store_id, event.total_amount
            found.append(WaitingReturn(event.invoice_number, row.number, store, amount, each.append_time, row.expires))
    return sorted(found, key=lambda each: (each.append_time, each.invoice))


def main(*, as_json: AsJson = False) -> None:
    """List the returns that wait for their purchases, with or without a card. The output names no card."""
    with open_context("loyalty-returns") as context:
        found = waiting_returns(context)
    value = {"returns": [dataclasses.asdict(each) | {"amount": str(each.amount)} for each in found]}
    rows = (
        (
            each.invoice,
            each.original,
            each.store,
            f"{each.amount:f}",
            seconds_text(each.append_time),
            seconds_text(each.expires_time),
        )
        for each in found
    )
    report(value, table("return", "original", "store", "amount", "read", "waits until", rows=rows), as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
