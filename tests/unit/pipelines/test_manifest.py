"""The manifest of a checkpoint, its schema ids and its list of lost records, on a file system in memory."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

import schemas
from pipelines.accounts.state_layout import STATE_VERSION
from pipelines.checkpoints import learned_ids, manifest, programme_versions, retention
from pipelines.checkpoints.learned_ids import EarlierIds, LearnedIds
from pipelines.checkpoints.manifest import MANIFEST, CheckpointMismatchError, claim
from pipelines.checkpoints.programme_versions import require_versions
from pipelines.checkpoints.retention import LostRecords, accepted_losses, check
from pipelines.queries.loyalty import LOYALTY_FACTOR, LOYALTY_QUERY
from pipelines.reconciliation.events import has_gap
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.domain.programme import Programme, Programmes
from services.errors import UserError
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings

SPARK = object()
MADE_WITH = {"query": "archive", "shuffle_partitions": "3"}


class MemoryFiles:
    """The files of one folder. All instances share them."""

    contents: dict[str, str]

    def __init__(self, spark: object, folder: str) -> None:
        assert spark is SPARK
        assert folder == "checkpoint"

    def exists(self, name: str) -> bool:
        return name in self.contents

    def names(self) -> list[str]:
        return list(self.contents)

    def read(self, name: str, *, verify: bool) -> str:
        assert not verify, "an operator may have edited the file"
        return self.contents[name]

    def write(self, name: str, text: str) -> None:
        self.contents[name] = text


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(MemoryFiles, "contents", {}, raising=False)
    for module in (learned_ids, manifest, retention, programme_versions):
        monkeypatch.setattr(module, "Files", MemoryFiles)
    return MemoryFiles.contents


def claim_archive(**changes: str) -> None:
    claim(SPARK, "checkpoint", MADE_WITH | changes, {"state": "rebuild it"})  # type: ignore[arg-type]  # no Spark


def test_a_changed_value_is_refused(files: dict[str, str]) -> None:
    """The message has the name and both values, or what to do if no setting can help."""
    claim_archive()
    claim_archive()
    with pytest.raises(CheckpointMismatchError, match="shuffle_partitions: '3' before, '4' now"):
        claim_archive(shuffle_partitions="4")
    with pytest.raises(CheckpointMismatchError, match="another release: rebuild it"):
        claim_archive(state="2")
    assert MADE_WITH == json.loads(files[MANIFEST])


def test_an_archive_of_release_0_1_adopts_its_key_and_then_refuses_another(files: dict[str, str]) -> None:
    """An archive under two keys would have two pseudonyms for one card."""
    claim_archive()
    claim_archive(pseudonym_key="p1-monday")
    claim_archive(pseudonym_key="p1-monday")
    with pytest.raises(CheckpointMismatchError, match="pseudonym_key: 'p1-monday' before, 'p1-tuesday' now"):
        claim_archive(pseudonym_key="p1-tuesday")
    assert "p1-monday" == json.loads(files[MANIFEST])["pseudonym_key"]


def test_the_loyalty_factor_is_fixed_and_a_checkpoint_of_release_0_1_adopts_it(files: dict[str, str]) -> None:
    """Another factor would change the points of earlier purchases. The notation of the number does not matter."""

    def claim_loyalty(factor: str) -> None:
        fixed = LOYALTY_QUERY.fixed(Settings(loyalty_factor=Decimal(factor)))
        claim(SPARK, "checkpoint", MADE_WITH | fixed, LOYALTY_QUERY.remedies)  # type: ignore[arg-type]  # no Spark

    files[MANIFEST] = json.dumps(MADE_WITH | {"state": STATE_VERSION})
    claim_loyalty("0.02")
    claim_loyalty("0.020")
    with pytest.raises(CheckpointMismatchError, match=r"LOYALTY_LOYALTY_FACTOR: '0.02' before, '0.01' now"):
        claim_loyalty("0.01")


class Registry(FolderSchemaIds):
    """A Schema Registry with these schemas of pos-invoices."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = texts

    def known(self, topic: Topic) -> dict[int, str]:
        return self.texts if topic == POS_INVOICES else super().known(topic)

    def start(self, *, crashes: bool = False) -> dict[Topic, list[int]]:
        """Start the query. Returns the new ids."""
        topics = (POS_INVOICES, LOYALTY_COMMANDS)
        learned = LearnedIds(SPARK, "checkpoint", topics, self, Settings())  # type: ignore[arg-type]  # no Spark
        if not crashes:
            learned.save()
        return learned.new


INVOICE_SCHEMA = schemas.schema_text("PosInvoice.avsc")


def test_an_audit_and_a_rebuild_refuse_other_settings_than_the_checkpoint_has(files: dict[str, str]) -> None:
    """A rebuild can change the state. A checkpoint of release 0.1 has no factor. A lost one has no manifest.

    They do not read the logs of Spark, because the rebuild replaces a damaged checkpoint.
    """
    query = replace(LOYALTY_QUERY, checkpoint=lambda _: "checkpoint")
    registry = Registry({1: INVOICE_SCHEMA})

    def check_loyalty(**settings: Any) -> None:
        query.check_settings(SPARK, registry, Settings(**settings))  # type: ignore[arg-type]  # no Spark

    check_loyalty()
    release_0_1 = {"query": "loyalty", "source": "pos-invoices, loyalty-commands", "state": "1"}
    files[MANIFEST] = json.dumps(release_0_1)
    check_loyalty()
    assert release_0_1 == json.loads(files[MANIFEST])
    with pytest.raises(CheckpointMismatchError, match="source: 'pos-invoices, loyalty-commands' before, 'test-pos-inv"):
        check_loyalty(topic_prefix="test-")
    files[MANIFEST] = json.dumps(release_0_1 | {LOYALTY_FACTOR: "0.05"})
    check_loyalty(loyalty_factor=Decimal("0.050"))
    with pytest.raises(CheckpointMismatchError, match=r"LOYALTY_LOYALTY_FACTOR: '0.05' before, '0.02' now"):
        check_loyalty()
    registry.start()
    registry.texts = {2: INVOICE_SCHEMA}
    with pytest.raises(CheckpointMismatchError, match="schema ids 1 of pos-invoices are gone"):
        check_loyalty(loyalty_factor=Decimal("0.05"))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("found", [[], [1_000], [1_000, 3_000]], ids=["all lost", "one lost", "published again"])
def test_a_lost_version_of_the_programme_is_refused(found: list[int]) -> None:
    """Purchases would earn by the version before it. A version that is published again applies from a later time."""

    def require(*times: int) -> None:
        programmes = Programmes.of(Programme(version=n, effective_time=time) for n, time in enumerate([0, *times]))
        require_versions(SPARK, "checkpoint", programmes)  # type: ignore[arg-type]  # no Spark

    require(1_000)
    require(1_000, 2_000)
    with pytest.raises(CheckpointMismatchError, match=r"version [12] of the programme .*restore the records"):
        require(*found)
    require(1_000, 2_000, 3_000)


@pytest.mark.usefixtures("files")
def test_an_id_is_new_until_a_start_has_saved_it() -> None:
    """The replay of an unfinished micro-batch does not know it."""
    registry = Registry({1: INVOICE_SCHEMA})
    assert {} == registry.start()
    registry.texts = {1: INVOICE_SCHEMA, 7: INVOICE_SCHEMA}
    new = {POS_INVOICES: [7]}
    assert new == registry.start(crashes=True)
    earlier = EarlierIds(registry, new)
    assert ([1], registry.known(LOYALTY_COMMANDS)) == ([*earlier.known(POS_INVOICES)], earlier.known(LOYALTY_COMMANDS))
    assert new == registry.start()
    assert {} == registry.start()


def test_a_checkpoint_of_release_0_1_learns_the_schemas(files: dict[str, str]) -> None:
    assert {} == Registry({1: INVOICE_SCHEMA}).start()

    assert {"1": INVOICE_SCHEMA} == json.loads(files["schema-ids.json"])["pos-invoices"]


def _changed(change: Callable[[Any], object]) -> str:
    schema = schemas.current("PosInvoice")
    change(schema)
    return json.dumps(schema)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("now", "is_refused"),
    [
        ({2: "{}"}, True),
        ({1: _changed(lambda schema: schema["fields"].reverse())}, True),
        ({1: "{}"}, True),
        ({1: _changed(lambda schema: schema.update(doc="Changed"))}, False),
        ({1: INVOICE_SCHEMA, 3: "another schema of Protobuf"}, False),
    ],
    ids=["gone", "other order", "not Avro", "other documentation", "never Avro"],
)
def test_an_id_must_keep_its_schema(now: dict[int, str], *, is_refused: bool) -> None:
    """The Schema Registry has lost its data, and gives the same ids to other schemas. Amounts could be swapped.

    All records with an id that is not Avro are dead letters anyway.
    """
    registry = Registry({1: INVOICE_SCHEMA, 3: "a schema of Protobuf"})
    registry.start()
    registry.texts = {3: "a schema of Protobuf"} | now

    if is_refused:
        with pytest.raises(CheckpointMismatchError, match="schema ids 1 of pos-invoices are gone or have other"):
            registry.start()
    else:
        assert {} == registry.start()


def test_files_of_others_are_refused(files: dict[str, str]) -> None:
    """A half-written manifest is our own file. Any other file is not."""
    files[f"{MANIFEST}.new"] = "{"
    claim_archive()
    files.clear()
    files["notes.txt"] = ""
    with pytest.raises(CheckpointMismatchError, match="files of another program"):
        claim_archive()


class Log:
    """The partition 0 of pos-invoices, and how far a checkpoint has read it.

    Attributes:
        planned: the end of the micro-batch that is planned and not committed.
        partition: another one if the topic lacks the partition 0.
        is_committed: before the first commit the checkpoint has only the offsets at which the query began.
        topic_id: another one after the topic was deleted and created again.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, position: int, begin: int) -> None:
        self.position, self.begin, self.end = position, begin, 10_000
        self.planned = 0
        self.partition = 0
        self.is_committed = True
        self.topic_id = "monday"
        monkeypatch.setattr(retention, "CheckpointReader", lambda *_: self)
        monkeypatch.setattr(retention, "consumer", lambda *_: self)
        monkeypatch.setattr(retention, "topic_ids", lambda topics, _: {each.name: self.topic_id for each in topics})

    def positions(self, log: str = "commits") -> dict[str, dict[int, int]]:
        if log == "offsets":
            return {"pos-invoices": {0: self.planned}}
        return self.first_positions() if self.is_committed else {}

    def first_positions(self) -> dict[str, dict[int, int]]:
        return {"pos-invoices": {0: self.position}}

    def list_topics(self, topic: str, **_: object) -> SimpleNamespace:
        partitions = {self.partition: SimpleNamespace(leader=1)}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=partitions)})

    def get_watermark_offsets(self, place: TopicPartition, **_: object) -> tuple[int, int]:
        if place.partition != self.partition:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return self.begin, self.end

    def close(self) -> None:
        pass


def check_with(settings: Settings) -> None:
    check(SPARK, "checkpoint", [POS_INVOICES], settings)  # type: ignore[arg-type]  # no Spark


def recorded_losses() -> list[LostRecords]:
    return accepted_losses(SPARK, "checkpoint")  # type: ignore[arg-type]  # no Spark


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("end", [10_000, 700, 0])
def test_a_topic_that_was_created_again_is_refused(monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    """The query would skip the first records of the new topic, and nobody would know.

    A shorter topic can grow up to the old position before Spark looks for its end.
    """
    log = Log(monkeypatch, position=3_000, begin=0)
    check_with(Settings())
    log.topic_id, log.end = "tuesday", end
    records = "pos-invoices 0 from offset 0 to 2999"
    for _ in range(2):
        with pytest.raises(UserError, match=f"pos-invoices was created again, .* can skip {records};"):
            check_with(Settings())
    check_with(Settings(accept_data_loss=True))
    assert [("pos-invoices", 0, 0, 3_000)] == recorded_losses()
    log.position = end
    check_with(Settings())


@pytest.mark.usefixtures("files")
def test_a_topic_that_was_created_again_with_fewer_partitions_can_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker refuses a question for the offsets of a partition that no longer exists."""
    log = Log(monkeypatch, position=3_000, begin=0)
    check_with(Settings())
    log.topic_id, log.partition = "tuesday", 1
    with pytest.raises(UserError, match="pos-invoices was created again"):
        check_with(Settings())
    check_with(Settings(accept_data_loss=True))
    assert [] == recorded_losses()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("position", "planned"), [(3_000, 0), (2_000, 3_000)])
def test_a_partition_without_its_newest_records_is_refused(
    monkeypatch: pytest.MonkeyPatch, position: int, planned: int
) -> None:
    """The query would skip the new records that get the offsets of the lost ones."""
    log = Log(monkeypatch, position, begin=0)
    log.end, log.planned = 3_000, planned
    check_with(Settings())
    log.end = 2_500
    with pytest.raises(UserError, match=r"Kafka has lost .* pos-invoices 0 from offset 2500 to 2999"):
        check_with(Settings())
    check_with(Settings(accept_data_loss=True))
    log.end = 2_600  # the archive checks again during its first micro-batch
    check_with(Settings(accept_data_loss=True))
    assert [("pos-invoices", 0, 2_500, 3_000)] == recorded_losses()
    log.position, log.planned = log.end, 0
    check_with(Settings())


@pytest.mark.usefixtures("files")
def test_retention_in_a_partition_that_was_added_during_a_stop_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, position=3_000, begin=200)
    log.partition = 1
    with pytest.raises(UserError, match="retention has deleted pos-invoices 1 from offset 0 to 199"):
        check_with(Settings())


@pytest.mark.usefixtures("files")
def test_a_topic_that_was_created_once_more_hides_no_earlier_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may still have to publish the invoices of the first loss again. The second loss is shorter."""
    log = Log(monkeypatch, position=3_000, begin=0)
    check_with(Settings())
    for log.topic_id, log.end in ("tuesday", 700), ("wednesday", 20):
        check_with(Settings(accept_data_loss=True))
        log.position = log.end
    assert [("pos-invoices", 0, 0, 3_000)] == recorded_losses()


def test_a_checkpoint_of_an_older_release_learns_the_ids_of_its_topics(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(monkeypatch, position=3_000, begin=0)
    files[MANIFEST] = json.dumps(MADE_WITH)
    check_with(Settings())
    check(SPARK, "checkpoint", [LOYALTY_COMMANDS], Settings())  # type: ignore[arg-type]  # no Spark
    ids = {"pos-invoices": "monday", "loyalty-commands": "monday"}
    assert ids == json.loads(files["topic-ids.json"]), "a check of some topics forgets no other topic"


@pytest.mark.parametrize("name", [MANIFEST, "topic-ids.json", "lost-records.json"])
def test_a_damaged_file_is_named(files: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A power failure can leave an empty file."""
    Log(monkeypatch, position=3_000, begin=5_000)
    claim_archive()
    files[name] = ""

    def start() -> None:
        claim_archive()
        check_with(Settings(accept_data_loss=True))

    with pytest.raises(CheckpointMismatchError, match=f"checkpoint/{name} is damaged"):
        start()


def test_every_accepted_loss_is_recorded(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After an accepted loss the archive has a gap for ever, though its last position is beyond it.

    Before the first commit the checkpoint has no position, only the offsets at which the query began.
    """
    log = Log(monkeypatch, position=3_000, begin=5_000)
    log.is_committed = False
    accepting = Settings(accept_data_loss=True)

    with pytest.raises(UserError, match="pos-invoices 0 from offset 3000 to 4999"):
        check_with(Settings())
    assert {} == files
    check_with(accepting)
    log.begin = 5_500  # a restart before the first commit
    check_with(accepting)
    log.position, log.is_committed = 6_000, True  # all is read again
    check_with(accepting)
    log.position, log.begin = 9_000, 9_100
    check_with(accepting)

    lost = recorded_losses()
    assert [("pos-invoices", 0, 3_000, 5_500), ("pos-invoices", 0, 9_000, 9_100)] == lost
    begins, first, end = {0: 9_500}, {"pos-invoices": {0: 0}}, {"pos-invoices": {0: 10_000}}
    assert has_gap("pos-invoices", begins, first, end, lost)
    assert not has_gap("loyalty-commands", {0: 0}, {}, {}, lost)
    assert not has_gap("pos-invoices", begins, first, end, [])
    assert has_gap("pos-invoices", begins, first, {"pos-invoices": {0: 9_499}}, []), "the archive ended too early"
    assert not has_gap("pos-invoices", begins, first, {"pos-invoices": {0: 9_500}}, [])
    assert has_gap("pos-invoices", begins, {}, end, []), "nobody knows where the archive began"
    assert has_gap("pos-invoices", begins, {"pos-invoices": {0: 7}}, end, []), "the archive began too late"
    added = begins | {1: 20}
    assert has_gap("pos-invoices", added, first, {"pos-invoices": {0: 10_000, 1: 19}}, [])
    assert not has_gap("pos-invoices", added, first, {"pos-invoices": {0: 10_000, 1: 20}}, []), "partition 1 came later"
    assert "pos-invoices 0 from offset 9000 to 9099" == str(LostRecords(*lost[1]))
