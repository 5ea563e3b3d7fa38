"""The settings of the Spark session that need no Spark."""

import pytest

from pipelines.runtime.session import has_local_checkpoints
from services.settings import Settings


@pytest.fixture(autouse=True)
def _without_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)


def test_with_a_hadoop_configuration_no_folder_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's default file system may be another than the local disk."""
    assert has_local_checkpoints(Settings())
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert not has_local_checkpoints(Settings())


@pytest.mark.parametrize("place", ["checkpoint_dir", "export_dir", "archive_dir"])
@pytest.mark.parametrize(("uri", "expected"), [("var/here", True), ("file:///here", True), ("hdfs://there/x", False)])
def test_one_remote_folder_makes_checkpoints_remote(place: str, uri: str, *, expected: bool) -> None:
    """Each of the three folders counts, by the scheme of its URI."""
    assert expected == has_local_checkpoints(Settings().model_copy(update={place: uri}))
