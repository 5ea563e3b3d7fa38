"""Requests and responses of the routes for operators."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.fields import CAMEL_CASE, CAMEL_CASE_BODY, Time, must_match
from api.schemas.instances import Instance

LONGEST_PROGRAMME = 200_000
MOST_POSITIONS = 1_000

_POSITION = "[0-9]{1,9}:[0-9]{1,18}"
_NO_POSITION = "must be PARTITION:OFFSET, for example 0:42"


class CallerReport(BaseModel):
    """The caller of the request."""

    name: str = Field(
        description="The actor of its commands. Empty if the API needs no credentials.", examples=["key:1f"]
    )
    scopes: list[str] = Field(examples=[["balance:read"]])
    card: str | None = Field(description="The only card that the caller may see. null: no limit.")
    stores: list[str] | None = Field(description="The only shops that the caller may see. null: no limit.")


class PartReport(BaseModel):
    name: str = Field(examples=["pipeline"])
    address: str
    problem: str | None = Field(description="Why the process does not work. null: it works.")


class TopicReport(BaseModel):
    name: str = Field(examples=["pos-invoices"])
    records: int = Field(description="Records in the topic now.")
    rate: float | None = Field(description="New records a second since the previous status. null: not known.")
    lag: dict[str, int] = Field(description="Records that each reader has not read yet.")


class QueryReport(BaseModel):
    """A query of the pipeline. Both figures are null if they are not known."""

    model_config = CAMEL_CASE

    name: str = Field(examples=["loyalty"])
    rate: float | None = Field(description="Records a second that it has read since the previous status.")
    batch_seconds: float | None = Field(description="Mean duration of its micro-batches since the previous status.")


class StatusReport(BaseModel):
    """What runs, and how far each part has read."""

    model_config = CAMEL_CASE

    time: Time
    parts: list[PartReport]
    topics: list[TopicReport] = Field(description="Empty if Kafka does not answer.")
    queries: list[QueryReport] = Field(description="Empty if the pipeline does not answer.")
    instances: list[Instance]
    dead_letters: int | None
    freshness_seconds: dict[str, float | None] = Field(
        description="The seconds from the append of an invoice or a command in Kafka until its balance was in the "
        "store of this instance. 0.5: half of the balances needed at most this time. 0.99: 99 % of them. null: longer "
        "than the metric measures. It counts the balances since the previous status. If there were none, it counts "
        "those since the start of the instance."
    )


class DeadLetterReport(BaseModel):
    """A record that could not be processed. Its bytes are null without the scope `dead-letters:manage`, and for a
    caller that is limited to one card or to some shops.
    """

    model_config = CAMEL_CASE

    position: str = Field(description="Partition and offset in dead-letters.", examples=["0:42"])
    time: Time
    topic: str | None = Field(description="Where the record came from.", examples=["pos-invoices"])
    origin: str | None = Field(description="Its partition and offset there.", examples=["2:17"])
    reason: str
    size: int = Field(description="Bytes of the value.")
    key: str | None = Field(description="The first 4,096 bytes of the key as UTF-8.")
    text: str | None = Field(description="The first 4,096 bytes of the value as UTF-8.")
    hex: str | None = Field(description="The same bytes in hexadecimal digits.")


class DeadLetterList(BaseModel):
    """The newest dead letters."""

    model_config = CAMEL_CASE

    total: int
    reasons: dict[str, int] = Field(description="How many dead letters have each reason.")
    dead_letters: list[DeadLetterReport]
    next: str | None = Field(description="The cursor of the next page. null: this is the last page.")


class ReplayOrder(BaseModel):
    model_config = CAMEL_CASE_BODY

    positions: list[Annotated[str, Field(pattern=f"^{_POSITION}$"), must_match(_POSITION, _NO_POSITION)]] = Field(
        min_length=1, max_length=MOST_POSITIONS, examples=[["0:42"]]
    )
    dry_run: bool = Field(default=False, strict=True, description="Only show what would be published.")
    older: bool = Field(
        default=False,
        strict=True,
        description="Also publish records that became dead letters more than `LOYALTY_REPEAT_HORIZON` ago. First check "
        "that nobody has replayed them or sent them again, because they can count twice.",
    )


class Replay(BaseModel):
    model_config = CAMEL_CASE

    selected: int
    published: int
    left_out: int = Field(description="Dead letters that the replay leaves out because they are too old.")
    topics: dict[str, int] = Field(description="Selected records by the topic that they came from.")
    dry_run: bool


class AuditFinding(BaseModel):
    """A difference that an audit has found."""

    customer: str = Field(description="The pseudonym of the card.", examples=["p1-5f2c"])
    place: str = Field(examples=["ledger"])
    difference: str = Field(examples=["entry 2 (reserved 0.00) is missing"])


class AuditRunReport(BaseModel):
    """The result of one run of `loyalty audit`."""

    model_config = CAMEL_CASE

    id: str
    started_time: Time
    ended_time: Time
    actor: str = Field(examples=["operator:ann"])
    outcome: str = Field(
        description="`agrees`, `differs`, or `incomplete`: nothing differs, but something could not be read.",
        examples=["agrees"],
    )
    accounts: int
    entries: int = Field(description="Recomputed entries.")
    not_recomputed: int = Field(description="Accounts that lack events or entries.")
    compared: dict[str, int] = Field(description="Compared entries, balances or accounts by place.")
    differences: int
    findings: list[AuditFinding] = Field(description="At most the first 1,000 differences.")
    unreadable: list[str] = Field(description="Sources that could not be read or compared, and why.")
    notes: list[str] = Field(description="Records that retention has deleted.")


class AuditRunList(BaseModel):
    """The newest runs of the audit."""

    runs: list[AuditRunReport]


class ProgrammeFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    programme: str = Field(
        max_length=LONGEST_PROGRAMME, description="A programme file.", examples=["loyalty-factor: 0.02\n"]
    )


class Publication(ProgrammeFile):
    model_config = CAMEL_CASE_BODY

    effective_from: str | None = Field(
        default=None,
        max_length=40,
        description="ISO 8601 with an offset or Z. Default: as soon as the notice allows.",
        examples=["2026-12-01T00:00:00Z"],
    )


class FileProblem(BaseModel):
    line: int | None
    path: str
    message: str


class ProgrammeCheck(BaseModel):
    valid: bool
    problems: list[FileProblem]


class PublishedVersion(BaseModel):
    model_config = CAMEL_CASE

    version: int
    effective_time: Time
    published_time: Time
