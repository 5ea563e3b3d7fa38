"""Maps schema ids to schemas: with a Schema Registry, or with the folder ``schemas`` if there is none."""

from typing import TYPE_CHECKING, Protocol

import schemas
from schemas.topics import Topic
from services.errors import UserError

if TYPE_CHECKING:
    # Each Python process that Spark starts imports this module. The import of the settings takes 0.1 s.
    from services.settings import Settings


class UnknownSchemaIdError(LookupError):
    """The schema id of a value is not registered."""

    def __init__(self, schema_id: int) -> None:
        super().__init__(f"unknown schema id {schema_id}")


class SchemaRegistryUnavailableError(UserError):
    """The Schema Registry gave no usable answer. A later request can succeed."""


class SchemaIds(Protocol):
    """Finds schema ids, and the schemas of ids."""

    def writer_id(self, topic: Topic) -> int:
        """The id of the schema in which new values of this topic are written. Raises SchemaRegistryUnavailableError."""

    def writer_schema(self, schema_id: int) -> str:
        """The schema of an id as JSON. Raises UnknownSchemaIdError, SchemaRegistryUnavailableError."""

    def known(self, topic: Topic) -> dict[int, str]:
        """All ids that values of this topic can have, with their schemas as JSON.

        Raises SchemaRegistryUnavailableError.
        """

    def accepts(self, topic: Topic, schema_text: str) -> bool:
        """Whether the registry would accept this schema for the values of a topic. It registers nothing.

        Raises SchemaRegistryUnavailableError.
        """


class FolderSchemaIds:
    """The ids in ``schemas/ids.json``."""

    def id_of(self, record: str) -> int:
        """The id of the newest schema of a record."""
        return {path: schema_id for schema_id, path in schemas.ids().items()}[f"{record}.avsc"]

    def writer_id(self, topic: Topic) -> int:
        return self.id_of(topic.value)

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

    def accepts(self, topic: Topic, schema_text: str) -> bool:
        """There is no registry that could refuse it."""
        return True


def schema_ids(settings: "Settings", *, waits: bool = True) -> SchemaIds:
    """The schema ids of the Schema Registry that the settings name, or of the folder ``schemas``.

    Args:
        waits: ask again for up to 30 seconds before an id counts as unknown, because the registry may still be loading
            its schemas. A caller that tries again by itself does not wait. It gets SchemaRegistryUnavailableError until
            the id counts as unknown.
    """
    if settings.schema_registry_url:
        from services.messaging.schema_registry import registry_schema_ids  # noqa: PLC0415 - its import takes 0.1 s

        return registry_schema_ids(settings, waits=waits)
    return FolderSchemaIds()
