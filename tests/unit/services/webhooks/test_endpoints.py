"""The endpoints file: its values, and errors that show no secret."""

import base64
import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest
import typer

from services.domain.entries import Kind
from services.errors import SettingsError
from services.webhooks.__main__ import main
from services.webhooks.endpoints import USUAL_KINDS, Endpoint, load

RAW = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(RAW).decode()}"
LEAST = "name: crm, url: 'https://crm.example/hooks?token=t0ken', secret-file: secret"


def written(folder: Path, endpoints: str, secret: str = SECRET) -> Path:
    (folder / "secret").write_text(secret, encoding="utf-8")
    file = folder / "webhooks.yaml"
    file.write_text(endpoints, encoding="utf-8")
    return file


def test_an_endpoint_with_only_its_required_keys_has_the_defaults(tmp_path: Path) -> None:
    """Name, URL and secret are enough. The path of the secret is relative to the endpoints file."""
    expected = Endpoint("crm", "https://crm.example/hooks?token=t0ken", (RAW,), frozenset(USUAL_KINDS))
    assert [expected] == load(written(tmp_path, f"endpoints: [{{{LEAST}}}]"))


def test_every_key_becomes_its_rule(tmp_path: Path) -> None:
    """Durations are ISO 8601, and kinds are those of notifications."""
    more = "kinds: [earned, erased], timeout: PT2S, attempts: 3, first-wait: PT0.5S, longest-wait: PT1M, concurrency: 1"
    (endpoint,) = load(written(tmp_path, f"endpoints: [{{{LEAST}, {more}}}]"))

    assert frozenset({Kind.EARNED, Kind.ERASED}) == endpoint.kinds
    assert (timedelta(seconds=2), 3, timedelta(seconds=0.5), timedelta(minutes=1), 1) == (
        endpoint.timeout,
        endpoint.attempts,
        endpoint.first_wait,
        endpoint.longest_wait,
        endpoint.concurrency,
    )


@pytest.mark.parametrize(
    "host", ["a", "a_b:1", "crm.example.", "127.0.0.1:65535", "[::1]:80", "[FE80::1]", "ü.example"]
)
def test_a_host_is_a_name_or_an_address(tmp_path: Path, host: str) -> None:
    url = f"https://{host}/hooks"
    assert url == load(written(tmp_path, f"endpoints: [{{name: a, url: '{url}', secret-file: secret}}]"))[0].url


def test_a_new_secret_can_join_the_old_one(tmp_path: Path) -> None:
    """A secret file can have several lines. Each line is a secret."""
    file = written(tmp_path, f"endpoints: [{{{LEAST}}}]", f"{SECRET}\n\nwhsec_{base64.b64encode(b'x' * 24).decode()}\n")
    assert (RAW, b"x" * 24) == load(file)[0].secrets


def test_an_endpoint_shows_neither_url_nor_secret(tmp_path: Path) -> None:
    """The text of an endpoint in logs and tracebacks shows no token and no secret."""
    text = repr(load(written(tmp_path, f"endpoints: [{{{LEAST}}}]")))
    assert "t0ken" not in text
    assert repr(RAW) not in text


@pytest.mark.parametrize(
    ("endpoints", "says"),
    [
        ("", "line 1: endpoints: is missing"),
        ("endpoints: []", "is an empty list; add an endpoint"),
        (f"endpoints: [{{{LEAST}}}, {{{LEAST}}}]", "endpoints[1].name: 'crm' is the name of another endpoint too"),
        ("endpoints: [{name: CRM, url: 'https://a', secret-file: secret}]", "'CRM' is not a name"),
        ("endpoints: [{name: a, url: 'ftp://a', secret-file: secret}]", "url: is not a URL such as"),
        ("endpoints: [{name: a, url: '/hook', secret-file: secret}]", "url: is not a URL such as"),
        ("endpoints: [{name: a, url: 'https://', secret-file: secret}]", "url: is not a URL such as"),
        ("endpoints: [{name: a, url: 'https://a:port', secret-file: secret}]", "url: is not a URL such as"),
        ("endpoints: [{name: a, url: 'https://a:0', secret-file: secret}]", "url: has a port that is not between"),
        ("endpoints: [{name: a, url: 'https://a:65536', secret-file: secret}]", "url: has a port that is not between"),
        ("endpoints: [{name: a, url: 'https://a b', secret-file: secret}]", "url: has a host that is neither"),
        ("endpoints: [{name: a, url: 'https://a..b', secret-file: secret}]", "url: has a host that is neither"),
        ("endpoints: [{name: a, url: 'https://u:p@a', secret-file: secret}]", "url: has a user name or password"),
        ("endpoints: [{name: a, url: 'https://a#b', secret-file: secret}]", "url: has a fragment"),
        (
            "endpoints: [{name: a, url: 'https://a', secret: x}]",
            "endpoints[0].secret: unknown key. Did you mean secret-file?",
        ),
        (f"endpoints: [{{{LEAST}, kinds: [bought]}}]", "'bought' is not known; allowed: earned, returned"),
        (f"endpoints: [{{{LEAST}, kinds: []}}]", "kinds: is an empty list"),
        (f"endpoints: [{{{LEAST}, attempts: 0}}]", "attempts: 0 is not between 1 and 100"),
        (f"endpoints: [{{{LEAST}, attempts: 1.5}}]", "attempts: 1.5 has more than 0 decimal places"),
        (f"endpoints: [{{{LEAST}, timeout: 10}}]", "timeout: '10' is not an ISO 8601 duration"),
        (f"endpoints: [{{{LEAST}, first-wait: PT0.05S}}]", "PT0.05S is not between PT0.1S and PT1H"),
        (f"endpoints: [{{{LEAST}, first-wait: PT2S, longest-wait: PT1S}}]", "longest-wait (PT1S) is shorter than"),
        (f"endpoints: [{{{LEAST}, first-wait: PT6M}}]", "longest-wait (PT5M) is shorter than first-wait"),
        (f"endpoints: [{{{LEAST}, longest-wait: PT0.5S}}]", "longest-wait (PT0.5S) is shorter than first-wait"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(tmp_path: Path, endpoints: str, says: str) -> None:
    """Each problem has one line with file and line number, and without the URL."""
    file = written(tmp_path, endpoints)
    with pytest.raises(SettingsError) as caught:
        load(file)
    (line,) = [each for each in str(caught.value).splitlines() if "secret-file: is missing" not in each]
    assert says in line
    assert line.startswith(f"{file}: line 1: ")
    assert "t0ken" not in line


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "not-a-good-one",
        SECRET.removeprefix("whsec_"),
        f"{SECRET}*",
        f"whsec_{base64.b64encode(b'x' * 23).decode()}",
        f"whsec_{base64.b64encode(b'x' * 65).decode()}",
        f"{SECRET}\nwhsec_",
    ],
)
def test_a_bad_secret_is_refused_and_not_shown(tmp_path: Path, secret: str) -> None:
    """The error names endpoint and file, and describes the format of a secret."""
    with pytest.raises(SettingsError, match=r"endpoint crm: secret-file .*(empty|24 to 64 random bytes)") as caught:
        load(written(tmp_path, f"endpoints: [{{{LEAST}}}]", secret))
    assert not secret or secret not in str(caught.value)


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    """The error names the path."""
    file = written(tmp_path, f"endpoints: [{{{LEAST.replace('file: secret', 'file: other')}}}]")
    with pytest.raises(SettingsError, match=f"{tmp_path}/other: No such file"):
        load(file)


def test_wrong_contents_and_a_missing_file_have_different_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2 for wrong contents, as for every command, and 1 for a missing file."""
    monkeypatch.setenv("LOYALTY_WEBHOOKS_FILE", str(written(tmp_path, "endpoints: []")))
    with pytest.raises(typer.Exit) as wrong:
        main(check=True)
    monkeypatch.setenv("LOYALTY_WEBHOOKS_FILE", str(tmp_path / "missing.yaml"))
    with pytest.raises(typer.Exit) as missing:
        main(check=True)

    assert (2, 1) == (wrong.value.exit_code, missing.value.exit_code)
    assert "missing.yaml: does not exist: write the endpoints into it, or set LOYALTY_" in capsys.readouterr().err


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("NO_PROXY", "localhost,127.0.0.1/8,::1/128", "NO_PROXY has a wrong entry (write for example ::1, and not"),
        ("HTTPS_PROXY", "http://user:s3cret/x@proxy.example:3128", "a proxy is not a URL"),
        ("HTTPS_PROXY", "ftp://user:s3cret@proxy.example", "a proxy is not a URL"),
        ("ALL_PROXY", "socks5://localhost:1080", "the 'socksio' package is not installed"),
        ("SSL_CERT_FILE", "/missing/ca.pem", f"/missing/ca.pem: {os.strerror(errno.ENOENT)}"),
    ],
)
def test_wrong_proxies_and_certificates_are_wrong_settings(  # noqa: PLR0913 - each part of a case is a parameter
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    says: str,
    *,
    check: bool,
) -> None:
    """One line names the variables but no password, and the exit status is 2. ``--check`` finds it too."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("LOYALTY_WEBHOOKS_FILE", str(written(tmp_path, f"endpoints: [{{{LEAST}}}]")))
    monkeypatch.setenv(variable, value)

    with pytest.raises(typer.Exit) as stopped:
        main(check=check)

    (line,) = capsys.readouterr().err.splitlines()
    assert 2 == stopped.value.exit_code
    assert says in line
    assert "correct the proxies in HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, or the file" in line
    assert "s3cret" not in line
