"""`loyalty top`: the overview page of the console, in a terminal."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from services.cli.output import AsJson, console, print_json, read_settings, table
from services.cli.status import (
    ApiUrl,
    PipelineUrl,
    figure,
    freshness_shares,
    instances_table,
    parts_table,
    read_status,
    status_json,
    topics_table,
    urls_of,
)
from services.status import dead_letter_reasons
from services.status_figures import Rates, Status, rates_between

_UPDATE_SECONDS = 2.0
_MOST_REASONS = 8
_REASONS_SECONDS = 30.0
"""The console asks for the reasons as often. The API reads all dead letters for the answer."""


def top(
    *,
    api: ApiUrl = None,
    pipeline: PipelineUrl = None,
    count: Annotated[int, typer.Option(min=0, help="End after this number of updates. 0: end at Ctrl-C.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show rates, lag, micro-batches, freshness, restores and dead letters by reason, every two seconds.

    With --json, the command reads the status twice. It prints the second status, with the rates since the first one.
    """
    settings = read_settings()
    urls = urls_of(settings, api=api, pipeline=pipeline)
    if as_json:
        first = read_status(settings, urls)
        time.sleep(_UPDATE_SECONDS)
        second = read_status(settings, urls)
        rates = rates_between(first, second)
        of_parts = {"topics": rates.topics, "queries": rates.queries, "batch_seconds": rates.batch_seconds}
        reasons = dead_letter_reasons(settings, urls["api"])
        print_json(status_json(second) | {"rates": of_parts, "dead_letter_reasons": reasons})
        return
    before, reasons, due, screen = None, None, 0.0, console()
    with ExitStack() as stack:
        # If stdout is no terminal, there is no screen to update, so each update is printed after the one before.
        show: Callable[[RenderableType], object] = screen.print
        if screen.is_terminal:
            live = stack.enter_context(Live(console=screen, auto_refresh=False, screen=not count))
            show = partial(live.update, refresh=True)
        for update in itertools.count(1):
            found = read_status(settings, urls)
            if time.monotonic() >= due:
                reasons, due = dead_letter_reasons(settings, urls["api"]), time.monotonic() + _REASONS_SECONDS
            show(overview(found, rates_between(before, found) if before else None, reasons))
            if update == count:
                return
            before = found
            time.sleep(_UPDATE_SECONDS)


def overview(found: Status, rates: Rates | None, reasons: dict[str, int] | None) -> RenderableType:
    """The tables of one update. Without rates their cells are empty. ``reasons`` is the number of dead letters for each
    reason, the most frequent first; None if it is not known.
    """
    freshness = (rates and rates.freshness) or found.freshness
    letters = "not known" if found.dead_letters is None else f"{found.dead_letters:,}"
    shares = freshness_shares(freshness) if freshness else "not known"
    line = f"freshness: {shares}    dead letters: {letters}    Ctrl-C ends"
    tables = [_queries(found, rates), topics_table(found, rates), instances_table(found), parts_table(found)]
    return Group(line, *tables, *([_reasons(reasons)] if reasons else []))


def _queries(found: Status, rates: Rates | None) -> Table:
    lags: Counter[str] = Counter()
    for lag in found.lags:
        lags[lag.reader] += lag.records
    rows = (
        (
            query,
            figure(rates and rates.queries.get(query)),
            figure(rates and rates.batch_seconds.get(query), 2),
            figure(lags.get(f"query {query}"), 0),
        )
        for query in sorted(found.work)
    )
    return table("query", "records a second", "seconds a batch", "not read yet", rows=rows)


def _reasons(reasons: dict[str, int]) -> Table:
    rows = [*reasons.items()][:_MOST_REASONS]
    if others := sum([*reasons.values()][_MOST_REASONS:]):
        rows.append(("others", others))
    return table("reason of dead letters", "records", rows=((reason, f"{number:,}") for reason, number in rows))
