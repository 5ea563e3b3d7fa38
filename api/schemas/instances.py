"""The instances, and the store partitions that they hold."""

from pydantic import BaseModel, Field

from services.interactive_queries.reports import HeldPartition, WhyNotFollowing


class Instance(BaseModel):
    """An instance of the group."""

    url: str = Field(examples=["http://127.0.0.1:8080"])
    is_self: bool = Field(alias="self", description="Whether this instance sent the response.")
    reachable: bool = Field(description="Whether the instance responded to the last request.")
    kafka_error: WhyNotFollowing = Field(alias="kafkaError")
    partitions: list[HeldPartition] = Field(description="From its own report, which is about a second old.")


class InstanceList(BaseModel):
    instances: list[Instance]


class StoreDescription(BaseModel):
    name: str = Field(examples=["customer-balances"])
    kind: str = Field(examples=["keyed", "derived", "windowed", "global"])
    changelog: str = Field(description="The topic that fills the store, without the prefix of the deployment.")
    partitions: int


class StoreList(BaseModel):
    stores: list[StoreDescription]


class StoreHolder(BaseModel):
    """The partitions of a store that one instance reports."""

    url: str
    active: list[int]
    standby: list[int]


class StoreMetadata(BaseModel):
    store: str
    instances: list[StoreHolder]


class KeyMetadata(BaseModel):
    """The instances that hold a key, as KeyQueryMetadata of Kafka Streams."""

    store: str
    partition: int
    active: str = Field(description="URL of the owner.")
    standbys: list[str] = Field(description="URLs. The standby with the highest position comes first.")
