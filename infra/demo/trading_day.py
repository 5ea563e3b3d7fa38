"""The messages of a demo: a simulated trading day, or recorded invoices."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from infra.demo.invoice_oracle import Record
from infra.demo.oracle import Sent
from services.messaging.schema_ids import SchemaIds
from services.pos_simulator.replay import Format, lines_of, recorded
from services.pos_simulator.simulation import Options, Simulation


def simulated(options: Options, ids: SchemaIds) -> Iterator[Sent]:
    """The messages of the simulator. The invoice of a broken message is None."""
    for message in Simulation(options, ids).messages():
        yield Sent(message.key, message.value, message.invoice)


def from_files(files: Iterable[Path], ids: SchemaIds) -> Iterator[Sent]:
    """The lines of all files, in the format of ``loyalty replay``."""
    with ExitStack() as opened:
        inputs = [opened.enter_context(path.open("rb")) for path in files]
        lines = [line for line in lines_of(inputs) if line.strip()]
    for line, message in zip(lines, recorded(lines, Format.AVRO, ids), strict=True):
        yield Sent(message.key, message.value, _invoice(line))


def _invoice(line: bytes) -> Record | None:
    try:
        invoice = json.loads(line)
    except ValueError:
        return None
    return invoice if isinstance(invoice, dict) else None
