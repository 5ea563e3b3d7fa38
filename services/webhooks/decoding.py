"""Decodes the notifications of one endpoint, and waits for the Schema Registry if it gives no usable answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

import stamina
import structlog

from schemas import topics
from services.messaging.avro import Record, decoder, schema_id_of
from services.messaging.schema_ids import SchemaIds, SchemaRegistryUnavailableError

log = structlog.get_logger(__name__)

_LONGEST_WAIT_SECONDS = 2.0


class WaitingDecoder:
    """Decodes values in the event loop. One thread asks the Schema Registry for each schema that is new.

    So a value that waits for the registry delays no value whose schema is known, and takes no thread from the look-ups
    of host names.

    Args:
        ids: must not wait for the registry by itself (``schema_ids(…, waits=False)``).
    """

    def __init__(self, endpoint: str, ids: SchemaIds) -> None:
        self._endpoint = endpoint
        self._decode = decoder(topics.LOYALTY, ids)
        self._known: set[int | None] = {None}  # the decoder refuses a value without an id by itself
        self._turns: WeakValueDictionary[int | None, asyncio.Lock] = WeakValueDictionary()
        self._problems: dict[int | None, str] = {}
        self._thread = ThreadPoolExecutor(1, f"schemas-{endpoint}")

    @property
    def problem(self) -> str | None:
        """Why a value waits for the registry; None if no value waits."""
        return next(iter([*self._problems.values()]), None)  # a copy, because another thread calls this

    async def decode(self, value: bytes) -> Record:
        """The record of a value. Asks again until the registry has given a usable answer. Raises UndecodableError."""
        schema_id = schema_id_of(value)
        if schema_id in self._known:
            return self._decode(value)
        # Many values can have the same new id. One of them asks, and then the decoder knows the schema.
        async with self._turns.setdefault(schema_id, asyncio.Lock()):
            try:
                record = await self._asked(value, schema_id)
            finally:
                self._problems.pop(schema_id, None)
        self._known.add(schema_id)
        return record

    async def _asked(self, value: bytes, schema_id: int | None) -> Record:
        async for attempt in stamina.retry_context(
            on=SchemaRegistryUnavailableError, attempts=None, timeout=None, wait_max=_LONGEST_WAIT_SECONDS
        ):
            with attempt:
                try:
                    return await asyncio.get_running_loop().run_in_executor(self._thread, self._decode, value)
                except SchemaRegistryUnavailableError as error:
                    if not self._problems:
                        log.warning("cannot decode now, and tries again", endpoint=self._endpoint, reason=str(error))
                    self._problems[schema_id] = str(error)
                    raise
        raise AssertionError  # the attempts do not end

    def close(self) -> None:
        """Ask nothing more. A running question ends after some seconds."""
        self._thread.shutdown(wait=False, cancel_futures=True)
