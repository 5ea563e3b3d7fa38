"""The export to an object store, against S3Proxy. `make test-object-store` downloads what it needs."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

from infra.local import jars
from infra.local.java import find_java_home
from infra.local.ports import HOST, free_port
from schemas.topics import HADOOP
from services.messaging.avro import encoder
from services.settings import Settings
from services.sql import written
from services.sql.database import Database
from services.sql.maintenance import maintain
from tests.support.builders import IDS
from tests.support.kafka import publish
from tests.support.processes import start_pipeline
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = [
    pytest.mark.usefixtures("topics_created"),
    pytest.mark.skipif(not jars.S3.directory.is_dir(), reason="needs the jars of `make object-store-jars`"),
]
_KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
_SERVER = """
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity=tester
s3proxy.credential=secret
s3proxy.ignore-unknown-headers=true
jclouds.provider=transient
jclouds.identity=unused
jclouds.credential=unused
"""


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3FileSystem]:
    """A running server of S3 that keeps its objects in memory. Its only bucket is `bucket`."""
    port = free_port()
    (tmp_path / "s3proxy.conf").write_text(_SERVER.format(host=HOST, port=port))
    (tmp_path / "hadoop").mkdir()
    properties = {
        "fs.s3a.endpoint": f"http://{HOST}:{port}",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    lines = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items())
    (tmp_path / "hadoop" / "core-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    more = {"AWS_ENDPOINT_URL": f"http://{HOST}:{port}", "AWS_ALLOW_HTTP": "true"}
    for name, value in {**_KEYS, **more, "HADOOP_CONF_DIR": str(tmp_path / "hadoop")}.items():
        monkeypatch.setenv(name, value)
    java = find_java_home() / "bin" / "java"
    (tmp_path / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
    options = ["-Xmx200m", f"-Dlogback.configurationFile={tmp_path / 'logback.xml'}"]
    command = [str(java), *options, "-cp", f"{jars.S3.directory}/s3proxy/*", "org.gaul.s3proxy.Main", "--properties"]
    with (tmp_path / "s3proxy.log").open("wb") as log:
        server = subprocess.Popen([*command, str(tmp_path / "s3proxy.conf")], stdout=log, stderr=log)
    try:
        _wait_for(f"http://{HOST}:{port}", server, tmp_path / "s3proxy.log")
        found = S3FileSystem(
            access_key=_KEYS["AWS_ACCESS_KEY_ID"],
            secret_key=_KEYS["AWS_SECRET_ACCESS_KEY"],
            region=_KEYS["AWS_REGION"],
            endpoint_override=f"http://{HOST}:{port}",
            allow_bucket_creation=True,
        )
        found.create_dir("bucket")
        yield found
    finally:
        server.kill()
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            httpx.get(url, trust_env=False)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())


def run_export(settings: Settings, log: Path) -> None:
    with log.open("w+b") as output:
        more = {"LOYALTY_EXPORT_FORMAT": "delta", "LOYALTY_SPARK_JARS_DIR": str(jars.S3.directory / "s3")}
        process = start_pipeline(settings, output, "--query", "export", "--available-now", **more)
        assert 0 == process.wait(DEADLINE_SECONDS), log.read_text()[-4000:]


def publish_invoices(settings: Settings, numbers: range) -> None:
    encode = encoder(HADOOP, IDS)
    records = ({"InvoiceNumber": str(number), "ItemCode": "A", "TotalValue": number / 2} for number in numbers)
    publish(settings, HADOOP, [(b"S1", encode(each)) for each in records])


def delete_newest_commit(objects: S3FileSystem, checkpoint: str) -> None:
    """As after a crash between the sink and the commit."""
    files = objects.get_file_info(FileSelector(f"{checkpoint}/commits"))
    newest = max((each for each in files if each.base_name.isdigit()), key=lambda each: int(each.base_name))
    objects.delete_file(newest.path)


def test_an_export_to_s3_has_each_line_once(settings: Settings, objects: S3FileSystem, tmp_path: Path) -> None:
    """This holds after a repeated micro-batch and a compaction. The other tables are objects, too."""
    remote = {"export_dir": "s3a://bucket/line_items", "tables_dir": "s3://bucket/tables", "export_format": "delta"}
    settings = settings.model_copy(update=remote)
    publish_invoices(settings, range(40))
    run_export(settings, tmp_path / "first.log")
    assert Counter(map(str, range(40))) == exported(settings)
    delete_newest_commit(objects, "bucket/line_items/_checkpoint")
    publish_invoices(settings, range(40, 50))
    run_export(settings, tmp_path / "second.log")
    assert Counter(map(str, range(50))) == exported(settings)
    assert maintain(settings).merged >= 2
    assert Counter(map(str, range(50))) == exported(settings)
    for changed in (True, False):
        with closing(Database(settings)) as database:
            done = written.write("invoices", database, settings)
        assert (50, changed) == (done.rows, done.changed)
    names = [each.base_name for each in objects.get_file_info(FileSelector("bucket/tables/invoices"))]
    assert 1 == sum(name.endswith(".parquet") for name in names), "the second write changed nothing"


def exported(settings: Settings) -> Counter[str]:
    with closing(Database(settings)) as database:
        return Counter(database.run("SELECT InvoiceNumber FROM line_items").column(0).to_pylist())
