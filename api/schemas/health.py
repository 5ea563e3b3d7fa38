"""Reports for orchestrators and operators."""

from pydantic import BaseModel, Field

from api.schemas.fields import CAMEL_CASE
from services.interactive_queries.reports import WhyNotFollowing


class Liveness(BaseModel):
    alive: bool


class StorePartitionReport(BaseModel):
    """The progress of one store partition of this instance. Offsets are offsets of the changelog."""

    model_config = CAMEL_CASE

    store: str = Field(examples=["customer-balances"])
    partition: int
    restored: bool = Field(description="Whether it has reached the end that the changelog had at the start.")
    restored_share: float = Field(ge=0, le=1)
    resumed_from: int | None = Field(
        description="The offset of the local checkpoint at the start. null: there was no checkpoint."
    )
    position: int = Field(description="The next offset to apply.")
    end_offset: int = Field(description="The offset after the newest known record.")
    lag: int = Field(ge=0, description="endOffset minus position.")
    entries: int | None = Field(description="Keys in the store. null: the store is closing.")
    applied: int = Field(description="Records applied since the start.")
    undecodable: int = Field(description="Records skipped because they cannot be read.")
    ignored: int = Field(description="Records skipped because their sequence is not greater than the stored one.")
    rebuilt_because: str | None = Field(
        description="Why the instance deleted its local data at the start. null: it kept them."
    )


class Readiness(BaseModel):
    """Whether this instance can serve reads, and the progress of its stores."""

    model_config = CAMEL_CASE

    ready: bool
    kafka_error: WhyNotFollowing
    partitions: list[StorePartitionReport]
