"""`loyalty status`: show which parts run, and how far each part has read."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from services.cli.output import FAILED, AsJson, clear_errors, read_settings, report, table
from services.settings import Settings
from services.state_stores.catalogue import BALANCES
from services.status import default_urls, status_of
from services.status_figures import Freshness, Rates, Status


def _checked(param: typer.CallbackParam, url: str | None) -> str | None:
    if url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url!r} is not a URL: begin with http:// or https://", param_hint=param.opts[0])
    return url.rstrip("/") if url else None


def _metrics_of(part: str) -> Any:
    return typer.Option(callback=_checked, help=f"URL of the {part} metrics, without /metrics.")


ApiUrl = Annotated[
    str | None, typer.Option(callback=_checked, help="URL of an API instance. Default: the URL of the settings.")
]
PipelineUrl = Annotated[str | None, _metrics_of("pipeline's")]


def status(
    *,
    api: ApiUrl = None,
    pipeline: PipelineUrl = None,
    ledger: Annotated[str | None, _metrics_of("ledger's")] = None,
    background: Annotated[str | None, _metrics_of("second driver's")] = None,
    webhooks: Annotated[str | None, _metrics_of("webhooks'")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the parts, the records and the lag of the topics, the API instances, the dead letters and the freshness.

    The exit status is 1 if a part or an API instance does not run, or if a part is not ready.
    """
    settings = read_settings()
    given = {"api": api, "pipeline": pipeline, "ledger": ledger, "background": background, "webhooks": webhooks}
    found = read_status(settings, urls_of(settings, **given))
    lines = [f"dead letters: {'not known' if found.dead_letters is None else f'{found.dead_letters:,}'}"]
    if found.freshness:
        lines.append(_freshness(found.freshness))
    report(status_json(found), parts_table(found), topics_table(found), instances_table(found), *lines, as_json=as_json)
    if any(part.problem for part in found.parts) or not all(each["reachable"] for each in found.instances):
        raise typer.Exit(FAILED)


def urls_of(settings: Settings, **given: str | None) -> dict[str, str]:
    """The URL of each part: the given one, or else the one of the settings."""
    return default_urls(settings) | {name: url for name, url in given.items() if url}


def read_status(settings: Settings, urls: Mapping[str, str]) -> Status:
    with clear_errors():  # LOYALTY_API_CA_FILE may not be a certificate
        return status_of(settings, urls)


def parts_table(found: Status) -> Table:
    return table("part", "address", "state", rows=((name, at, why or "works") for name, at, why in found.parts))


def topics_table(found: Status, rates: Rates | None = None) -> Table:
    """The records and the lags of the topics, and their rates if they are known."""
    lags = defaultdict(list)
    for lag in found.lags:
        lags[lag.topic].append(f"{lag.reader}: {lag.records:,}")
    rows = (
        (topic, f"{number:,}", *([figure(rates.topics.get(topic))] if rates else []), ", ".join(lags[topic]))
        for topic, number in found.records.items()
    )
    return table("topic", "records", *(["a second"] if rates else []), "not read yet", rows=rows)


def figure(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"


def instances_table(found: Status) -> Table:
    rows = []
    for instance in found.instances:
        copies = [each for each in instance["partitions"] if each["store"] == BALANCES]
        of_role = {
            role: " ".join(str(each["partition"]) for each in copies if each["role"] == role)
            for role in ("active", "standby")
        }
        restores = [
            f"{each['store']} {each['partition']}: {each['position']:,} of {each['endOffset']:,}"
            for each in instance["partitions"]
            if not each["restored"]
        ]
        lag = sum(each["lag"] for each in instance["partitions"])
        state = "answers" if instance["reachable"] else "does not answer"
        rows.append((instance["url"], state, of_role["active"], of_role["standby"], "\n".join(restores), f"{lag:,}"))
    columns = ("instance", "state", "active partitions", "standbys", "restores", "lag of its stores")
    return table(*columns, rows=rows)


def freshness_shares(found: Freshness) -> str:
    """For example ``50% at most 1 s, 99% more than 3600 s``."""

    def within(seconds: float | None) -> str:
        return f"more than {found.longest:g} s" if seconds is None else f"at most {seconds:g} s"

    return ", ".join(f"{share:.0%} {within(seconds)}" for share, seconds in found.within.items())


def _freshness(found: Freshness) -> str:
    return (
        f"freshness: {freshness_shares(found)} after Kafka stored the invoice or command ({found.balances:,} balances "
        "since the start of the API instance, whose histogram rounds the seconds up)"
    )


def status_json(found: Status) -> dict[str, Any]:
    freshness = found.freshness
    within = freshness.within if freshness else {}
    return {
        "parts": [part._asdict() for part in found.parts],
        "topics": [
            {
                "name": topic,
                "records": number,
                "lag": {lag.reader: lag.records for lag in found.lags if lag.topic == topic},
            }
            for topic, number in found.records.items()
        ],
        "instances": found.instances,
        "dead_letters": found.dead_letters,
        "freshness_seconds": {f"{share:g}": seconds for share, seconds in within.items()},
        "freshness_balances": freshness.balances if freshness else 0,
    }
