"""Reads the Avro values of a whole Arrow batch at once.

pyruhvro reads an invoice in a fortieth of the time that fastavro takes. It has one maintainer and accepts other bytes
than fastavro, so it only confirms what is certain: a value counts as read if pyruhvro writes exactly its bytes again.
fastavro decides about every other value (docs/explanation/decisions/0057-batches-read-in-rust.md).

Do not read values before a fork: the threads of pyruhvro do not exist in the child, and its next read never ends.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence

import pyruhvro

import schemas
from services.messaging.avro import HEADER_BYTES, Record, same_schema, schema_id_of

BATCHED = frozenset({"PosInvoice", "HadoopRecord"})
"""The records that pyruhvro 0.4 can write. It cannot write bytes and decimals."""

_FEWEST = 16
"""Reading fewer values at once takes longer than fastavro."""
_MOST = 1000
"""More values at once are not faster."""
_MOST_BYTES = 2**19
"""Bytes of the values that are read at once. As dictionaries they need up to 50 times as much."""

# pyruhvro starts as many threads as there are cores, in each worker. Spark already runs a worker for each core.
os.environ.setdefault("TOKIO_WORKER_THREADS", "1")


class BatchReader:
    """Reads the values that the newest schema of one record type has written."""

    def __init__(self, name: str, known: Mapping[int, str], fewest: int = _FEWEST) -> None:
        """
        Args:
            name: of the records.
            known: the schemas that can have written a value, by their ids.
            fewest: the smallest number of values that are read at once.
        """
        self._fewest = fewest
        self._schema = json.dumps(schemas.current(name))
        self._ids = frozenset(
            schema_id for schema_id, text in known.items() if name in BATCHED and same_schema(text, self._schema)
        )

    def read(self, values: Sequence[bytes | None]) -> Iterator[Record | None]:
        """The record of each value, as fastavro decodes it. None: fastavro must decide about the value."""
        for part in _parts(values):
            bodies = [None if value is None else self._body(value) for value in part]
            records = iter(self._read([body for body in bodies if body is not None]))
            for body in bodies:
                yield None if body is None else next(records)

    def _body(self, value: bytes) -> bytes | None:
        # A value that is larger than a whole part can contain millions of empty line items.
        return value[HEADER_BYTES:] if len(value) <= _MOST_BYTES and schema_id_of(value) in self._ids else None

    def _read(self, bodies: list[bytes]) -> list[Record | None]:
        if len(bodies) < self._fewest:
            return [None] * len(bodies)
        if (records := self._read_all(bodies)) is not None:
            return records
        if len(bodies) == 1:  # only if ``fewest`` is 1
            return [None]
        # At least one body is damaged. Read each half by itself.
        half = len(bodies) // 2
        return self._read(bodies[:half]) + self._read(bodies[half:])

    def _read_all(self, bodies: list[bytes]) -> list[Record | None] | None:
        """The record of each body. Returns None if pyruhvro refuses one of the bodies."""
        try:
            batch = pyruhvro.deserialize_array(bodies, self._schema)
            batch.validate(full=True)  # texts that are not UTF-8
            (written,) = pyruhvro.serialize_record_batch(batch, self._schema, 1)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a panic of Rust is not an Exception
            return None
        pairs = zip(batch.to_pylist(), written.to_pylist(), bodies, strict=True)
        return [record if again == body else None for record, again, body in pairs]


def _parts(values: Sequence[bytes | None]) -> Iterator[list[bytes | None]]:
    """The values in parts that are read at once."""
    part: list[bytes | None] = []
    size = 0
    for value in values:
        part.append(value)
        size += len(value or b"")
        if len(part) == _MOST or size >= _MOST_BYTES:
            yield part
            part, size = [], 0
    yield part
