"""A secured broker with the rights of docs/how-to/secure-kafka.md: each service works with its own rights only."""

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from infra.demo.topic_reader import TopicReader
from infra.local.broker import LocalBroker
from infra.local.folders import ROOT
from infra.local.stack import environment_of
from infra.security.certificates import Authority
from infra.security.folder import SecurityFolder
from schemas import topics
from schemas.access import ADMIN, SERVICES, Service
from schemas.topics import Topic
from services.messaging import clients, dead_letters, replaying
from services.messaging.access import Changes, apply_rights, rights, set_passwords
from services.messaging.administration import create_topics
from services.messaging.avro import Record, encoder
from services.messaging.publishing import PublishError, connected_producer
from services.messaging.topic_reader import records_of
from services.settings import Settings
from tests.support.builders import HOME_DELIVERY, IDS, invoice
from tests.support.kafka import KAFKA_TIMEOUT_SECONDS, publish, read_all
from tests.support.processes import ApiProcess, spark_process_settings
from tests.support.vendors import Vendor, blocks, need

AWKWARD = r"""p"a\s's;w=o{r}d """
"""A password for the pipeline with all characters that JAAS could interpret. (librdkafka drops leading blanks.)"""

WITHOUT_OTHERS = ("--without", "ledger", "--without", "balances")
EVERY_SERVICE = pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.user)


@dataclass
class Secured:
    """A secured broker, and the settings of each user."""

    broker: LocalBroker
    security: SecurityFolder

    def settings_of(self, user: str, **changes: object) -> Settings:
        plain = Settings(kafka_bootstrap_servers=self.broker.bootstrap_servers)
        return self.security.settings_of(user, plain).model_copy(update=changes)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A secured broker with its topics, and with users and rights from `loyalty access apply`.

    All clients trust a second authority, as during the replacement of an authority.
    """
    directory = tmp_path_factory.mktemp("secured")
    folder = SecurityFolder(directory / "security")
    folder.complete(["127.0.0.1"])
    folder.authority.write_bytes(folder.authority.read_bytes() + Authority.new().certificate_pem())
    folder.password("pipeline").write_text(AWKWARD, encoding="utf-8")
    secured = Secured(LocalBroker(directory, security=folder), folder)
    secured.broker.start()
    try:
        settings = secured.settings_of(ADMIN)
        create_topics(settings)
        loyalty(settings, "access", "apply", "--passwords", str(folder.passwords))
        yield secured
    finally:
        secured.broker.stop()


def loyalty(settings: Settings, *arguments: str, status: int = 0, timeout: float = KAFKA_TIMEOUT_SECONDS) -> str:
    """Run the command as this user. Returns its output, from stderr if it must fail. Repeats its stderr."""
    run = subprocess.run(
        [sys.executable, "-c", "from services.cli import app; app()", *arguments],
        env=environment_of(settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    sys.stderr.write(run.stderr)
    assert status == run.returncode, run.stdout + run.stderr
    return run.stderr if status else run.stdout


def read_to_end(settings: Settings, topic: Topic) -> list[Record]:
    """The records of a topic, read as the demo does."""
    with closing(TopicReader(settings)) as reader:
        ends = {topic: reader.ends(topic)}
        deadline = time.monotonic() + KAFKA_TIMEOUT_SECONDS
        while not reader.has_read(ends):
            assert time.monotonic() < deadline
            reader.read(0.5)
        return reader.records(topic, IDS)


def test_every_service_works_with_its_own_rights(spark, secured, tmp_path):
    """Till, queries, API, operator and auditor work with their own users: an invoice becomes a balance.

    This shows that the rights suffice, and that every client gets its password and authority, also in Spark.
    """
    from pipelines.queries.query_table import QUERIES

    encode = encoder(topics.POS_INVOICES, IDS)
    sent = [
        invoice(number, card, amount, **HOME_DELIVERY)
        for number, card, amount in (("I1", "CARD1", 100.25), ("I2", "CARD2", 50.0), ("I3", "CARD1", 10.0))
    ]
    till = secured.settings_of("till")
    publish(till, topics.POS_INVOICES, [(b"STR1", encode(each)) for each in sent] + [(b"STR1", b"nonsense")])

    names = {"checkpoint_dir": "checkpoints", "export_dir": "parquet", "archive_dir": "archive"}
    folders = {setting: str(tmp_path / name) for setting, name in names.items()}
    pipeline = secured.settings_of("pipeline", **folders)
    for query in QUERIES.values():  # one by one, because the export reads the output of the fan-out
        query.start(spark, IDS, pipeline, available_now=True).awaitTermination()

    earned = {"CARD1": "2.21", "CARD2": "1.00"}
    api = secured.settings_of("api", state_dir=tmp_path / "state")
    with ApiProcess(api, tmp_path / "api.log") as process:
        process.wait_until_ready()
        assert earned == process.points([*earned, "CARD3"])
        operate(process)
        assert 0 == process.terminate()

    shipped = read_to_end(secured.settings_of("auditor"), topics.SHIPMENT)
    assert ["I1", "I2", "I3"] == sorted(each["InvoiceNumber"] for each in shipped)

    operator = secured.settings_of("operator")
    letters = list(dead_letters.DeadLetters(operator))
    assert [b"nonsense"] == [letter.value for letter in letters]
    assert 1 == replaying.replay(operator, letters, [operator.name_of(topics.POS_INVOICES)], since=0)

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [] == [path for path in written if AWKWARD.encode() in path.read_bytes()]


def operate(api: ApiProcess) -> None:
    """Request the status, a replay, the audits and a programme. The instance has the rights for all of them."""
    assert len(topics.ALL) == len(api.http.get("/v1/status").json()["topics"])
    (letter,) = api.http.get("/v1/dead-letters").json()["deadLetters"]
    replayed = api.http.post("/v1/dead-letters/replay", json={"positions": [letter["position"]]})
    assert (200, 1) == (replayed.status_code, replayed.json()["published"]), replayed.text
    assert {"runs": []} == api.http.get("/v1/audits").json()
    published = api.http.post("/v1/programmes", json={"programme": "loyalty-factor: 0.02\n"})
    assert (201, 1) == (published.status_code, published.json()["version"]), published.text


@pytest.mark.timeout(1500)
def test_audit_and_rebuild_read_a_secured_broker(secured, tmp_path):
    """Spark's batches also use SASL and TLS. The rebuild uses the pipeline's user, and the audit the auditor's user."""
    encode = encoder(topics.POS_INVOICES, IDS)
    publish(secured.settings_of("till"), topics.POS_INVOICES, [(b"STR1", encode(invoice("I101", "CARD101", 500.0)))])
    folders = {"checkpoint_dir": str(tmp_path / "rebuilt"), "ledger_url": f"sqlite:///{tmp_path / 'none.sqlite'}"}

    def settings_of(user: str) -> Settings:
        key = {"pseudonym_key_file": tmp_path / "pseudonym.key"}
        return spark_process_settings(secured.settings_of(user, **folders, **key))

    rebuilt = json.loads(loyalty(settings_of("pipeline"), "rebuild", "--without-ledger", "--json", timeout=600))
    audited = loyalty(settings_of("auditor"), "audit", *WITHOUT_OTHERS, "--json", timeout=600)

    assert 1 <= rebuilt["late"]
    report = json.loads(audited)
    assert ([], []) == (report["differences"], report["unreadable"])
    assert rebuilt["accounts"] == report["accounts"] == report["compared"]["Spark's state"]


@EVERY_SERVICE
def test_the_broker_grants_exactly_the_rights_of_the_table(secured, service: Service):
    """The broker reports exactly the rights of the table for each topic. Services do not see other topics."""
    client = clients.admin(secured.settings_of(service.user))
    names = [topic.name for topic in topics.ALL]
    answers = client.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=KAFKA_TIMEOUT_SECONDS
    )
    expected: dict[str, set[AclOperation]] = {}
    for operation, of in (
        (AclOperation.READ, service.reads),
        (AclOperation.WRITE, service.writes),
        (AclOperation.DESCRIBE_CONFIGS, service.reads_settings_of),
        (AclOperation.DESCRIBE, service.counts),
    ):
        for topic in of:
            expected.setdefault(topic.name, {AclOperation.DESCRIBE}).add(operation)
    found = {name: answer for name, answer in answers.items() if answer.exception(KAFKA_TIMEOUT_SECONDS) is None}
    assert expected == {name: set(answer.result().authorized_operations) for name, answer in found.items()}
    refused = [answer.exception().args[0].code() for name, answer in answers.items() if name not in found]
    assert {KafkaError.TOPIC_AUTHORIZATION_FAILED} >= set(refused)


@pytest.mark.parametrize(
    ("user", "topic"),
    [("till", topics.LOYALTY_BALANCES), ("till", topics.POS_INVOICES), ("api", topics.POS_INVOICES)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_reading_a_foreign_topic_is_refused(secured, user, topic):
    """A till cannot read balances or invoices. The API cannot read invoices."""
    client = clients.consumer(secured.settings_of(user), "loyalty-api", log_level=0)
    try:
        described = client.list_topics(topic.name, timeout=KAFKA_TIMEOUT_SECONDS).topics[topic.name].error
        client.assign([TopicPartition(topic.name, number, 0) for number in range(secured.settings_of(user).partitions)])
        found = [message for _ in range(4) if (message := client.poll(1))]
        codes = {error.code() for error in [described, *(message.error() for message in found)] if error}
        assert KafkaError.TOPIC_AUTHORIZATION_FAILED in codes
        assert [] == [message for message in found if message.error() is None]
    finally:
        client.close()


@pytest.mark.parametrize(
    ("user", "topic"),
    [
        ("till", topics.LOYALTY_BALANCES),
        ("api", topics.LOYALTY),
        ("api", topics.LOYALTY_BALANCES),
        ("pipeline", topics.POS_INVOICES),
        ("auditor", topics.DEAD_LETTERS),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_writing_a_foreign_topic_is_refused(secured, user, topic):
    """Only the pipeline can write balances and entries, and it cannot write invoices."""
    codes = []
    client = clients.producer(
        secured.settings_of(user), "test", **{"log_level": 0, "enable.idempotence": False, "message.timeout.ms": 60_000}
    )
    client.produce(topic.name, b"forged", b"CARD1", on_delivery=lambda error, _: codes.append(error.code()))
    assert 0 == client.flush(KAFKA_TIMEOUT_SECONDS)
    assert [KafkaError.TOPIC_AUTHORIZATION_FAILED] == codes


def test_joining_a_foreign_group_is_refused(secured):
    """A foreign member of the API's group would take partitions, so Kafka refuses it."""
    client = clients.consumer(secured.settings_of("auditor"), "test", **{"group.id": "loyalty-api", "log_level": 0})
    try:
        client.subscribe([topics.LOYALTY_BALANCES.name])
        messages = (client.poll(1) for _ in range(int(KAFKA_TIMEOUT_SECONDS)))
        error = next(message.error() for message in messages if message)
        assert KafkaError.GROUP_AUTHORIZATION_FAILED == error.code()
    finally:
        client.close()


def test_a_service_creates_no_topics_and_grants_no_rights(secured):
    """Only the administrator can create topics and grant rights."""
    pipeline = secured.settings_of("pipeline")
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        create_topics(pipeline.model_copy(update={"topic_prefix": "new-"}))
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        apply_rights(pipeline)
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        set_passwords(pipeline, {"pipeline": "another"})


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused client stays refused, so a short timeout suffices."""
    monkeypatch.setattr("services.messaging.publishing.BROKER_TIMEOUT", 4.0)


def refusal(settings: Settings) -> str:
    with pytest.raises(PublishError) as error:
        connected_producer(settings, "test", [topics.POS_INVOICES.name])
    return str(error.value)


@pytest.mark.usefixtures("short_timeout")
def test_a_client_without_valid_credentials_is_refused(secured, tmp_path):
    """A client with wrong credentials, an unknown authority or another host's certificate sees no topic."""
    till = secured.settings_of("till")
    passwords = secured.security.password
    stranger = SecurityFolder(tmp_path / "stranger")
    stranger.complete(["127.0.0.1"])
    elsewhere = secured.broker.bootstrap_servers.replace("127.0.0.1", "127.0.0.2")

    def changed(**changes: object) -> str:
        return refusal(till.model_copy(update=changes))

    assert "cannot be used: SASL authentication error" in changed(kafka_sasl_password_file=passwords("api"))
    assert "cannot be used: SASL authentication error" in changed(kafka_sasl_username="nobody")
    assert "certificate verify failed" in changed(kafka_ssl_ca_location=stranger.authority)
    assert "no Kafka broker answers" in changed(kafka_bootstrap_servers=elsewhere)
    assert "no Kafka broker answers" in changed(kafka_security_protocol="PLAINTEXT")
    assert "no Kafka broker answers" in changed(kafka_security_protocol="SASL_PLAINTEXT")


def test_a_refused_command_prints_one_line(secured):
    """The error says that authentication failed, not that no broker answers."""
    wrong = secured.settings_of("till", kafka_sasl_password_file=secured.security.password("api"))
    shown = loyalty(wrong, "simulate", "--count", "1", status=1)
    assert re.fullmatch(r"error: the Kafka broker at \S+ cannot be used: SASL authentication error: .*\n", shown)


def test_the_broker_listener_accepts_only_the_certificate_of_the_broker(secured):
    """This is the listener between brokers."""
    properties = (secured.broker._directory / "server.properties").read_text(encoding="utf-8")
    own = re.search(r"^listeners=.*BROKER://([^,]*),", properties, re.MULTILINE)
    assert own
    common = {"bootstrap.servers": own[1], "log_level": 0, "ssl.ca.location": str(secured.security.authority)}
    certificate = str(secured.security.broker)
    proof = {"ssl.certificate.location": certificate, "ssl.key.location": certificate}
    with pytest.raises(KafkaException):
        AdminClient({**common, "security.protocol": "SSL"}).list_topics(timeout=4)
    assert (
        AdminClient({**common, "security.protocol": "SSL", **proof}).list_topics(timeout=KAFKA_TIMEOUT_SECONDS).topics
    )


def test_a_right_beyond_the_table_is_withdrawn(secured):
    """A second `access apply` withdraws manual grants and changes nothing else."""
    admin = secured.settings_of(ADMIN)
    by_hand = AclBinding(
        ResourceType.TOPIC,
        topics.LOYALTY_BALANCES.name,
        ResourcePatternType.LITERAL,
        "User:till",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    client = clients.admin(admin)
    pattern = ResourcePatternType.LITERAL
    all_groups = AclBinding(
        ResourceType.GROUP, "*", pattern, "User:till", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    for future in client.create_acls([by_hand, all_groups]).values():
        future.result()
    shown = json.loads(loyalty(admin, "access", "apply", "--json"))
    names = [("group", "*"), ("topic", "loyalty-balances")]
    withdrawn = [{"user": "till", "may": "read", "kind": kind, "name": name} for kind, name in names]
    assert withdrawn == sorted(shown["withdrawn"], key=lambda right: (right["kind"], right["name"]))
    assert ([], []) == (shown["granted"], shown["users"])


def test_two_deployments_share_the_brokers(secured, tmp_path):
    """The rights of one deployment suffice to read its topics, and `access apply` of the other does not change them.

    Each has its own users with their own passwords, and no rights on the topics of the other one.
    """
    second = {"topic_prefix": "second-"}
    admin = secured.settings_of(ADMIN, **second)
    create_topics(admin)
    folder = SecurityFolder(tmp_path)
    folder.complete()
    folder.password(ADMIN).write_text(secured.security.password(ADMIN).read_text())
    shown = json.loads(loyalty(admin, "access", "apply", "--passwords", str(folder.passwords), "--json"))
    assert ({"admin", *(f"second-{service.user}" for service in SERVICES)}, len(rights(admin))) == (
        set(shown["users"]),
        len(shown["granted"]),
    )
    assert Changes([], []) == apply_rights(secured.settings_of(ADMIN))
    assert Changes([], []) == apply_rights(admin)

    for service in SERVICES:
        for topic in service.reads[:1]:
            publish(admin, topic, [(service.user.encode(), b"value")])
            password = {"kafka_sasl_password_file": folder.password(service.user)}
            user = secured.settings_of(service.user, **second, **password, kafka_sasl_username=f"second-{service.user}")
            found = records_of(user, admin.name_of(topic), "test")
            assert service.user.encode() in [message.key() for message in found]


@pytest.mark.usefixtures("short_timeout")
def test_a_rotated_password_replaces_the_old_one(secured, tmp_path):
    """The broker refuses the old password."""
    new = tmp_path / "till"
    new.write_text(secrets.token_urlsafe(), encoding="utf-8")
    old = secured.security.password("till").read_text(encoding="utf-8")
    admin, till = secured.settings_of(ADMIN), secured.settings_of("till")
    set_passwords(admin, {"till": new.read_text(encoding="utf-8")})
    try:
        connected_producer(till.model_copy(update={"kafka_sasl_password_file": new}), "test", [])
        assert "SASL authentication error" in refusal(till)
    finally:
        set_passwords(admin, {"till": old})


@pytest.mark.usefixtures("short_timeout")
def test_admin_replaces_its_own_password(secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the change, the command opens no connection with the old password. The broker refuses this password."""
    admin, new = secured.settings_of(ADMIN), tmp_path / "passwords"
    shutil.copytree(secured.security.passwords, new)
    (new / ADMIN).write_text("another", encoding="utf-8")
    changed = admin.model_copy(update={"kafka_sasl_password_file": new / ADMIN})
    try:
        shown = json.loads(loyalty(admin, "access", "apply", "--passwords", str(new), "--json"))
        assert (True, "") == (ADMIN in shown["users"], capsys.readouterr().err)
        connected_producer(changed, "test", [])
        assert "SASL authentication error" in refusal(admin)
    finally:
        set_passwords(changed, {ADMIN: secured.security.password(ADMIN).read_text(encoding="utf-8")})


@pytest.mark.parametrize(
    ("tool", "settings", "value"),
    [
        ("Java", "secured.properties", b'"InvoiceNumber":"STR7-0001"'),
        ("Python", "secured.ini", b'"InvoiceNumber": "STR7-0001"'),
    ],
)
def test_a_till_of_a_vendor_publishes_with_its_password(
    secured: Secured, tool: str, settings: str, value: bytes, tmp_path: Path
) -> None:
    """The examples with a password run exactly as docs/how-to/publish-invoices.md shows them."""
    need(tool)
    vendor = Vendor(tmp_path, secured.broker.bootstrap_servers, topics.POS_INVOICES.name)
    password = secured.security.password("till").read_text(encoding="utf-8")
    (tmp_path / "ca.pem").write_bytes(secured.security.authority.read_bytes())
    file = tmp_path / settings
    file.write_text(file.read_text(encoding="utf-8").replace("PASSWORD", password), encoding="utf-8")
    (command,) = (each for each in blocks("Kafka with passwords") if settings in each)
    vendor.runs(command)

    arrived = [message.value() or b"" for message in read_all(secured.settings_of("auditor"), topics.POS_INVOICES)]
    assert 1 == sum(value in each for each in arrived)
