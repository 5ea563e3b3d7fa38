"""The fan-out query does not write all its records again by mistake."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.queries import fan_out
from pipelines.queries.fan_out import FAN_OUT
from schemas.topics import DEAD_LETTERS, HADOOP, SHIPMENT, Topic
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings


def check(monkeypatch: pytest.MonkeyPatch, *filled: Topic, folder: bool = False, is_new: bool = True) -> None:
    """Check the checkpoint while these topics have records. ``folder``: whether the folder of the checkpoint exists."""
    no_spark: Any = None
    monkeypatch.setattr(fan_out, "Files", lambda *_: SimpleNamespace(exists=lambda: folder))
    monkeypatch.setattr(fan_out, "is_empty", lambda topic, _: topic not in filled)
    FAN_OUT.check(no_spark, FolderSchemaIds(), "checkpoint", Settings(), is_new)


@pytest.mark.parametrize(
    ("filled", "named"), [((SHIPMENT,), "but shipment already"), ((HADOOP, SHIPMENT), "shipment and hadoop")]
)
def test_a_missing_checkpoint_is_refused_beside_records(
    monkeypatch: pytest.MonkeyPatch, filled: tuple[Topic, ...], named: str
) -> None:
    """The disk of the checkpoints can be lost, or LOYALTY_CHECKPOINT_DIR can be wrong."""
    with pytest.raises(CheckpointMismatchError, match=f"{named}.*make an empty folder checkpoint"):
        check(monkeypatch, *filled)


def test_a_first_start_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loyalty query may have written dead letters before, in a driver of its own."""
    check(monkeypatch, DEAD_LETTERS)


def test_an_empty_folder_accepts_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, SHIPMENT, HADOOP, folder=True)


def test_a_checkpoint_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has commits, so the check does not look at its folder."""
    check(monkeypatch, SHIPMENT, HADOOP, folder=False, is_new=False)
