"""What OpenAPI says beyond the routes' signatures. Models here describe answers; no request passes through them."""

from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from api.http import headers
from services.interactive_queries.reports import HeldPartition

DESCRIPTION = """
Loyalty balances, read from a local store that follows the changelog `loyalty-balances`, and commands: what customers
and clerks do with points. A command needs an Idempotency-Key; repeated under the same key it is done once, and answered
the same. Done (201, 200) means that the next read of the balance shows it; 202 that `Location` will tell.

Start as many instances as you like and ask any of them anything: each has a share of the customers, and passes on
what is about the others. Every answer says in its headers whose copy was read, and how fresh it is.

Every error is `application/problem+json` (RFC 9457); tell them apart by `type`.
A 503 with `Retry-After` passes by itself.
"""


_CAMEL_CASE = ConfigDict(alias_generator=to_camel)


PointsText = Annotated[str, Field(pattern=r"^-?[0-9]+\.[0-9]{2}$", examples=["417.04"])]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T09:30:00.000Z"])]
"""ISO 8601 in UTC."""

EXACT = "Exact, two places; a string, as a JSON number becomes a binary fraction in most clients."


class Balance(BaseModel):
    """A customer's points now."""

    CustomerCardNo: str = Field(examples=["9265846829"])
    TotalLoyaltyPoints: PointsText = Field(description=f"The sum of all entries of the account. {EXACT}")
    AvailableLoyaltyPoints: PointsText = Field(
        description="Of the total, what can be spent now; negative after returns of points already spent, "
        "where the programme allows it.",
        examples=["400.00"],
    )
    PendingLoyaltyPoints: PointsText = Field(description="Of the total, what can be spent later.", examples=["7.04"])
    ReservedLoyaltyPoints: PointsText = Field(
        description="Of the total, what is set aside for redemptions.", examples=["10.00"]
    )
    Tier: str | None = Field(description="null: none.", examples=["gold"])
    Sequence: int = Field(ge=1, description="Grows with every entry of the account.", examples=[3])
    OpenedTime: Time | None = Field(
        description="When the account was opened. An erased customer's next account is a new one; its Sequence "
        "begins with 1."
    )
    UpdatedTime: Time = Field(
        description="When the broker took the newest event counted here, or when the time came for what time does."
    )


class Problem(BaseModel):
    """An error, after RFC 9457. Some types have further members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="Names the kind of problem.", examples=["urn:problem-type:loyalty:unknown-customer"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str


class StorePartitionReport(BaseModel):
    """How far one store partition of this instance is. Offsets are those of the changelog."""

    model_config = _CAMEL_CASE

    store: str = Field(examples=["customer-balances"])
    partition: int
    restored: bool = Field(description="Whether it has once reached the end that the changelog had at the start.")
    restored_share: float = Field(ge=0, le=1)
    resumed_from: int | None = Field(
        description="Offset of the local checkpoint at the start; null: began with nothing."
    )
    position: int = Field(description="The next offset to apply.")
    end_offset: int = Field(description="One past the newest record known.")
    lag: int = Field(ge=0, description="endOffset - position.")
    entries: int | None = Field(description="Keys in the store; null while it closes.")
    applied: int = Field(description="Records applied since the start.")
    undecodable: int = Field(description="Records skipped because they cannot be read.")
    ignored: int = Field(description="Records skipped because their sequence is not greater than the stored one.")
    rebuilt_because: str | None = Field(description="Why local data was thrown away at the start, if it was.")


class Readiness(BaseModel):
    """Whether this instance answers, and how far its stores are."""

    model_config = _CAMEL_CASE

    ready: bool
    kafka_error: str | None = Field(description="What keeps the instance from following Kafka now; null: nothing.")
    partitions: list[StorePartitionReport]


class Instance(BaseModel):
    """An instance of the group."""

    url: str = Field(examples=["http://127.0.0.1:8080"])
    is_self: bool = Field(alias="self", description="Whether it is the one that answers.")
    reachable: bool = Field(description="Whether it answered when it was last asked.")
    partitions: list[HeldPartition] = Field(description="By its own account, a second old.")


class InstanceList(BaseModel):
    instances: list[Instance]


class StoreDescription(BaseModel):
    name: str = Field(examples=["customer-balances"])
    kind: str = Field(examples=["keyed", "derived", "windowed", "global"])
    changelog: str = Field(description="The topic that it follows, without the deployment's prefix.")
    partitions: int


class StoreList(BaseModel):
    stores: list[StoreDescription]


class StoreHolder(BaseModel):
    """An instance with partitions of a store, by its own account."""

    url: str
    active: list[int]
    standby: list[int]


class StoreMetadata(BaseModel):
    store: str
    instances: list[StoreHolder]


class KeyMetadata(BaseModel):
    """Where a key is; as KeyQueryMetadata of Kafka Streams."""

    store: str
    partition: int
    active: str = Field(description="URL of the owner.")
    standbys: list[str] = Field(description="URLs, the nearest to the changelog's end first.")


class Liveness(BaseModel):
    alive: bool


FRESHNESS_HEADERS: dict[str, Any] = {
    "ETag": {"description": "Changes with the entry.", "schema": {"type": "string"}},
    **{name: {"description": text, "schema": {"type": "string"}} for name, text in headers.FRESHNESS.items()},
}
"""What an answer about one key says of itself."""


def install(app: FastAPI) -> None:
    """Let ``app.openapi`` know the shape of problems, which no route returns by its signature."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            document.setdefault("components", {}).setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
            _require_idempotency_keys(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _require_idempotency_keys(document: dict[str, Any]) -> None:
    """The key is a parameter that may be absent only so that its absence can be answered by a problem of its own."""
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "idempotency-key":
                    parameter["name"], parameter["required"] = "Idempotency-Key", True
