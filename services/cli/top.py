"""`loyalty top`: the overview page of the console, in a terminal."""

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
    freshness_shares,
    instances_table,
    parts_table,
    read_status,
    status_json,
    urls_of,
)
from services.status import Rates, Status, rates_between


def top(
    *,
    api: ApiUrl = None,
    pipeline: PipelineUrl = None,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two updates.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="End after this number of updates. 0: end at Ctrl-C.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show rates, lag, micro-batches, freshness, instances and dead letters, and update them every two seconds.

    With --json, the command reads the status twice. It prints the second status, with the rates since the first one.
    """
    settings = read_settings()
    urls = urls_of(settings, api=api, pipeline=pipeline)
    if as_json:
        first = read_status(settings, urls)
        time.sleep(interval)
        second = read_status(settings, urls)
        rates = rates_between(first, second)
        of_parts = {"topics": rates.topics, "queries": rates.queries, "batch_seconds": rates.batch_seconds}
        print_json(status_json(second) | {"rates": of_parts})
        return
    before, shown, screen = None, 0, console()
    with ExitStack() as stack:
        # If stdout is no terminal, there is no screen to update, so each update is printed after the one before.
        show: Callable[[RenderableType], object] = screen.print
        if screen.is_terminal:
            live = stack.enter_context(Live(console=screen, auto_refresh=False, screen=not count))
            show = partial(live.update, refresh=True)
        while True:
            found = read_status(settings, urls)
            show(overview(found, rates_between(before, found) if before else None))
            before, shown = found, shown + 1
            if shown == count:
                return
            time.sleep(interval)


def overview(found: Status, rates: Rates | None) -> RenderableType:
    """The tables of one update. Without rates their cells are empty."""
    freshness = (rates and rates.freshness) or found.freshness
    letters = "not known" if found.dead_letters is None else f"{found.dead_letters:,}"
    shares = freshness_shares(freshness) if freshness else "not known"
    line = f"freshness: {shares}    dead letters: {letters}    Ctrl-C ends"
    return Group(line, _queries(found, rates), _topics(found, rates), instances_table(found), parts_table(found))


def _queries(found: Status, rates: Rates | None) -> Table:
    lags: Counter[str] = Counter()
    for lag in found.lags:
        lags[lag.reader] += lag.records
    rows = (
        (
            query,
            _figure(rates and rates.queries.get(query)),
            _figure(rates and rates.batch_seconds.get(query), 2),
            _figure(lags.get(f"query {query}"), 0),
        )
        for query in sorted(found.work)
    )
    return table("query", "records a second", "seconds a batch", "not read yet", rows=rows)


def _topics(found: Status, rates: Rates | None) -> Table:
    rows = (
        (topic, f"{records:,}", _figure(rates and rates.topics.get(topic))) for topic, records in found.records.items()
    )
    return table("topic", "records", "a second", rows=rows)


def _figure(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"
