"""Schema ids of a Schema Registry. Only a process whose settings name a registry imports this module."""

import json
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

from confluent_kafka.schema_registry import Schema as RegisteredSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

import schemas
from schemas.topics import Topic
from services.messaging.schema_ids import SchemaRegistryUnavailableError, UnknownSchemaIdError
from services.settings import Settings

_OPTIONS = {
    # Without a timeout the client would wait forever, and the materialiser with it.
    "timeout": 5.0,
    # Callers that must not fail try again by themselves. An attempt that the client hides could hide a restart of the
    # registry from ``NotFoundAnswers``.
    "max.retries": 0,
}

_NOT_FOUND = range(404_01, 404_04)
"""Codes of the registry: a subject, a version or a schema does not exist. Source: Confluent's Schema Registry API."""

LOADING_SECONDS = 30.0
"""How long a registry must say that it does not know an id, before a reader believes it.

Apicurio serves requests before it has read all of its schemas from Kafka. Measured for 3.3.3: 0.5 s for 40 schemas, and
19 s for 4,000.
"""
_ASK_AGAIN_SECONDS = 0.5
_SERIES_SECONDS = 600.0
"""The longest pause in a series of "not found"."""


class NotFoundAnswers:
    """Decides when to believe a registry that does not know an id. All readers of a process share the answers.

    Known limit: while this process meets unknown ids more often than every ten minutes, it does not notice that the
    registry has started again between two of its questions.
    """

    def __init__(self) -> None:
        # The first and the last moment of the newest series (``time.monotonic``).
        self._first = self._last = float("-inf")

    def add(self) -> bool:
        """Add an answer that has just arrived. Returns whether to believe it.

        So a reader waits once for a series of unknown ids, and not for each of them.
        """
        now = time.monotonic()
        if now > self._last + _SERIES_SECONDS:
            self._first = now
        self._last = now
        return now >= self._first + LOADING_SECONDS

    def end_series(self) -> None:
        """Begin a new series at the next answer, because the registry may have started again."""
        self._last = float("-inf")


@cache
def _answers_of(_url: str) -> NotFoundAnswers:
    return NotFoundAnswers()


class RegistrySchemaIds:
    """The ids of a Schema Registry, with Confluent's default subjects ``{topic}-value``."""

    def __init__(
        self,
        client: SchemaRegistryClient,
        settings: Settings,
        *,
        waits: bool = True,
        not_found: NotFoundAnswers | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._waits = waits
        self._not_found = not_found or NotFoundAnswers()
        self._known: dict[Topic, dict[int, str]] = {}
        weakref.finalize(self, client.close)

    def _subject(self, topic: Topic) -> str:
        return f"{self._settings.name_of(topic)}-value"

    def writer_id(self, topic: Topic) -> int:
        schema = RegisteredSchema(json.dumps(schemas.current(topic.value)), "AVRO")
        with _usable_answer(f"give an id for {topic.value}"):
            return int(self._client.register_schema(self._subject(topic), schema))  # an answer can lack the id

    def writer_schema(self, schema_id: int) -> str:
        while True:
            try:
                return _without_logical_types(self._schema_text(schema_id))
            except UnknownSchemaIdError as error:
                if self._not_found.add():
                    raise
                if not self._waits:
                    raise SchemaRegistryUnavailableError(
                        f"the Schema Registry does not know the schema of id {schema_id}. It may still be loading its "
                        f"schemas, so this process asks for {LOADING_SECONDS:.0f} seconds before it skips a record"
                    ) from error
            except SchemaRegistryUnavailableError:
                self._not_found.end_series()
                raise
            time.sleep(_ASK_AGAIN_SECONDS)

    def _schema_text(self, schema_id: int) -> str:
        """Raises UnknownSchemaIdError if the registry says that there is no such schema."""
        with _usable_answer(f"return the schema of id {schema_id}"):
            try:
                text = self._client.get_schema(schema_id).schema_str
            except SchemaRegistryError as error:
                if _is_not_found(error):
                    raise UnknownSchemaIdError(schema_id) from error
                raise
        if text is None:
            raise SchemaRegistryUnavailableError(f"the Schema Registry answered without a schema for id {schema_id}")
        return text

    def known(self, topic: Topic) -> dict[int, str]:
        # The parts of a query ask at different times, and all must know the same ids. A query that starts again must
        # not depend on the registry.
        if topic not in self._known:
            self._known[topic] = self._list(topic)
        return self._known[topic]

    def _list(self, topic: Topic) -> dict[int, str]:
        own_id = self.writer_id(topic)  # creates the subject if it does not exist
        subject = self._subject(topic)
        with _usable_answer(f"list the schemas of {subject}"):
            # Records can still have the id of a deleted schema. The registry keeps it, unless somebody deletes it
            # permanently.
            numbers = self._client.get_versions(subject, deleted=True)
            versions = [self._client.get_version(subject, number, deleted=True) for number in numbers]
        # Another node of the registry may not list a schema that was registered a moment ago.
        return {own_id: json.dumps(schemas.current(topic.value))} | {
            int(str(version.schema_id)): _without_logical_types(str(version.schema.schema_str)) for version in versions
        }

    def accepts(self, topic: Topic, schema_text: str) -> bool:
        with _usable_answer("say whether it accepts a schema"):
            try:
                # The other request compares the schema with the newest version only.
                return self._client.test_compatibility_all_versions(
                    self._subject(topic), RegisteredSchema(schema_text, "AVRO")
                )
            except SchemaRegistryError as error:
                if _is_not_found(error):
                    return True  # the subject has no schema yet
                raise


def _is_not_found(error: SchemaRegistryError) -> bool:
    """Whether the registry says that something does not exist.

    The status is not enough: a proxy also answers 404, and a server without this path.
    """
    return error.http_status_code == HTTPStatus.NOT_FOUND and error.error_code in _NOT_FOUND


def _without_logical_types(schema_text: str) -> str:
    """The schema without its logical types, except decimals.

    They do not change the bytes. With them, fastavro and Spark would read a time or a UUID as another type than the
    current schema says. The registry accepts such schemas, because Avro's check of compatibility ignores logical types.
    """
    try:
        return json.dumps(schemas.with_types(json.loads(schema_text), _without_logical_type))
    except (ValueError, RecursionError):
        return schema_text  # the caller parses it and reports the error


def _without_logical_type(schema: Any) -> Any:
    if not isinstance(schema, dict) or schema.get("logicalType") == "decimal":
        return schema
    return {name: part for name, part in schema.items() if name != "logicalType"}


@contextmanager
def _usable_answer(request: str) -> Iterator[None]:
    """Turn every error of the client, of HTTP and of JSON into SchemaRegistryUnavailableError."""
    try:
        yield
    except UnknownSchemaIdError:
        raise
    except Exception as error:
        has_answered = isinstance(error, SchemaRegistryError) and error.error_code not in (None, error.UNKNOWN)
        advice = "" if has_answered else ": start it, or set LOYALTY_SCHEMA_REGISTRY_URL to its address"
        raise SchemaRegistryUnavailableError(
            f"the Schema Registry did not {request}: {type(error).__name__} {error}{advice}"
        ) from error


def registry_schema_ids(settings: Settings, *, waits: bool) -> RegistrySchemaIds:
    """The schema ids of the registry that the settings name; see ``schema_ids``."""
    url = settings.schema_registry_url
    client = SchemaRegistryClient({"url": url, **_OPTIONS})
    return RegistrySchemaIds(client, settings, waits=waits, not_found=_answers_of(url))
