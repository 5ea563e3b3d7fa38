"""`loyalty trail`: show the audit trail."""

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer

from schemas.topics import AUDIT_TRAIL
from services.audit_trail import details_of, read_trail
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, report, stop, table, warn_of_skipped
from services.domain.formats import seconds_text
from services.messaging.avro import Record
from services.pseudonyms import existing_pseudonyms


def trail(
    *,
    actor: Annotated[str | None, typer.Option(help="Show only this actor, for example key:0123456789ab.")] = None,
    customer: Annotated[str | None, typer.Option(help="Show only the customer with this pseudonym.")] = None,
    card: Annotated[
        str | None, typer.Option(help="Show only the customer with this card. This needs the key of the pseudonyms.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this number of the newest records.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show who did what and when: commands, erasures, exports, and what operators did with `loyalty`."""
    settings = read_settings()
    if card is not None:
        if customer is not None:
            stop("use --card or --customer, not both", MISUSED)
        with clear_errors():
            risk = "the command would find no record of the card"
            customer = existing_pseudonyms(settings.pseudonym_key_file, risk).of(card)

    def is_wanted(record: Record) -> bool:
        return actor in (None, record["Actor"]) and customer in (None, record["Customer"])

    skipped = Counter[str]()
    with clear_errors():
        records = _newest(filter(is_wanted, read_trail(settings, skipped)), limit)
    rows = (
        (
            seconds_text(each["ActionTime"]),
            each["Actor"],
            each["Action"],
            each["Outcome"],
            each["Customer"],
            " ".join(f"{name}={value}" for name, value in details_of(each).items()),
        )
        for each in records
    )
    columns = ("time", "actor", "action", "outcome", "customer", "details")
    report({"records": records, "skipped": skipped}, table(*columns, rows=rows), as_json=as_json)
    warn_of_skipped({AUDIT_TRAIL.name: skipped} if skipped else {})


def _newest(records: Iterable[Record], limit: int) -> list[Record]:
    """The newest records in the order of their times, each once: an instance can send a record twice after an error."""
    oldest_first: list[tuple[int, int, str]] = []
    found: dict[str, Record] = {}
    for number, record in enumerate(records):
        event_id = record["EventID"]
        if event_id not in found:
            found[event_id] = record
            heapq.heappush(oldest_first, (record["ActionTime"], number, event_id))
            if len(found) > limit:
                del found[heapq.heappop(oldest_first)[-1]]
    return [found[event_id] for *_, event_id in sorted(oldest_first)]
