"""The settings of the Spark session that need no Spark."""

import os
from pathlib import Path

import pytest

from pipelines.runtime import session
from pipelines.runtime.session import has_links, has_local_checkpoints
from services.settings import Settings
from services.start_up import StartUpError


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


@pytest.mark.parametrize("place", ["checkpoint_dir", "export_dir", "archive_dir"])
@pytest.mark.parametrize("name", ["folder", "folder/loyalty"])
def test_a_link_to_a_folder_is_found(tmp_path: Path, place: str, name: str) -> None:
    """A folder of all queries, and the folder of one query. Links above them do not matter."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    names = ("checkpoint_dir", "export_dir", "archive_dir")
    settings = Settings().model_copy(update={each: str(tmp_path / "none") for each in names})
    settings = settings.model_copy(update={place: str(tmp_path / "folder")})
    assert not has_links(settings)

    link.symlink_to(tmp_path / "disk")

    assert has_links(settings)
    assert not has_links(settings.model_copy(update={place: str(tmp_path / "folder" / "below")}))


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local[2]", "local[2,10]"),
        ("local[*]", "local[*,10]"),
        ("local[2,1]", "local[2,1]"),
        ("yarn", "yarn"),
        ("", "local[8,10]"),
    ],
)
def test_one_machine_repeats_failed_tasks(monkeypatch: pytest.MonkeyPatch, master: str, expected: str) -> None:
    """By default Spark repeats no task on one machine. The master in the settings can say otherwise."""
    monkeypatch.setattr(session, "_local_master", lambda: "local[8]")
    assert expected == session._master(master)


def test_a_folder_without_jars_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark would start, and then say that it does not know Kafka."""
    monkeypatch.setattr(session, "_java_gateway", None)
    with pytest.raises(StartUpError, match="has no jars"):
        session.spark_session(Settings(spark_jars_dir=tmp_path))


@pytest.mark.parametrize(
    ("submitted", "master", "kept"),
    [
        (False, "", set()),
        (False, "local[2]", set()),
        (False, "spark://host:7077", {"PYSPARK_PYTHON"}),
        (True, "", {"LC_ALL", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"}),
    ],
)
def test_a_session_without_spark_submit_replaces_variables_of_the_user(
    monkeypatch: pytest.MonkeyPatch, master: str, kept: set[str], *, submitted: bool
) -> None:
    """It uses the installed PySpark, the Python of this process and UTF-8. With a cluster, the operator chooses."""
    names = ("LC_ALL", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
    for name in names:
        monkeypatch.setenv(name, "/other")
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(session, "SparkSession", None)
    with pytest.raises(AttributeError):
        session.spark_session(Settings(spark_master=master))
    assert kept == {name for name in names if os.environ.get(name) == "/other"}
