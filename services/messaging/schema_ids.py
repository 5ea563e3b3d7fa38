"""Which schema id stands for which schema: from a Schema Registry, or from the schemas/ folder without one."""

import json
from functools import cached_property
from http import HTTPStatus
from typing import Protocol

from confluent_kafka.schema_registry import Schema as RegisteredSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

import schemas
from schemas.topics import Topic
from services.settings import Settings

# The client waits forever unless told otherwise, and with it the thread that feeds the stores.
_REGISTRY_SECONDS = 5.0


class UnknownSchemaIdError(LookupError):
    """A value names a schema id that nobody has registered."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"unknown schema id {schema_id}")


class SchemaRegistryUnavailableError(RuntimeError):
    """The Schema Registry gave no usable answer: nothing is known of the value, and asking again may help."""


class SchemaIds(Protocol):
    """Gives and resolves the schema ids of a topic's values."""

    def writer_id(self, topic: Topic) -> int:
        """The id under which values of this topic are written today."""

    def writer_schema(self, schema_id: int) -> str:
        """The schema (JSON text) behind an id; raises UnknownSchemaIdError, SchemaRegistryUnavailableError."""

    def known(self, topic: Topic) -> dict[int, str]:
        """Every id that values of this topic can carry, with its schema (JSON text)."""


class FolderSchemaIds:
    """The ids of ``schemas/ids.json``."""

    @cached_property
    def _by_path(self) -> dict[str, int]:
        return {path: schema_id for schema_id, path in schemas.ids().items()}

    def id_of(self, record: str) -> int:
        """The id of a record's newest schema."""
        return self._by_path[f"{record}.avsc"]

    def writer_id(self, topic: Topic) -> int:
        return self.id_of(str(topic.value))

    def writer_schema(self, schema_id: int) -> str:
        if schema_id not in schemas.ids():
            raise UnknownSchemaIdError(schema_id)
        return schemas.schema_text(schemas.ids()[schema_id])

    def known(self, topic: Topic) -> dict[int, str]:
        return {
            schema_id: schemas.schema_text(path)
            for schema_id, path in schemas.ids().items()
            if schemas.record_name(path) == topic.value
        }


class RegistrySchemaIds:
    """The ids of a Schema Registry, under Confluent's default subject ``{topic}-value``."""

    def __init__(self, client: SchemaRegistryClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    def _subject(self, topic: Topic) -> str:
        return f"{self._settings.name_of(topic)}-value"

    def writer_id(self, topic: Topic) -> int:
        schema = RegisteredSchema(json.dumps(schemas.current(str(topic.value))), "AVRO")
        return self._client.register_schema(self._subject(topic), schema)

    def writer_schema(self, schema_id: int) -> str:
        # Beside its own errors the client lets through whatever its HTTP library, or a proxy's page in place of JSON,
        # raises. Only the registry's own "not found" says something about the id.
        try:
            text = self._client.get_schema(schema_id).schema_str
        except Exception as error:
            if isinstance(error, SchemaRegistryError) and error.http_status_code == HTTPStatus.NOT_FOUND:
                raise UnknownSchemaIdError(schema_id) from error
            raise SchemaRegistryUnavailableError(
                f"the Schema Registry did not say what schema id {schema_id} is: {type(error).__name__} {error}"
            ) from error
        if text is None:
            raise SchemaRegistryUnavailableError(f"the Schema Registry answered without a schema for id {schema_id}")
        return text

    def known(self, topic: Topic) -> dict[int, str]:
        self.writer_id(topic)  # so that the subject exists and holds at least today's schema
        subject = self._subject(topic)
        versions = (self._client.get_version(subject, version) for version in self._client.get_versions(subject))
        return {int(str(version.schema_id)): str(version.schema.schema_str) for version in versions}

    def accepts(self, topic: Topic, schema_text: str) -> bool:
        """Whether the registry would take this schema for a topic's values, by the rule set there. Registers nothing.

        Raises SchemaRegistryUnavailableError.
        """
        try:
            return self._client.test_compatibility(self._subject(topic), RegisteredSchema(schema_text, "AVRO"))
        except Exception as error:
            if isinstance(error, SchemaRegistryError) and error.http_status_code == HTTPStatus.NOT_FOUND:
                return True  # nothing has been written there yet
            raise SchemaRegistryUnavailableError(
                f"the Schema Registry did not say whether it takes a schema: {type(error).__name__} {error}"
            ) from error


def schema_ids(settings: Settings) -> SchemaIds:
    """The source of schema ids that the settings name."""
    if settings.schema_registry_url:
        client = SchemaRegistryClient({"url": settings.schema_registry_url, "timeout": _REGISTRY_SECONDS})
        return RegistrySchemaIds(client, settings)
    return FolderSchemaIds()
