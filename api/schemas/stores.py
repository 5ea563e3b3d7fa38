"""Requests and responses of reads of any state store."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.fields import CAMEL_CASE
from services.state_stores.assignment import Role

LONGEST_KEY = 512
MOST_KEYS = 1_000


class Keys(BaseModel):
    """The keys to read."""

    model_config = ConfigDict(extra="forbid")

    keys: list[Annotated[str, Field(max_length=LONGEST_KEY)]] = Field(
        max_length=MOST_KEYS,
        description="The response contains each key once, also if the request repeats it.",
        examples=[["9265846829", "9200000000"]],
    )


class StoreEntry(BaseModel):
    """A key of a store with its value and origin."""

    key: str
    value: dict[str, Any] = Field(description="The JSON value as the store keeps it.")
    sequence: int = Field(
        description="Grows with every change of the key. A new account of an erased card begins at 1 again."
    )
    partition: int
    offset: int = Field(description="The offset of the changelog record with this value.")


class PartitionRead(BaseModel):
    """The copy of a partition that was read, and the state of the copy when the read began."""

    model_config = CAMEL_CASE

    partition: int
    served_by: str = Field(description="URL of the instance.")
    role: Role
    position: int = Field(
        description="The next changelog offset to apply. The response contains all records before it."
    )
    lag: int = Field(ge=0, description="Changelog records from position to the end, as far as the instance knows.")
    stale: bool = Field(
        description="Whether the copy is a standby, or its instance cannot prove that it is still the owner."
    )


class Answer(BaseModel):
    """The members of every response about several keys."""

    model_config = CAMEL_CASE

    store: str
    partial: bool = Field(description="Whether the response lacks partitions.")
    missing_partitions: list[int]
    partitions: list[PartitionRead] = Field(description="The partitions that were read.")


class Entries(Answer):
    """Entries in the order of their keys, compared as UTF-8 bytes."""

    entries: list[StoreEntry]


class FoundKeys(Entries):
    """The entries of the requested keys that exist."""

    unknown_keys: list[str] = Field(
        description="The requested keys that do not exist. Keys of missing partitions are in neither list."
    )


class EntryPage(Entries):
    """A page of entries."""

    next: str | None = Field(description="The cursor of the next page. null: this is the last page.")


class Count(Answer):
    count: int = Field(ge=0, description="Keys in the partitions that were read.")
