"""`loyalty topics` and `loyalty settings`."""

import re
from datetime import timedelta
from typing import Any

import typer
from rich.table import Table

from schemas import topics as catalogue
from services.cli.output import AsJson, clear_errors, console, print_json, read_settings, variable
from services.messaging.administration import create_topics
from services.messaging.publishing import require_broker
from services.settings import Settings

topics = typer.Typer(no_args_is_help=True, help="The topics of the system.")

_PASSWORD = re.compile(r"(://[^/@:]*):[^/@]*@")


@topics.command("create")
def create(*, as_json: AsJson = False) -> None:
    """Create missing topics, and check the number of partitions of the others."""
    settings = read_settings()
    with clear_errors():
        require_broker(settings)
        names = create_topics(settings)
    if as_json:
        print_json({"topics": names})
    else:
        console().print("ready: " + ", ".join(names), highlight=False)


@topics.command("list")
def list_topics(*, as_json: AsJson = False) -> None:
    """Show all topics."""
    settings = read_settings()
    rows = [
        {
            "name": settings.name_of(topic),
            "key": topic.key,
            "value": topic.value,
            "partitions": topic.partitions,
            "cleanup_policy": topic.cleanup_policy,
            "retention_ms": _milliseconds(topic.retention),
        }
        for topic in catalogue.ALL
    ]
    if as_json:
        print_json({"topics": rows})
        return
    table = Table("topic", "key", "value", "partitions", "cleanup", "retention")
    for row, topic in zip(rows, catalogue.ALL, strict=True):
        kept = f"{topic.retention.days} days" if topic.retention else "latest of each key"
        table.add_row(
            str(row["name"]), topic.key, topic.value or "unchanged", str(topic.partitions), topic.cleanup_policy, kept
        )
    console().print(table)


def show_settings(*, as_json: AsJson = False) -> None:
    """Show all settings: the environment variable, the value and the description."""
    settings = read_settings()
    values = settings.model_dump(mode="json")
    rows = [
        (variable(name), _without_password(values[name]), field.description or "")
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        print_json({name: {"value": value, "description": description} for name, value, description in rows})
        return
    table = Table("variable", "value", "description")
    for name, value, description in rows:
        table.add_row(name, "" if value is None else str(value), description)
    console().print(table)


def _without_password(value: Any) -> Any:
    """The value without passwords in URLs. Users copy this output into tickets and logs."""
    return _PASSWORD.sub(r"\1:…@", value) if isinstance(value, str) else value


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds() * 1000)
