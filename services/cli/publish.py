"""`loyalty simulate` and `loyalty replay`: publish invoices to pos-invoices."""

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Annotated, Any

import typer

from schemas import topics
from services import tracing
from services.cli.output import (
    MISUSED,
    AsJson,
    clear_errors,
    figures,
    open_input,
    progress,
    read_settings,
    report,
    stop,
)
from services.messaging.publishing import connected_producer, publish
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.replay import Format, lines_of, recorded
from services.pos_simulator.simulation import LARGEST_OFFLINE, Options, Simulation
from services.settings import Settings

DEFAULT = Options()
LARGEST_RANDOM_SEED = 10**6


def simulate(  # noqa: PLR0913 - each option is a parameter
    *,
    count: Annotated[
        int, typer.Option(min=1, help="Number of messages, including duplicates and broken messages.")
    ] = DEFAULT.count,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second. 0: as fast as possible.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same invoices. Default: a random seed.")
    ] = None,
    prime: Annotated[float, typer.Option(min=0, max=1, help="Share of PRIME invoices.")] = DEFAULT.prime,
    home_delivery: Annotated[
        float, typer.Option(min=0, max=1, help="Share of HOME-DELIVERY invoices.")
    ] = DEFAULT.home_delivery,
    repeats: Annotated[float, typer.Option(min=0, max=1, help="Share of duplicates.")] = DEFAULT.repeats,
    broken: Annotated[float, typer.Option(min=0, max=1, help="Share of broken messages.")] = DEFAULT.broken,
    returns: Annotated[float, typer.Option(min=0, max=1, help="Share of returns.")] = DEFAULT.returns,
    exchanges: Annotated[float, typer.Option(min=0, max=1, help="Share of exchanges.")] = DEFAULT.exchanges,
    offline: Annotated[
        float, typer.Option(min=0, max=LARGEST_OFFLINE, help="Share of invoices that offline tills send hours later.")
    ] = DEFAULT.offline,
    customers: Annotated[int, typer.Option(help="Number of customers.")] = DEFAULT.customers,
    stores: Annotated[int, typer.Option(help="Number of shops.")] = DEFAULT.stores,
    day: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="The simulated day.")] = f"{DEFAULT.day}",  # type: ignore[assignment]
    as_json: AsJson = False,
) -> None:
    """Publish a simulated trading day to pos-invoices."""
    seed = secrets.randbelow(LARGEST_RANDOM_SEED) if seed is None else seed
    try:
        options = Options(
            count,
            seed,
            prime,
            home_delivery,
            repeats,
            broken,
            customers=customers,
            stores=stores,
            day=day.date(),
            returns=returns,
            offline=offline,
            exchanges=exchanges,
        )
    except ValueError as error:
        stop(str(error), MISUSED)
    settings = read_settings()
    kinds: Counter[str] = Counter()

    def counted() -> Iterator[tuple[bytes | None, bytes]]:
        for message in Simulation(options, schema_ids(settings)).messages():
            kinds[message.kind] += 1
            yield message.key, message.value

    with clear_errors():
        published = _publish(counted(), settings, count, rate, quiet=as_json)
    counts = {"invoices": kinds["invoice"], "repeats": kinds["repeat"], "broken": kinds["broken"]}
    values = {**published, "seed": seed, "day": str(options.day), **counts}
    report(values, figures(values | {"seed": str(seed)}), as_json=as_json)


def replay(
    *,
    files: Annotated[list[str], typer.Argument(help="Files with one JSON invoice in each line. - reads stdin.")],
    as_format: Annotated[Format, typer.Option("--as", help="Format of the values.")] = Format.AVRO,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second. 0: as fast as possible.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Publish recorded invoices to pos-invoices.

    The command also publishes a line that is no invoice in JSON, unchanged. The pipeline writes it to the dead letters,
    with a reason.
    """
    settings = read_settings()
    written: Counter[str] = Counter()

    def counted(lines: Iterable[bytes]) -> Iterator[tuple[bytes | None, bytes]]:
        for message in recorded(lines, as_format, schema_ids(settings)):
            written[message.written or "raw"] += 1
            yield message.key, message.value

    with clear_errors(), ExitStack() as opened:
        # Open all files before the first line is published: if a file name is wrong, nothing is published.
        inputs = [open_input(name, opened) for name in files]
        published = _publish(counted(lines_of(inputs)), settings, None, rate, quiet=as_json)
    values = {**published, **{form: written[form] for form in ("avro", "json", "raw")}}
    report(values, figures(values), as_json=as_json)


def _publish(
    records: Iterable[tuple[bytes | None, bytes]], settings: Settings, total: int | None, rate: float, *, quiet: bool
) -> dict[str, Any]:
    tracing.start("loyalty-till")
    topic = settings.name_of(topics.POS_INVOICES)
    producer = connected_producer(settings, "loyalty-till", [topic])
    started = time.monotonic()
    with progress(topic, total, quiet=quiet) as on_progress:
        number = publish(records, producer, topic, rate, on_progress)
    seconds = time.monotonic() - started
    return {
        "topic": topic,
        "published": number,
        "seconds": round(seconds, 3),
        "per_second": round(number / seconds) if seconds else number,
    }
