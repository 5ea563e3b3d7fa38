"""What Spark is told, as far as it needs no Spark."""

import pytest

from pipelines.runtime.session import has_local_checkpoints
from services.settings import Settings


@pytest.fixture(autouse=True)
def _without_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)


def test_where_hadoop_is_configured_a_folder_may_be_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default file system need not be this machine's disk."""
    assert has_local_checkpoints(Settings())
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert not has_local_checkpoints(Settings())


@pytest.mark.parametrize("place", ["checkpoint_dir", "export_dir", "archive_dir"])
@pytest.mark.parametrize(("uri", "expected"), [("var/here", True), ("file:///here", True), ("hdfs://there/x", False)])
def test_one_place_elsewhere_is_enough_not_to_be_all_on_disk(place: str, uri: str, *, expected: bool) -> None:
    """Any of the three places counts, by the scheme of its URI."""
    assert expected == has_local_checkpoints(Settings().model_copy(update={place: uri}))
