"""The secured compose files: a service authenticates only with its own password and has only its own rights."""

from collections.abc import Iterator

import pytest

from infra.containers.project import ContainersError
from infra.containers.stack import ContainerStack
from infra.local.stack import private_settings
from infra.security.folder import LOCAL_HOSTS, SecurityFolder


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerStack]:
    """Kafka with its users, rights and topics, without pipeline and API."""
    directory = tmp_path_factory.mktemp("secured")
    folder = SecurityFolder(directory / "security")
    folder.complete(LOCAL_HOSTS)
    settings = private_settings(directory / "stack")
    stack = ContainerStack(directory / "stack", settings, profiles=["simulate"], security=folder)
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
        ({"SSL_CA_LOCATION": "/etc/ssl/certs/ca-certificates.crt"}, "SSL_CA_LOCATION: .*No such file"),
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


def test_the_api_cannot_publish_invoices(secured: ContainerStack) -> None:
    """Kafka refuses invoices with the credentials of the API."""
    run = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "loyalty")
    with pytest.raises(ContainersError, match="topic pos-invoices: Broker: Topic authorization failed"):
        secured.project.compose(*run, "api", "simulate", "--count", "1")
