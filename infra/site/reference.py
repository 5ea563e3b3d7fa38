"""Markdown that describes the code: settings, topics, records, rights, commands and HTTP requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import MagicMock

import typer
from typer.cli import get_docs_for_click

import schemas
from api import __main__ as api_main
from api.app import create_app
from infra.demo import __main__ as demo
from infra.site.markdown import table
from pipelines import __main__ as pipelines_main
from schemas import topics
from schemas.access import SERVICES
from services.cli import app as command_line
from services.settings import Settings
from services.sql.catalogue import TABLES
from services.sql.ledger import TABLES as LEDGER_TABLES
from services.sql.questions import QUESTIONS
from services.sql.topics import table_name


def settings() -> str:
    # The defaults of the code, without environment variables and secrets of the machine that builds the page.
    defaults = Settings.model_construct().model_dump(mode="json")
    return table(
        ("variable", "default", "purpose"),
        (
            (f"`LOYALTY_{name.upper()}`", _code(defaults[name]) or "not set", field.description)
            for name, field in Settings.model_fields.items()
        ),
    )


def catalogue() -> str:
    """The topics, in the order of the catalogue."""
    return table(
        ("topic", "key", "value", "partitions", "cleanup", "kept"),
        (
            (
                f"`{topic.name}`",
                topic.key,
                f"[{topic.value}](#{topic.value.lower()})" if topic.value else "the value of the original record",
                topic.partitions or "`LOYALTY_PARTITIONS`",
                topic.cleanup_policy,
                f"{topic.retention.days} days" if topic.retention else "the latest record of each key",
            )
            for topic in topics.ALL
        ),
    )


def records() -> str:
    """The fields of every record that is the value of a topic."""
    names = dict.fromkeys(topic.value for topic in topics.ALL if topic.value)
    return "\n".join(_record(schemas.current(name)) for name in names)


def access() -> str:
    def names(found: Sequence[topics.Topic]) -> str:
        return "all" if tuple(found) == topics.ALL else ", ".join(topic.name for topic in found) or "none"

    return table(
        ("service", "writes", "reads", "reads the settings of", "counts", "consumer groups and transactional ids"),
        (
            (
                service.user,
                names(service.writes),
                names(service.reads),
                names(service.reads_settings_of),
                names(service.counts),
                ", ".join((*service.groups, *(f"{name} (transactions)" for name in service.transactional_ids)))
                or "none",
            )
            for service in SERVICES
        ),
    )


def commands() -> str:
    """Every command. `demo`, `pipeline` and `api` forward their options to other programs."""
    group: Any = typer.main.get_command(command_line)
    programs: Mapping[str, Any] = {"demo": demo.main, "pipeline": pipelines_main.main, "api": api_main.main}
    for name, main in programs.items():
        program = typer.Typer(add_completion=False)
        program.command(name)(main)
        group.commands[name] = typer.main.get_command(program)
    return get_docs_for_click(obj=group, ctx=typer.Context(group), name="loyalty", indent=2)


def requests() -> str:
    """Every HTTP request, from the OpenAPI document.

    The routes do not depend on the dependencies of the app, so the app gets a mock.
    """
    document = create_app(MagicMock()).openapi()
    operations = [
        (path, method, operation) for path, item in document["paths"].items() for method, operation in item.items()
    ]
    parts = []
    for tag in document["tags"]:
        parts.append(f"### {tag['name'].capitalize()}\n\n{tag['description']}\n")
        parts += [_operation(*each) for each in operations if each[2]["tags"] == [tag["name"]]]
    return "\n".join([*parts, "## Bodies\n", *_models(document)])


def tables() -> str:
    """The tables of `loyalty sql` for analysts, with their columns."""
    parts = [
        f"### {each.name}\n\nOne row is {each.grain}. Source: {each.source}.\n\n"
        + table(("column", "type", "meaning"), ((f"`{c.name}`", c.type, c.meaning) for c in each.columns))
        for each in TABLES
    ]
    return "\n".join(parts)


def raw_tables() -> str:
    """The tables of `loyalty sql` that show the topics and the ledger."""
    from_topics = ((f"`{table_name(topic)}`", f"topic {topic.name}", _rows_of(topic)) for topic in topics.ALL)
    from_ledger = ((f"`{each.name}`", "the ledger", "as in the database") for each in LEDGER_TABLES)
    return table(("table", "source", "rows"), (*from_topics, *from_ledger))


def questions() -> str:
    return table(("name", "question"), ((f"`{each.name}`", each.asks) for each in QUESTIONS))


GENERATORS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "topics": catalogue,
    "records": records,
    "access": access,
    "commands": commands,
    "requests": requests,
    "tables": tables,
    "raw-tables": raw_tables,
    "questions": questions,
}
"""By name in the mark of a page: the function that makes the Markdown."""


def _rows_of(topic: topics.Topic) -> str:
    if topic.compacted or topic.retention is None:
        return "the newest record of each key"
    return "each record" if topic.value else "each dead letter"


def _code(value: object) -> str:
    return "" if value in (None, "") else f"`{value}`"


def _record(schema: Mapping[str, Any]) -> str:
    rows = [(f"`{field['name']}`", _avro_type(field["type"]), field.get("doc", "")) for field in schema["fields"]]
    return f"### {schema['name']}\n\n{schema.get('doc', '')}\n\n{table(('field', 'type', 'meaning'), rows)}"


def _avro_type(type_: Any) -> str:
    match type_:
        case str():
            return type_
        case list():
            return " or ".join(map(_avro_type, type_))
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            return f"decimal({precision},{scale})"
        case {"type": "array", "items": items}:
            return f"array of {_avro_type(items)}"
        case {"type": "record", "name": name, "fields": fields}:
            return f"{name} ({', '.join(field['name'] for field in fields)})"
        case _:
            return str(type_.get("logicalType", type_["type"]))


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f"#### `{method.upper()} {path}`\n", operation.get("description", operation.get("summary", "")), ""]
    if parameters := operation.get("parameters"):
        asked = [
            (f"`{each['name']}`", each["in"], "yes" if each.get("required") else "no", each.get("description", ""))
            for each in parameters
        ]
        parts.append(table(("parameter", "in", "required", "meaning"), asked))
    if body := operation.get("requestBody"):
        parts.append(f"Body: {_link(next(iter(body['content'].values())).get('schema', {}))}\n")
    responses = sorted(operation["responses"].items())
    rows, problems = [], []
    for status, response in responses:
        contents = response.get("content", {}).values()
        if status < "400":
            bodies = ", ".join(_link(each.get("schema", {})) for each in contents)
            rows.append((status, response["description"], bodies))
        else:
            codes = ", ".join(f"`{code}`" for each in contents for code in each.get("examples", {}))
            problems.append(f"{status} {codes}".strip())
    parts.append(table(("status", "meaning", "body"), rows))
    return "\n".join([*parts, f"[Problems](problems.md): {'; '.join(problems)}.\n" if problems else ""])


def _link(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return " or ".join(map(_link, options))
    if schema.get("type") == "array":
        return f"array of {_link(schema['items'])}"
    return str(schema.get("type", "any"))


def _models(document: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        rows = [
            (f"`{field}`", _link(each), each.get("description", ""))
            for field, each in schema.get("properties", {}).items()
        ]
        yield f"### {name}\n\n{schema.get('description', '')}\n"
        if rows:
            yield table(("member", "type", "meaning"), rows)
