"""Client authentication, access rights and certificates, checked without a broker."""

import re
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from cryptography import x509
from typer.testing import CliRunner, Result

from infra.local.stack import LocalStack, environment_of
from infra.security.__main__ import main
from infra.security.certificates import BROKER, Authority, hosts_of, is_signed
from infra.security.folder import LOCAL_HOSTS, SecurityFolder
from infra.site.hooks import on_page_markdown
from pipelines.sources.kafka_connection import kafka_connection
from schemas import topics
from schemas.access import ADMIN, SERVICES, USERS, Service
from services.cli import app
from services.errors import SettingsError
from services.interactive_queries.membership import GroupMembership
from services.messaging import clients
from services.messaging.access import rights
from services.settings import Settings, read_settings

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "${LOYALTY_TOPIC_PREFIX:-}"
"""The prefix of users, topics and groups in the compose files."""
PASSWORD = "open sesame"  # noqa: S105  # it protects nothing


@pytest.fixture
def folder(tmp_path: Path) -> SecurityFolder:
    """A folder with certificates and passwords for a broker on this machine."""
    folder = SecurityFolder(tmp_path / "security")
    folder.complete(["127.0.0.1"])
    return folder


@pytest.fixture
def till(folder: SecurityFolder) -> Settings:
    folder.password("till").write_text(f"{PASSWORD}\n", encoding="utf-8")
    return folder.settings_of("till", Settings())


def test_without_security_clients_need_only_an_address():
    expected = {"bootstrap.servers": "127.0.0.1:9092", "security.protocol": "PLAINTEXT"}
    assert expected == clients.connection(Settings())
    of_spark = {name: value for name, value in kafka_connection(Settings()).items() if "timeout" not in name}
    assert {f"kafka.{name}": value for name, value in expected.items()} == of_spark


def test_every_client_authenticates(till, folder):
    """Clients use user and password over TLS. A trailing newline in the password file is not part of the password."""
    expected = {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder.authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "till",
        "sasl.password": PASSWORD,
    }
    assert expected == clients.connection(till)


def test_a_running_process_keeps_its_password(till, folder):
    """An operator who replaces a password deletes its file first. New clients of a running process still start."""
    before = clients.connection(till)
    folder.password("till").unlink()
    assert before == clients.connection(till)
    assert PASSWORD not in f"{till!r} {till.shown()}"


def test_spark_options_contain_certificate_and_password(till, folder):
    """The options contain certificate and password: executors cannot read the driver's files."""
    options = kafka_connection(till)
    assert folder.authority.read_text() == options["kafka.ssl.truststore.certificates"]
    assert "PEM" == options["kafka.ssl.truststore.type"]
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert f'{module} required username="till" password="{PASSWORD}";' == options["kafka.sasl.jaas.config"]
    assert [] == [name for name, value in options.items() if str(folder.directory) in value]


def test_quotes_in_a_password_are_escaped(till, folder):
    r"""JAAS reads \" and \\ within quotes as a quote and a backslash."""
    folder.password("till").write_text('a"; b\\', encoding="utf-8")
    assert kafka_connection(till)["kafka.sasl.jaas.config"].endswith(r' password="a\"; b\\";')


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"PROTOCOL": "SASL_SSL", "USERNAME": "till"},
            "KAFKA_SASL_PASSWORD: LOYALTY_KAFKA_SASL_PASSWORD_FILE or this variable must be set, because .*SASL_SSL",
        ),
        ({"PROTOCOL": "SASL_SSL", "PASSWORD": "x"}, "KAFKA_SASL_USERNAME: .*must be set, because .*SASL_SSL"),
        ({"PROTOCOL": "SASL_SSL", "PASSWORD_FILE": __file__}, "KAFKA_SASL_USERNAME: .*must be set, because .*SASL_SSL"),
        ({"PASSWORD_FILE": "/nowhere", "PROTOCOL": "SASL_SSL", "USERNAME": "till"}, "/nowhere: No such file"),
        ({"PASSWORD_FILE": __file__, "PASSWORD": "x"}, "KAFKA_SASL_PASSWORD: .*cannot be set together"),
        ({"CA": "/nowhere"}, "KAFKA_SSL_CA_LOCATION: .*/nowhere: No such file"),
        ({"PROTOCOL": "SASL"}, "KAFKA_SECURITY_PROTOCOL: "),
        ({"MECHANISM": "GSSAPI"}, "KAFKA_SASL_MECHANISM: "),
    ],
)
def test_wrong_security_settings_give_one_clear_line(monkeypatch, given, says):
    """The error names exactly the setting that is missing or wrong."""
    names = {"PROTOCOL": "SECURITY_PROTOCOL", "CA": "SSL_CA_LOCATION"}
    for name, value in given.items():
        monkeypatch.setenv(f"LOYALTY_KAFKA_{names.get(name, f'SASL_{name}')}", value)
    with pytest.raises(SettingsError, match=says) as error:
        read_settings()
    assert (0, 0) == (str(error.value).count("\n"), str(error.value).count("; LOYALTY"))


def test_a_password_is_forwarded_and_never_printed(monkeypatch):
    """Child processes of the local stack receive the password. `loyalty settings` and printed settings hide it."""
    given = {"SECURITY_PROTOCOL": "SASL_SSL", "SASL_USERNAME": "till", "SASL_PASSWORD": PASSWORD}
    variables = {f"LOYALTY_KAFKA_{name}": value for name, value in given.items()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = read_settings()
    assert variables == {name: environment_of(settings).get(name) for name in variables}
    assert PASSWORD not in repr(settings)
    for arguments in (["settings"], ["settings", "--json"]):
        shown = CliRunner().invoke(app, arguments).stdout
        assert ("till" in shown, PASSWORD in shown) == (True, False)


def test_the_local_stack_refuses_security_settings(tmp_path, till):
    """The local stack refuses settings for a secured Kafka before it starts."""
    with pytest.raises(SettingsError, match="unset LOYALTY_KAFKA_SECURITY_PROTOCOL"):
        LocalStack(tmp_path, till)


def test_a_refusal_is_explained():
    """The error contains the reason from librdkafka without its addresses and timing. Other messages are no refusal."""
    diagnosis, settings = clients.ConnectionDiagnosis(), Settings()
    diagnosis.on_error(KafkaError(KafkaError._TRANSPORT, "x: connection refused"))
    no_broker = "no Kafka broker answers at 127.0.0.1:9092: start Kafka, or set LOYALTY_KAFKA_BOOTSTRAP_SERVERS"
    assert f"{no_broker} to its address" == diagnosis.explain(settings)
    diagnosis.on_error(
        KafkaError(KafkaError._AUTHENTICATION, "sasl_ssl://h:1/1: SASL: wrong: password (after 9ms in state X)")
    )
    expected = "the Kafka broker at 127.0.0.1:9092 cannot be used: SASL: wrong: password"
    assert expected == diagnosis.explain(settings)


def test_every_topic_has_a_writer_and_a_reader():
    """No service could use a topic that the access table lacks."""
    assert set() == set(topics.ALL) - {topic for service in SERVICES for topic in service.writes}
    assert set() == set(topics.ALL) - {topic for service in SERVICES for topic in service.reads}


def test_balances_have_one_writer():
    """Only one service may write balances, because a writer could give itself points."""
    for topic in (topics.LOYALTY, topics.LOYALTY_BALANCES, topics.STORE_SALES, topics.SHIPMENT):
        assert ["pipeline"] == [service.user for service in SERVICES if topic in service.writes]


def may_use(group: str, settings: Settings) -> set[str]:
    """The users with the right to use a group."""
    return {
        right.principal.removeprefix("User:")
        for right in rights(settings)
        if right.restype is ResourceType.GROUP and right.name == group
    }


def test_the_access_table_has_the_groups_of_all_consumers(monkeypatch):
    """Kafka refuses a consumer without a right on its group, also if the consumer joins no group."""
    settings, made = Settings(topic_prefix="eu-"), []
    monkeypatch.setattr(clients, "Consumer", made.append)
    clients.consumer(settings, "any")
    assert {f"eu-{service.user}" for service in SERVICES if service.reads} == may_use(made[0]["group.id"], settings)
    assert {"eu-api"} == may_use(GroupMembership(settings, "http://127.0.0.1:1").group, settings)


def test_rights_have_the_prefix_of_the_deployment():
    """Topics, groups and users get the prefix. So a user of one deployment has no rights on the topics of another one.

    A trailing * becomes a prefixed ACL of Kafka.
    """
    plain, prefixed = rights(Settings()), rights(Settings(topic_prefix="t-"))
    assert {f"t-{right.name}" for right in plain} == {right.name for right in prefixed}
    assert {right.principal.replace("User:", "User:t-") for right in plain} == {right.principal for right in prefixed}
    patterns = {right.name: right.resource_pattern_type for right in plain}
    assert (ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL) == (
        patterns["loyalty-webhooks"],
        patterns["loyalty-api"],
    )
    operations = {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DESCRIBE}
    assert operations == {right.operation for right in plain}


def access_row(service: Service) -> str:
    def names(found: tuple[str, ...]) -> str:
        return ", ".join(found) if found else "none"

    def of(found: tuple[topics.Topic, ...]) -> str:
        return "all" if found == topics.ALL else names(tuple(topic.name for topic in found))

    in_use = (*service.groups, *(f"{name} (transactions)" for name in service.transactional_ids))
    topics_of = (service.writes, service.reads, service.reads_settings_of, service.counts)
    cells = (service.user, *map(of, topics_of), names(in_use))
    return f"| {' | '.join(cells)} |"


def test_the_documented_table_is_the_table_of_access_rights():
    """The guide to a secured Kafka shows exactly the services of schemas/access.py, in their order."""
    text = on_page_markdown((ROOT / "docs" / "how-to" / "secure-kafka.md").read_text(encoding="utf-8"))
    documented = [row for row in text.splitlines() if row.startswith(tuple(f"| {each.user} |" for each in SERVICES))]
    assert [access_row(service) for service in SERVICES] == documented


@pytest.fixture
def compose() -> tuple[dict[str, Any], dict[str, Any]]:
    """The compose file, and the file that adds security to it."""
    names = ("docker-compose.yml", "docker-compose.secured.yml")
    plain, secured = (yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in names)
    return plain, secured


def test_every_container_that_uses_kafka_has_credentials(compose):
    plain, secured = compose
    speaking = [
        name
        for name, service in plain["services"].items()
        if "LOYALTY_KAFKA_BOOTSTRAP_SERVERS" in service.get("environment", {})
    ]
    assert {"topics", "pipeline", "api", "simulate"} <= set(speaking)
    for name in speaking:
        given = secured["services"][name]["environment"]
        assert "SASL_SSL" == given["LOYALTY_KAFKA_SECURITY_PROTOCOL"]
        assert given["LOYALTY_KAFKA_SASL_USERNAME"].removeprefix(PREFIX) in USERS


def test_a_container_receives_only_its_own_secrets(compose):
    """A container receives the CA certificate and its own password. Only the service that sets passwords has all."""
    _, secured = compose
    for name, service in secured["services"].items():
        if name not in ("kafka", "access"):
            user = service["environment"]["LOYALTY_KAFKA_SASL_USERNAME"].removeprefix(PREFIX)
            assert user == "admin" or PREFIX + user == service["environment"]["LOYALTY_KAFKA_SASL_USERNAME"]
            assert f"/run/secrets/{user}" == service["environment"]["LOYALTY_KAFKA_SASL_PASSWORD_FILE"]
            assert ["ca", user] == service["secrets"]
    assert {"ca", *USERS} == set(secured["services"]["access"]["secrets"])


def test_secrets_are_the_files_of_the_folder(compose):
    """The compose file mounts the files that `python -m infra.security` writes."""
    _, secured = compose
    folder = SecurityFolder(Path())
    expected = {"ca": folder.authority, "broker": folder.broker} | {user: folder.password(user) for user in USERS}
    found = {name: secret["file"] for name, secret in secured["secrets"].items()}
    assert {name: f"${{SECURITY_DIR:-./var/security}}/{path}" for name, path in expected.items()} == found


def test_secured_properties_and_certificate_agree():
    """The super users of the properties are the broker's certificate and the administrator."""
    text = (ROOT / "infra" / "kafka" / "secured.properties").read_text(encoding="utf-8")
    assert f"super.users=User:{ADMIN};User:{BROKER}" in text.splitlines()
    rule = re.search(r"^ssl.principal.mapping.rules=RULE:(.*?)/\$1/", text, re.MULTILINE)
    assert rule
    certificate = x509.load_pem_x509_certificate(Authority.new().broker_pem(["localhost"]))
    found = re.match(rule[1], certificate.subject.rfc4514_string())
    assert found
    assert BROKER == found[1]


def test_only_the_owner_reads_the_folder(folder):
    """Only the owner can enter the folder and read the signing key."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [folder.directory, *folder.directory.rglob("*")]}
    assert {0o700} == {modes[folder.directory], modes[folder.passwords]}
    assert 0o600 == modes[folder.authority_key]
    # Containers read single mounted files, as another user.
    assert {0o644} == {modes[path] for path in (folder.authority, folder.broker, *map(folder.password, USERS))}


def test_a_second_run_keeps_existing_files(folder):
    """A second run creates only missing files. All passwords differ."""
    before = {path: path.read_bytes() for path in folder.directory.rglob("*") if path.is_file()}
    folder.password("api").unlink()
    assert [folder.password("api")] == folder.complete(["127.0.0.1"])
    after = {path: path.read_bytes() for path in before}
    assert [folder.password("api")] == [path for path in before if before[path] != after[path]]
    assert len(USERS) == len({folder.password(user).read_text() for user in USERS})


def test_a_new_authority_replaces_the_old_one(folder, tmp_path):
    """After each step of the guide, the clients trust the certificate of the broker, and `ca.key` signs its renewal."""
    guide = (ROOT / "docs" / "how-to" / "secure-kafka.md").read_text(encoding="utf-8")
    steps = guide.partition("\n### Replace the authority\n")[2].partition("\n## ")[0]
    before, deletion, _ = steps.partition("delete the old certificate")
    assert deletion
    runs = re.findall(r"\.venv/bin/python -m infra\.security( var/new-authority)?", before)
    assert [" var/new-authority", ""] == runs
    old, another = folder.authority.read_bytes(), SecurityFolder(tmp_path / "new-authority")
    another.complete()
    new = another.authority.read_bytes()
    folder.authority_key.write_bytes(another.authority_key.read_bytes())

    folder.authority.write_bytes(new + old)
    assert is_trusted(folder)
    assert [folder.broker] == folder.complete()
    assert is_trusted(folder)
    folder.authority.write_bytes(new)
    assert is_trusted(folder)
    assert [] == folder.complete()
    assert ["127.0.0.1"] == hosts_of(folder.broker.read_bytes())


def is_trusted(folder: SecurityFolder) -> bool:
    """Whether a client with the `ca.pem` of the folder accepts a broker with its `broker.pem`."""
    client = ssl.create_default_context(cafile=folder.authority)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder.broker)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for side in sides * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True


def test_the_certificate_is_renewed_for_another_host_or_before_it_ends(folder):
    """A renewal keeps the CA, so clients need no change."""
    authority = x509.load_pem_x509_certificate(folder.authority.read_bytes())
    pem, now = folder.broker.read_bytes(), datetime.now(UTC)
    assert is_signed(pem, authority, ["127.0.0.1"])
    assert not is_signed(pem, authority, ["127.0.0.1", "kafka"])
    assert is_signed(pem, authority, ["127.0.0.1"], now + timedelta(days=360))
    assert not is_signed(pem, authority, ["127.0.0.1"], now + timedelta(days=370))
    assert not is_signed(pem, Authority.new().certificate, ["127.0.0.1"])
    assert [folder.broker] == folder.complete(["kafka"])
    assert ["127.0.0.1", "kafka"] == hosts_of(folder.broker.read_bytes())


def security(folder: SecurityFolder, *arguments: str) -> Result:
    """Run `python -m infra.security`."""
    command = typer.Typer()
    command.command()(main)
    return CliRunner().invoke(command, [str(folder.directory), *arguments])


def until(folder: SecurityFolder) -> str:
    """The line with the last day of the broker's certificate."""
    certificate = x509.load_pem_x509_certificate(folder.broker.read_bytes())
    return f"valid until {certificate.not_valid_after_utc.date()}: {folder.broker}"


def test_the_broker_keeps_its_names(tmp_path):
    """A later run keeps the names of the certificate, also if a new authority signs it. A first run has those of the
    compose files.
    """
    folder = SecurityFolder(tmp_path / "security")
    security(folder, "--host", "kafka1.example.com")
    folder.password("till").unlink()
    assert f"created: {folder.password('till')}\n{until(folder)}\n" == security(folder).stdout
    folder.authority.unlink()
    assert str(folder.broker) in security(folder, "--host", "::1").stdout
    assert ["kafka1.example.com", "::1"] == hosts_of(folder.broker.read_bytes())
    folder.broker.unlink()
    security(folder)
    assert list(LOCAL_HOSTS) == hosts_of(folder.broker.read_bytes())


def test_an_authority_is_never_replaced(folder):
    """Without the key of the authority, a run makes only passwords. One line says what to do for a certificate."""
    authority = folder.authority.read_bytes()
    folder.authority_key.unlink()
    folder.password("till").unlink()
    result = security(folder, "--host", "kafka")
    assert (1, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert f"{folder.authority_key}: is missing and must sign broker.pem: put it back" in result.stderr
    assert f"created: {folder.password('till')}\n{until(folder)}\n" == security(folder).stdout
    assert (authority, False) == (folder.authority.read_bytes(), folder.authority_key.exists())


def test_a_port_is_no_part_of_a_host(tmp_path):
    """A name with a port could never match. The error is one line, and no file is written."""
    folder = SecurityFolder(tmp_path / "security")
    result = security(folder, "--host", "kafka:9092")
    expected = "error: kafka:9092 is neither a name nor an IP address: leave out the port\n"
    assert (2, expected, False) == (result.exit_code, result.stderr, folder.authority.exists())
