"""Restores the data of an earlier release (tests/data/release-…) to the broker and the folders of a test."""

import base64
import json
import lzma
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from confluent_kafka import TopicCollection

from schemas.topics import LOYALTY_PROGRAMMES
from services.clock import now
from services.messaging.administration import create_topics
from services.messaging.clients import admin, producer
from services.settings import Settings
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS

FOLDERS = ("checkpoints", "state", "ledger.sqlite", "pseudonym.key")
RECORDS, DESCRIPTION = "records.jsonl", "release.json"


@dataclass(frozen=True, slots=True)
class Release:
    """The description of an archive.

    Attributes:
        folder: the folder in which the release ran. Spark's metadata of operators contain absolute paths.
        prefix: the prefix of its topics. The checkpoint and its manifest contain it.
        topic_ids: the ids of its topics, by topic without the prefix. The ledger and the stores contain them.
        stopped_time: when its processes stopped, in milliseconds since the epoch.
    """

    commit: str
    folder: str
    prefix: str
    topic_ids: dict[str, str]
    stopped_time: int

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), indent=2)


def topic_ids(settings: Settings) -> dict[str, str]:
    """The broker's ids of all topics with the prefix, by name without the prefix."""
    client = admin(settings)
    names = [name for name in client.list_topics().topics if name.startswith(settings.topic_prefix)]
    described = client.describe_topics(TopicCollection(names))
    return {name.removeprefix(settings.topic_prefix): str(each.result().topic_id) for name, each in described.items()}


def continue_release(archive: Path, folder: Path, settings: Settings) -> Settings:
    """Create topics with the records of a release, and unpack its other data. Returns the settings that continue them.

    The topics have the prefix of the given settings. The records get new append times, and the stores get the current
    time as the time of their last record. So no retention has passed, even if the archive is old.
    """
    folder.mkdir()
    # The tarfile of Python 3.11.2, in Debian 12, has no filter, and newer ones warn without it.
    subprocess.run(["tar", "-xf", "-", "-C", folder], input=lzma.decompress(archive.read_bytes()), check=True)
    release = Release(**json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")))
    create_topics(settings)
    _publish(folder / RECORDS, settings)
    new_ids = {old: new for name, new in topic_ids(settings).items() if (old := release.topic_ids.get(name))}
    _rename(folder / "checkpoints", {release.prefix: settings.topic_prefix, release.folder: str(folder)})
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        changes = [(new, old) for old, new in new_ids.items()]
        ledger.executemany("UPDATE ledger_position SET topic_id = ? WHERE topic_id = ?", changes)
        ledger.execute(
            "UPDATE ledger_property SET value = replace(value, ?, ?)", (release.prefix, settings.topic_prefix)
        )
    _move_stores(folder / "state", new_ids)
    return settings.model_copy(
        update={
            "checkpoint_dir": str(folder / "checkpoints"),
            "state_dir": folder / "state",
            "ledger_url": f"sqlite:///{folder / 'ledger.sqlite'}",
            "pseudonym_key_file": folder / "pseudonym.key",
        }
    )


def _publish(records: Path, settings: Settings) -> None:
    """Publish the records of each partition in order, so that they have the same offsets as in the release.

    Versions of the programme are published in transactions, because the end of a transaction also has an offset.
    """
    plain = producer(settings, "test")
    transactional = producer(settings, "test", **{"transactional.id": f"{settings.topic_prefix}release-data"})
    transactional.init_transactions(KAFKA_TIMEOUT_SECONDS)
    for line in records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        place = (record["partition"], record["offset"])

        def check(error: object, message: object, place: tuple[int, int] = place) -> None:
            assert error is None, error
            assert place == (message.partition(), message.offset()), "the topics were not empty"  # type: ignore[attr-defined]

        is_transaction = record["topic"] == LOYALTY_PROGRAMMES.name
        client = transactional if is_transaction else plain
        if is_transaction:
            client.begin_transaction()
        client.produce(
            settings.topic_prefix + record["topic"],
            partition=record["partition"],
            key=_bytes(record["key"]),
            value=_bytes(record["value"]),
            headers=[(name, _bytes(value)) for name, value in record["headers"]],
            on_delivery=check,
        )
        if is_transaction:
            client.commit_transaction(KAFKA_TIMEOUT_SECONDS)
    assert 0 == plain.flush(KAFKA_TIMEOUT_SECONDS)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _rename(checkpoints: Path, changes: dict[str, str]) -> None:
    """Rename topics in the offsets and manifests of checkpoints, and folders in the metadata of their operators."""
    for pattern in ("*/offsets/*", "*/sources/*/*", "*/*.json", "*/state/*/_metadata/v2/*"):
        for file in checkpoints.glob(pattern):
            text = file.read_text(encoding="utf-8")
            for before, after in changes.items():
                text = text.replace(before, after)
            file.write_text(text, encoding="utf-8")


def _move_stores(state: Path, new_ids: dict[str, str]) -> None:
    """Write the new topic ids and the present time into the checkpoints of the local stores."""
    for file in state.glob("*/*/CURRENT"):
        store = RocksDbStorePartition(file.parent, rocksdb_options())
        if before := store.checkpoint:
            (origin,) = (before.origin.replace(old, new) for old, new in new_ids.items() if old in before.origin)
            store.apply({}, replace(before, origin=origin, caught_up_time=now()))
        store.close()
