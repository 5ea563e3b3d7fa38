"""`loyalty topics` and `loyalty settings`."""

from datetime import timedelta

import typer

from schemas import topics as catalogue
from services.cli.output import AsJson, clear_errors, read_settings, report, table, variable
from services.messaging.administration import create_topics
from services.messaging.publishing import require_broker
from services.settings import Settings

topics = typer.Typer(no_args_is_help=True, help="The topics of the system.")


@topics.command("create")
def create(*, as_json: AsJson = False) -> None:
    """Create missing topics. Check the partitions, the cleanup policy and the timestamp type of existing ones.

    The command raises `max.message.bytes` and the retention of compacted topics if they are too low. It lowers
    `max.compaction.lag.ms` of topics with cards if erased records would stay for more than seven days.
    """
    settings = read_settings()
    with clear_errors():
        require_broker(settings)
        names = create_topics(settings)
    report({"topics": names}, "ready: " + ", ".join(names), as_json=as_json)


@topics.command("list")
def list_topics(*, as_json: AsJson = False) -> None:
    """Show all topics."""
    settings = read_settings()
    rows = [
        {
            "name": settings.name_of(topic),
            "key": topic.key,
            "value": topic.value or None,
            "partitions": settings.partitions_of(topic),
            "cleanup_policy": topic.cleanup_policy,
            "retention_ms": topic.retention and topic.retention // timedelta(milliseconds=1),
        }
        for topic in catalogue.ALL
    ]
    shown = (
        (
            settings.name_of(topic),
            topic.key,
            topic.value or "unchanged",
            settings.partitions_of(topic),
            topic.cleanup_policy,
            f"{topic.retention.days} days" if topic.retention else "latest of each key",
        )
        for topic in catalogue.ALL
    )
    columns = ("topic", "key", "value", "partitions", "cleanup", "retention")
    report({"topics": rows}, table(*columns, rows=shown), as_json=as_json)


def show_settings(*, as_json: AsJson = False) -> None:
    """Show all settings: environment variable, value and description."""
    settings = read_settings()
    values = settings.shown()
    rows = [(variable(name), values[name], field.description or "") for name, field in Settings.model_fields.items()]
    found = {name: {"value": value, "description": description} for name, value, description in rows}
    report(found, table("variable", "value", "description", rows=rows), as_json=as_json)
