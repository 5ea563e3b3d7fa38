"""The secured compose files: a service authenticates only with its own password and has only its own rights."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from infra.containers.project import COMPOSE_FILE, ContainersError, engine, log_of
from infra.containers.stack import ContainerStack
from infra.local.stack import private_settings
from infra.security.certificates import Authority
from infra.security.folder import LOCAL_HOSTS, SecurityFolder
from tests.support.waiting import wait_for

TLS_FILE = Path(__file__).with_name("tls.yml")
HOST = "127.0.0.1"


class Certificates:
    """The folder that tls.yml mounts into the API."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self._authority = folder, Authority.new()
        (folder / "ca.pem").write_bytes(self._authority.certificate_pem())
        self.issue()

    def issue(self) -> int:
        """Write a new key, then its certificate, in the order of the documentation. Returns its serial number."""
        pem = self._authority.broker_pem(["api", HOST])
        for name in ("api.key", "api.pem"):
            (self.folder / name).write_bytes(pem)
        return x509.load_pem_x509_certificate(pem).serial_number

    def context(self, *, shows_certificate: bool = True) -> ssl.SSLContext:
        """A client that trusts the authority."""
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        if shows_certificate:
            context.load_cert_chain(self.folder / "api.pem", self.folder / "api.key")
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "tls")


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerStack]:
    """Kafka with its users, rights and topics, without pipeline and API."""
    directory = tmp_path_factory.mktemp("secured")
    folder = SecurityFolder(directory / "security")
    folder.complete(LOCAL_HOSTS)
    settings = private_settings(directory / "stack")
    stack = ContainerStack(
        directory / "stack",
        settings,
        files=[COMPOSE_FILE, TLS_FILE],
        profiles=["simulate"],
        environment={"TLS_DIR": str(certificates.folder)},
        security=folder,
    )
    try:
        stack.project.up("topics")
        yield stack
    finally:
        stack.stop()


def simulate(stack: ContainerStack, **variables: str) -> str:
    """Publish one invoice from the till's container, with changed variables."""
    changes = [part for name, value in variables.items() for part in ("-e", f"LOYALTY_KAFKA_{name}={value}")]
    return stack.project.compose("run", "--rm", "-T", *changes, "simulate", "simulate", "--count", "1")


def test_the_till_publishes(secured: ContainerStack) -> None:
    """The till publishes with the credentials of the compose file."""
    assert "published" in simulate(secured)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SASL_USERNAME": "pipeline"}, "cannot be used: SASL authentication error"),
        ({"SASL_USERNAME": "admin"}, "cannot be used: SASL authentication error"),
        ({"SECURITY_PROTOCOL": "PLAINTEXT"}, "no Kafka broker answers"),
        ({"SSL_CA_LOCATION": "/etc/ssl/certs/ca-certificates.crt"}, "certificate verify failed"),
        ({"SASL_PASSWORD_FILE": "/run/secrets/admin"}, "SASL_PASSWORD_FILE: .*No such file"),
    ],
    ids=["another-user", "admin", "plain-text", "another-authority", "another-password"],
)
def test_the_till_cannot_authenticate_as_another_user(
    secured: ContainerStack, variables: dict[str, str], message: str
) -> None:
    """The till's password works for no other user, and its container has no other password."""
    with pytest.raises(ContainersError, match=message):
        simulate(secured, **variables)


def test_the_ledger_cannot_publish_invoices(secured: ContainerStack) -> None:
    """Kafka refuses invoices with the credentials of the ledger."""
    # The service `keys` has not made the key of the metrics here.
    run = ("run", "--rm", "-T", "--no-deps", "-e", "LOYALTY_METRICS_KEY_FILE=", "--entrypoint", "loyalty")
    with pytest.raises(ContainersError, match="topic pos-invoices: Broker: Topic authorization failed"):
        secured.project.compose(*run, "ledger", "simulate", "--count", "1")


def serial_of(url: httpx.URL, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection gets."""
    with (
        socket.create_connection((HOST, url.port or 0), 10) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"").serial_number


@pytest.mark.timeout(900)
def test_an_instance_with_mutual_tls_is_healthy_and_renews_its_certificate(
    secured: ContainerStack, certificates: Certificates
) -> None:
    """The health check passes, a client without certificate or TLS gets nothing, and new files replace the old ones."""
    secured.project.up("keys", "api")
    container = secured.project.container("api")

    def health() -> str:
        return engine("inspect", "--format", "{{.State.Health.Status}}", container.id).strip()

    wait_for(f"health of {container.id[:12]}", lambda: health() == "healthy")
    url = httpx.URL(secured.project.url(container, 8080)).copy_with(scheme="https")
    for plain, context in ((True, certificates.context()), (False, certificates.context(shows_certificate=False))):
        with pytest.raises(httpx.TransportError):
            httpx.get(url.copy_with(scheme="http") if plain else url, verify=context, trust_env=False)
    key = engine("exec", container.id, "cat", "/data/access/operator.key").strip()
    with httpx.Client(base_url=url, verify=certificates.context(), trust_env=False) as client:
        assert 401 == client.get("/v1/instances").status_code
        answer = client.get("/v1/instances", headers={"Authorization": f"Bearer {key}"})
        assert ["https://api:8080"] == [each["url"] for each in answer.json()["instances"]], answer.text
    new = certificates.issue()
    wait_for("the new certificate", lambda: serial_of(url, certificates.context()) == new)
    assert "the certificate was loaded again" in log_of(container)
    assert ("healthy", 0) == (health(), secured.project.container("api").restarts)
