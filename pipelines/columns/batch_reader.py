"""Reads the Avro values of a whole Arrow batch at once.

pyruhvro reads an invoice in a fortieth of the time that fastavro takes. It has one maintainer and accepts other bytes
than fastavro, so it only confirms what is certain: a value counts as read if pyruhvro writes exactly its bytes again.
fastavro decides about every other value (docs/explanation/decisions/0057-batches-read-in-rust.md).
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain

import pyruhvro

import schemas
from services.messaging.avro import HEADER_BYTES, Record, same_schema, schema_id_of

BATCHED = frozenset({"PosInvoice", "HadoopRecord"})
"""The records that pyruhvro 0.4 can write. It cannot write bytes and decimals."""

_FEWEST = 16
"""Reading fewer values at once takes longer than fastavro."""
_MOST = 1000
"""More values at once are not faster, and would need more memory."""
_LARGEST = 2**16
"""Bytes of a value. Larger ones are rare, and many of them at once would need much memory."""


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
        newest = schemas.current(name)
        self._schema = json.dumps(newest)
        self._ids = frozenset(
            schema_id for schema_id, text in known.items() if name in BATCHED and same_schema(text, newest)
        )

    def read(self, values: Sequence[bytes | None]) -> list[Record | None]:
        """The record of each value, as fastavro decodes it. None: fastavro must decide about the value."""
        records: list[Record | None] = [None] * len(values)
        fitting = [number for number, value in enumerate(values) if self._fits(value)]
        bodies = [values[number][HEADER_BYTES:] for number in fitting]  # type: ignore[index]  # _fits excludes None
        parts = (self._read(bodies[start : start + _MOST]) for start in range(0, len(bodies), _MOST))
        for number, record in zip(fitting, chain.from_iterable(parts), strict=True):
            records[number] = record
        return records

    def _fits(self, value: bytes | None) -> bool:
        return value is not None and len(value) <= _LARGEST and schema_id_of(value) in self._ids

    def _read(self, bodies: list[bytes]) -> list[Record | None]:
        if len(bodies) < self._fewest:
            return [None] * len(bodies)
        if (records := self._read_all(bodies)) is not None:
            return records
        if len(bodies) == 1:
            return [None]
        # One of them is damaged. Its half is divided again.
        half = len(bodies) // 2
        return self._read(bodies[:half]) + self._read(bodies[half:])

    def _read_all(self, bodies: list[bytes]) -> list[Record | None] | None:
        """None: pyruhvro refuses one of them."""
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


@cache
def batch_reader(name: str, known: tuple[tuple[int, str], ...]) -> BatchReader:
    """A worker makes each reader once."""
    return BatchReader(name, dict(known))
