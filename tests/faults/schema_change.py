"""Writers with changed schemas publish beside current ones, and so does a writer with an incompatible schema."""

import io
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro

import schemas
from schemas import topics
from services.messaging.avro import header
from services.pos_simulator.simulation import Options, Simulation
from tests.faults.environment import Environment
from tests.faults.poison import Message
from tests.faults.report import Row
from tests.faults.scenario import Scenario
from tests.faults.under_load import audited_row, load
from tests.support.kafka import publish
from tests.support.programs import loyalty
from tests.support.registry import ApicurioRegistry

_EACH = 40
"""The number of invoices of each writer."""

Schema = dict[str, Any]


def _changed(**types: Any) -> Schema:
    """PosInvoice with other types of some fields. None removes a field. A new field has the default null."""
    schema = schemas.current("PosInvoice")
    fields = [
        {**field, "type": types.get(field["name"], field["type"])}
        for field in schema["fields"]
        if types.get(field["name"], "") is not None
    ]
    new = types.keys() - {field["name"] for field in schema["fields"]}
    return {**schema, "fields": fields + [{"name": name, "type": types[name], "default": None} for name in sorted(new)]}


CHANGES = {
    "field added": _changed(GiftCardNo=["null", "string"]),
    "field removed": _changed(PaymentMethod=None, CESS=None, CashierID=None),
    "narrower, widened since": _changed(CreatedTime=["null", "int"], TotalAmount=["null", "float"]),
}
INCOMPATIBLE = _changed(TotalAmount=["null", "string"])
WIDENED = "narrower, widened since"


class WithRegistry(Environment):
    """A stack with a Schema Registry."""

    def __init__(self, directory: Path, registry: ApicurioRegistry) -> None:
        super().__init__(directory, schema_registry_url=registry.url)
        self.registry = registry


@contextmanager
def with_registry(directory: Path) -> Iterator[WithRegistry]:
    with ApicurioRegistry(directory / "registry") as registry, WithRegistry(directory, registry) as environment:
        yield environment


def schema_change(name: str, environment: WithRegistry, seed: int) -> Row:
    """Old and new writers publish together. The records of an incompatible schema become dead letters.

    A writer registers its schema, the pipeline restarts, and then the writer begins (docs/how-to/change-a-schema.md).
    """
    registry, settings = environment.registry, environment.settings
    subject = f"{settings.name_of(topics.POS_INVOICES)}-value"
    draft = environment.directory / "PosInvoice.avsc"
    draft.write_text(json.dumps(INCOMPATIBLE), encoding="utf-8")
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 20)
        # The narrower schema stands for an older one, so it is registered without a check.
        ids = {
            change: registry.register(subject, schema, forced=change == WIDENED) for change, schema in CHANGES.items()
        }
        refused = registry.register(subject, INCOMPATIBLE) is None
        checked = loyalty(settings, "schemas", "check", draft)
        wrong = registry.register(subject, INCOMPATIBLE, forced=True)
        environment.stack.pipeline.stop()
        environment.stack.pipeline.start()
        for number, (change, schema_id) in enumerate(ids.items()):
            publish(settings, topics.POS_INVOICES, written(CHANGES[change], schema_id or 0, seed + 100 + number))
        publish(settings, topics.POS_INVOICES, written(INCOMPATIBLE, wrong or 0, seed + 100 + len(ids)))
        recovery = environment.recovered()
    seen = f"`loyalty schemas check`: {checked.stdout.strip().splitlines()[-1]}"
    row = audited_row(environment, name, observations, recovery, seen)
    allowed = sum(schema_id is None for schema_id in ids.values()) + (not refused) + (checked.returncode != 1)
    return replace(row, wrong_answers=row.wrong_answers + allowed)


def written(schema: Schema, schema_id: int, seed: int) -> Iterator[Message]:
    """Invoices of a separate day, written with this schema."""
    parsed = fastavro.parse_schema(schema)
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for message in Simulation(Options(count=_EACH, seed=seed, customers=200, repeats=0, broken=0)).messages():
        invoice: dict[str, Any] = {name: _as(types.get(name), value) for name, value in (message.invoice or {}).items()}
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, {name: invoice[name] for name in types if name in invoice})
        yield message.key, header(schema_id) + body.getvalue()


def _as(of: Any, value: Any) -> Any:
    """The value converted to the type."""
    if of == ["null", "int"] and value is not None and abs(value) >= 2**31:
        return value // 1000
    if of == ["null", "float"] and value is not None:
        return struct.unpack("f", struct.pack("f", value))[0]
    return str(value) if of == ["null", "string"] and isinstance(value, float) else value


SCENARIOS: dict[str, Scenario[WithRegistry]] = {
    # Only one injection, because a registry accepts a schema that it already has.
    "schema changed: field added, removed, widened, incompatible": Scenario(schema_change, with_registry, most=1)
}
