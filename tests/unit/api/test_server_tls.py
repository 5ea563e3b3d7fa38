"""The HTTP server with TLS: certificates that change, wrong files, and certificates of clients."""

import socket
import ssl
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from structlog.testing import capture_logs

from api.http import server
from api.http.server import server_of
from infra import doctor
from infra.docker.healthy import is_healthy
from infra.doctor import State
from infra.local.ports import HOST, free_port
from infra.security.certificates import Authority
from services.errors import SettingsError
from services.settings import Settings, read_settings
from services.tls import certificate_of, client_context
from tests.support.waiting import wait_for
from tests.unit.api.servers import LARGE_BYTES, PATIENCE_SECONDS, app, running, serving


class Certificates:
    """An authority, and the certificate of a server in two files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = Authority.new()
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "certificate.pem", "key.pem"))
        self.ca.write_bytes(self.authority.certificate_pem())
        self.issue()

    def issue(self) -> int:
        """Write a new certificate and its key. Returns its serial number."""
        pem = self.authority.broker_pem([HOST])
        self.key.write_bytes(pem)
        self.certificate.write_bytes(pem)
        return x509.load_pem_x509_certificate(pem).serial_number

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "api_certificate_file": self.certificate,
            "api_certificate_key_file": self.key,
            "api_ca_file": self.ca,
        }


def serial_of(settings: Settings) -> int:
    """The serial number of the certificate that a new connection gets."""
    trusting = ssl.create_default_context(cafile=settings.api_ca_file)
    with (
        socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as plain,
        trusting.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        return x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"").serial_number


def test_tls_needs_trust(tmp_path: Path) -> None:
    """Plain HTTP gets no response, and a client refuses an unknown authority."""
    other = Certificates(tmp_path / "other")
    with serving(**Certificates(tmp_path).settings) as settings:
        with pytest.raises(httpx.TransportError):
            httpx.get(settings.advertised_url.replace("https", "http"))
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(settings.advertised_url, verify=ssl.create_default_context(cafile=other.ca))


def test_mutual_tls_asks_for_a_certificate_of_the_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a certificate, or with another authority's, gets no response. An instance shows its own.

    So does the health check of a container, and it accepts a certificate for another name.
    """
    own, other = Certificates(tmp_path), Certificates(tmp_path / "other")
    with serving(**own.settings, api_client_ca_file=own.ca) as settings:
        trusting = ssl.create_default_context(cafile=own.ca)
        foreign = ssl.create_default_context(cafile=own.ca)
        foreign.load_cert_chain(other.certificate, other.key)
        for context in (trusting, foreign):
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                httpx.get(settings.advertised_url, verify=context)
        assert 200 == httpx.get(settings.advertised_url, verify=client_context(settings)).status_code
        named = settings.advertised_url.replace(HOST, "localhost")
        assert not is_healthy(named)
        monkeypatch.setenv("LOYALTY_API_CERTIFICATE_FILE", str(own.certificate))
        monkeypatch.setenv("LOYALTY_API_CERTIFICATE_KEY_FILE", str(own.key))
        assert is_healthy(named)


def test_the_doctor_recognises_an_api_with_tls(tmp_path: Path) -> None:
    """Its port is taken by the API itself, so this is no problem."""
    with serving(**Certificates(tmp_path).settings) as settings:
        (check,) = [each for each in doctor.ports(settings) if each.name == "port of api"]
    assert (State.GOOD, True) == (check.state, "api runs already" in check.found)


def test_a_new_certificate_is_used_without_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the files change, each new connection is served. A certificate without its key leaves the old one."""
    certificates = Certificates(tmp_path)
    with serving(**certificates.settings) as settings:
        assert settings.advertised_url.startswith("https://")
        first = serial_of(settings)
        second = certificates.issue()
        served = 0
        while serial_of(settings) != second:
            with httpx.Client(verify=client_context(settings)) as client:
                assert 200 == client.get(settings.advertised_url).status_code
            served += 1
        assert served
        assert first != second
        monkeypatch.setattr("api.http.server._TICKS_PER_SECOND", 1)
        certificates.certificate.write_bytes(certificates.authority.broker_pem([HOST]))
        with capture_logs() as logs:
            wait_for("the log line", lambda: "the old one stays in use" in str(logs))
        assert second == serial_of(settings)


def test_an_instance_serves_while_its_certificate_cannot_be_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal can make the folder private for a moment. Here its path is too long, because root may read it all."""
    monkeypatch.setattr("api.http.server._TICKS_PER_SECOND", 1)
    (tmp_path / "real").mkdir()
    folder = tmp_path / "folder"
    folder.symlink_to("real")
    with serving(**Certificates(folder).settings) as settings, capture_logs() as logs:
        trusting = ssl.create_default_context(cafile=tmp_path / "real/ca.pem")
        folder.unlink()
        folder.symlink_to("x" * 300)
        wait_for("the log line", lambda: "the old one stays in use" in str(logs))
        assert 200 == httpx.get(settings.advertised_url, verify=trusting).status_code
        folder.unlink()
        folder.symlink_to("real")
        wait_for("the log line", lambda: "the certificate was loaded again" in str(logs))
        assert 200 == httpx.get(settings.advertised_url, verify=trusting).status_code
        assert 2 == len(logs)


@pytest.mark.parametrize("wrong", ["certificate", "certificate_key", "ca", "client_ca"])
def test_files_without_certificates_are_named(tmp_path: Path, wrong: str) -> None:
    """The error says which file is wrong, before the server starts."""
    certificates = Certificates(tmp_path)
    file = tmp_path / "wrong"
    file.write_text("nothing")
    settings = Settings(**{**certificates.settings, f"api_{wrong}_file": file})
    certificate = certificate_of(settings)
    use = client_context if wrong == "ca" else partial(server_of, app, certificate=certificate, grace_seconds=1)
    with pytest.raises(SettingsError, match=str(file)):
        use(settings=settings)


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    """A setting without the other one would start without TLS."""
    certificates = Certificates(tmp_path)
    for alone in ("api_certificate_file", "api_certificate_key_file", "api_client_ca_file"):
        with pytest.raises(SettingsError, match="must be set, too"):
            read_settings(**{alone: certificates.certificate})


def test_a_certificate_that_is_not_a_file_is_the_only_error(tmp_path: Path) -> None:
    """The settings name the certificate and its key, so the error does not say that one is missing."""
    certificates = Certificates(tmp_path)
    with pytest.raises(SettingsError) as error:
        read_settings(api_certificate_file=tmp_path / "none", api_certificate_key_file=certificates.certificate)
    assert "cannot read" in str(error.value)
    assert "must be set" not in str(error.value)


def connected(settings: Settings) -> ssl.SSLSocket:
    plain = socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS)
    return ssl.create_default_context(cafile=settings.api_ca_file).wrap_socket(plain, server_hostname=HOST)


def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response in one part waits for its client only as long as a request may take."""
    monkeypatch.setattr("api.http.server._TICKS_PER_SECOND", 1)
    settings = Settings(api_port=free_port(), request_timeout="PT1S", **Certificates(tmp_path).settings)
    server = server_of(app, settings, certificate_of(settings), 1)
    connections = server.server_state.connections
    with running(server), connected(settings) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_for("one connection", lambda: len(connections) == 1)
        wait_for("its end", lambda: not connections, PATIENCE_SECONDS)
        received = 0
        with suppress(ConnectionError, ssl.SSLError):
            while part := client.recv(2**20):
                received += len(part)
        assert 0 < received < LARGE_BYTES
        answer = httpx.get(f"{settings.advertised_url}/large", verify=client_context(settings))
        assert LARGE_BYTES == len(answer.content)


def test_refused_connections_do_not_count_as_open(tmp_path: Path) -> None:
    """A client that does not end its refused connection would otherwise occupy a place for half a minute."""
    settings = Settings(api_port=free_port(), most_connections=1, **Certificates(tmp_path).settings)
    server = server_of(app, settings, certificate_of(settings), 1)
    connections = server.server_state.connections
    with running(server), connected(settings) as first:
        wait_for("one connection", lambda: len(connections) == 1)
        with connected(settings) as refused:
            assert refused.recv(65_536).startswith(b"HTTP/1.1 503")
            wait_for("one connection", lambda: len(connections) == 1, PATIENCE_SECONDS / 2)
            first.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert first.recv(65_536).startswith(b"HTTP/1.1 200")


def test_idle_clients_do_not_delay_the_end(tmp_path: Path) -> None:
    """A client with TLS that keeps its connection does not answer its end. The server does not wait for it."""
    with ExitStack() as stack:
        settings = stack.enter_context(serving(10 * int(PATIENCE_SECONDS), **Certificates(tmp_path).settings))
        client = httpx.Client(verify=client_context(settings))
        assert 200 == client.get(settings.advertised_url).status_code
    client.close()


def test_a_client_that_begins_no_handshake_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such connections do not count for LOYALTY_MOST_CONNECTIONS, so they must not stay for a minute."""
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.1)
    with (
        serving(**Certificates(tmp_path).settings) as settings,
        socket.create_connection((HOST, settings.api_port), PATIENCE_SECONDS) as silent,
        suppress(ConnectionResetError),
    ):
        assert b"" == silent.recv(1)
