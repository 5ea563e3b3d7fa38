"""Settings that are not valid give an error of one line that names the variable."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from services.errors import SettingsError
from services.settings import Settings, password_in, read_settings


def test_an_option_of_the_command_line_replaces_the_variable(monkeypatch):
    """Without the option, the variable counts."""
    monkeypatch.setenv("LOYALTY_API_PORT", "8181")

    assert 8282 == read_settings(api_port=8282).api_port
    assert 8181 == read_settings(api_port=None).api_port


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("LOYALTY_API_PROT", "Did you mean LOYALTY_API_PORT?"),
        ("LOYALTY_FACTOR", "Did you mean LOYALTY_LOYALTY_FACTOR?"),
        ("loyalty_kafka_bootstrap_server", "Did you mean LOYALTY_KAFKA_BOOTSTRAP_SERVERS?"),
        ("LOYALTY_FOO", "docs/reference/settings.md lists all settings"),
        ("LOYALTY_XYZZY", "docs/reference/settings.md lists all settings"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    """A misspelt variable would otherwise leave its setting at the default, and nobody would notice."""
    monkeypatch.setenv(name, "7")

    with pytest.raises(SettingsError) as error:
        read_settings()

    assert f"{name}: no such setting. {hint}" == str(error.value)


@pytest.mark.parametrize("text", ["9days", "9 days", "P1M", "P1Y", "P", "PT", "9"])
def test_a_duration_has_a_fixed_length_in_iso_8601(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Months and years have no fixed length. Pydantic would take a month for 30 days."""
    monkeypatch.setenv("LOYALTY_REPEAT_HORIZON", text)
    with pytest.raises(SettingsError, match=f"'{text}' .* a duration, such as PT5S or P1DT12H$"):
        read_settings()


@pytest.mark.parametrize(
    "name", [name for name, field in Settings.model_fields.items() if field.annotation is timedelta]
)
def test_no_duration_is_negative(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A duration has a lower limit, and the error for another notation shows the right one."""
    monkeypatch.setenv(variable := f"LOYALTY_{name.upper()}", "-PT1S")
    with pytest.raises(SettingsError, match=f"^{variable}: '-PT1S' is not possible: it must be at least [01] second"):
        read_settings()

    monkeypatch.setenv(variable, "5s")
    with pytest.raises(SettingsError, match=f"^{variable}: '5s' .* a duration, such as PT5S or P1DT12H$"):
        read_settings()


POSITIVE = (
    *("PARTITIONS", "REPLICATION_FACTOR", "MAX_OFFSETS_PER_TRIGGER"),
    *("MOST_CONNECTIONS", "MOST_EVENT_STREAMS", "MOST_REQUESTS_AT_ONCE"),
)


@pytest.mark.parametrize(
    ("name", "value", "expectation"),
    [
        ("API_PORT", "65536", "at most 65535"),
        ("API_PORT", "0", "at least 1"),
        ("API_PORT", "x", "a whole number, such as 3"),
        ("SHUFFLE_PARTITIONS", "0", "more than 0"),
        ("LOYALTY_FACTOR", "NaN", "a number, such as 0.02"),
        ("LOYALTY_FACTOR", "half", "a number, such as 0.02"),
        ("LOYALTY_FACTOR", "1.5", "at most 1"),
        ("LOYALTY_FACTOR", "-0.01", "at least 0"),
        ("PIPELINE_DRIVERS", "3", "at most 2"),
        ("PIPELINE_DRIVERS", "0", "at least 1"),
        ("STANDBY_REPLICAS", "-1", "at least 0"),
        ("TIMER_INTERVAL", "PT0.9S", "at least 1 second"),
        ("REQUEST_TIMEOUT", "PT0.9S", "at least 1 second"),
        ("SESSION_TIMEOUT", "PT0.9S", "at least 1 second"),
        ("SESSION_TIMEOUT", "PT1H1S", "at most 1 hour"),
        ("ARCHIVE_INTERVAL", "P1DT1S", "at most 1 day"),
        ("ACCEPT_DATA_LOSS", "maybe", "true or false"),
        ("STATE_STORE", "disk", "rocksdb or memory"),
        ("LOG_LEVEL", "TRACE", "DEBUG, INFO, WARNING or ERROR"),
        ("TOPIC_PREFIX", "a b", "letters, digits and hyphens"),
        ("RATE_LIMIT", "5", "a number and a unit, such as 500/second or 20/minute"),
        ("RATE_LIMIT", "0/second", "a number and a unit, such as 500/second or 20/minute"),
        ("RATE_LIMIT", "1234567890/day", "a number and a unit, such as 500/second or 20/minute"),
        ("RATE_LIMIT", "5/days", "a number and a unit, such as 500/second or 20/minute"),
        ("FAILED_LOGIN_RATE", "0/minute", "a number and a unit, such as 500/second or 20/minute"),
        ("CORS_ORIGINS", "x", "origins such as https://shop.example, separated by commas"),
        (
            "STATUS_URLS",
            "ledger=host:1",
            (
                "parts with their URLs, separated by spaces, such as pipeline=http://pipeline:9108 "
                "ledger=http://ledger:9109"
            ),
        ),
        ("SCHEMA_REGISTRY_URL", "registry:8081", "a URL, such as https://registry:8081"),
        ("APPLICATION_SERVER", "x", "a URL without a path, such as http://10.0.0.7:8080"),
        ("APPLICATION_SERVER", "http://a:8080/v1", "a URL without a path, such as http://10.0.0.7:8080"),
        *((name, "0", "more than 0") for name in POSITIVE),
    ],
)
def test_an_error_says_what_the_value_must_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expectation: str
) -> None:
    """The error has our message and not the library's."""
    monkeypatch.setenv(f"LOYALTY_{name}", value)

    with pytest.raises(SettingsError) as error:
        read_settings()

    assert f"LOYALTY_{name}: {value!r} is not possible: it must be {expectation}" == str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("LOYALTY_FACTOR", "0", 0),
        ("LOYALTY_FACTOR", "1", 1),
        ("STANDBY_REPLICAS", "0", 0),
        ("SESSION_TIMEOUT", "PT1H", timedelta(hours=1)),
        ("ARCHIVE_INTERVAL", "P1D", timedelta(days=1)),
        ("REPEAT_HORIZON", "P2W", timedelta(days=14)),
        ("REPEAT_HORIZON", "P9DT1H2M3.5S", timedelta(days=9, hours=1, minutes=2, seconds=3.5)),
        ("RATE_LIMIT", "999999999/day", "999999999/day"),
        ("SCHEMA_REGISTRY_URL", " http://a , https://b ", " http://a , https://b "),
    ],
)
def test_a_limit_is_possible_and_so_is_each_notation(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    """The name of a variable may be in lower case."""
    monkeypatch.setenv(f"loyalty_{name.lower()}", text)

    assert value == getattr(read_settings(), name.lower())


@pytest.mark.parametrize("name", ["STATUS_URLS", "APPLICATION_SERVER", "CORS_ORIGINS"])
def test_no_error_shows_a_password(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Users copy errors into tickets."""
    monkeypatch.setenv(f"LOYALTY_{name}", "other=http://me:s3cret@host/path")

    with pytest.raises(SettingsError, match="'other=http://me:…@host/path' is not possible"):
        read_settings()


@pytest.mark.parametrize("user", ["user", "user@example", "http://other,user"])
def test_no_error_shows_a_password_of_a_url_without_a_scheme(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    monkeypatch.setenv("LOYALTY_SCHEMA_REGISTRY_URL", f"{user}:s3cret@registry:8081")

    with pytest.raises(SettingsError, match=f"'{user}:…@registry:8081' is not possible"):
        read_settings()


def error_of(name: str, value: str) -> str:
    """The error about a setting; empty if the setting takes the value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"LOYALTY_{name.upper()}", value)
        try:
            read_settings()
        except SettingsError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_error_has_our_message(name: str) -> None:
    """For every setting, the error has our message and not that of the library. Folders and some texts accept every
    value.
    """
    error = error_of(name, "\x01 ,")

    assert re.match(r"^(LOYALTY_\w+: ('.*' is not possible: it must be |cannot read|LOYALTY_)|$)", error)
    assert not re.search("Input|Value error|should|valid", error)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104  # compared, not bound
def test_peers_need_an_address(host: str) -> None:
    """An instance that listens on all addresses must say under which one peers reach it. The first error is about
    access.
    """
    with pytest.raises(SettingsError, match=r"^LOYALTY_API_HOST: other machines can reach"):
        read_settings(api_host=host).require_safe_api()
    with pytest.raises(SettingsError, match=r"^LOYALTY_APPLICATION_SERVER: it must be set"):
        read_settings(api_host=host, api_access="anyone").require_safe_api()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://loyalty:s3cret@db/loyalty",
        "postgresql://loyalty:aB/s3cret==@db/loyalty",
        "postgresql://loyalty:a:s3cret@db/loyalty",
        "postgresql://loyalty:a@s3cret@db/loyalty",
        "postgresql://loyalty:a?s3cret@db/loyalty",
        "postgresql://db/loyalty?user=loyalty&password=s3cret&x=1",
        "postgresql://db/loyalty?sslpassword=s3cret",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    shown = Settings(ledger_url=url).shown()["ledger_url"]

    assert "s3cret" not in shown
    assert "…" in shown
    assert shown.startswith("postgresql://")


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("spark_java_options", "-Xmn1m -DkeyStorePassword=s3&cret -Da=b", "-Xmn1m -DkeyStorePassword=…"),
        ("spark_java_options", "-DkeyStore=a -Dfs.s3a.access.key=s3cret", "-DkeyStore=a -Dfs.s3a.access.key=…"),
        ("spark_java_options", "-Dfs.azure.account.key.a.example=s3cret==", "-Dfs.azure.account.key.a.example=…"),
        ("schema_registry_url", "https://a/?client_secret=s3cret&x=1", "https://a/?client_secret=…&x=1"),
        ("schema_registry_url", "https://a/?access_token=s3cret", "https://a/?access_token=…"),
        ("schema_registry_url", "https://a/?sig=s3cret&x=1", "https://a/?sig=…&x=1"),
    ],
)
def test_no_password_of_an_option_is_shown(name: str, value: str, hidden: str) -> None:
    """All text after it is hidden, because a password can contain blanks."""
    assert hidden == Settings(**{name: value}).shown()[name]


@pytest.mark.parametrize(
    ("host", "url"), [("::1", "http://[::1]:8080"), ("127.0.0.1", "http://127.0.0.1:8080"), ("a", "http://a:8080")]
)
def test_peers_get_the_url_of_host_and_port(host: str, url: str) -> None:
    assert url == Settings(api_host=host, api_port=8080).advertised_url


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose passes unset variables as empty ones. An unknown variable that is empty is no error either."""
    monkeypatch.setenv("LOYALTY_API_PORT", "")
    monkeypatch.setenv("LOYALTY_API_PROT", "")

    assert 8080 == read_settings().api_port


@pytest.mark.parametrize(
    ("host", "access", "is_safe"),
    [
        ("127.0.0.1", "loopback", True),
        ("127.8.9.10", "loopback", True),
        ("::1", "loopback", True),
        ("localhost", "loopback", True),
        ("10.0.0.7", "loopback", False),
        ("0.0.0.0", "loopback", False),  # noqa: S104  # it must be refused
        ("::", "loopback", False),
        ("api.example", "loopback", False),
        ("0.0.0.0", "authenticated", True),  # noqa: S104  # callers need credentials
        ("10.0.0.7", "anyone", True),
    ],
)
def test_the_api_is_safe_by_default(host, access, is_safe):
    """Without credentials it serves loopback addresses only. The error says what to do."""
    settings = read_settings(api_host=host, api_access=access, application_server="http://api:8080")

    if is_safe:
        settings.require_safe_api()
    else:
        with pytest.raises(SettingsError, match=r"^LOYALTY_API_HOST: .*LOYALTY_API_ACCESS=authenticated.*keys create"):
            settings.require_safe_api()


@pytest.mark.parametrize("missing", ["token_issuer", "token_audience", "token_keys"])
def test_an_issuer_needs_all_of_its_settings(missing):
    """An issuer without an audience would accept the tokens of other services."""
    given = {"token_issuer": "https://i.example", "token_audience": "a", "token_keys": "keys.json", missing: None}

    with pytest.raises(SettingsError, match="set all of them, or none"):
        read_settings(**given)


def test_a_copy_for_another_user_has_the_password_of_this_user(tmp_path: Path) -> None:
    """A copy with other changes keeps the password that the process uses, even if an operator has replaced the file."""
    for user in ("auditor", "till"):
        (tmp_path / user).write_text(f"password of {user}\n", encoding="utf-8")
    auditor = Settings().model_copy(update={"kafka_sasl_password_file": tmp_path / "auditor"})
    assert "password of auditor" == auditor.kafka_password
    (tmp_path / "auditor").unlink()
    assert "password of auditor" == auditor.model_copy(update={"shuffle_partitions": 3}).kafka_password
    till = auditor.model_copy(update={"kafka_sasl_password_file": tmp_path / "till"})
    assert "password of till" == till.kafka_password
    given = till.model_copy(update={"kafka_sasl_password_file": None, "kafka_sasl_password": SecretStr("given")})
    assert "given" == given.kafka_password


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_can_begin_and_end_with_a_blank(tmp_path: Path, end: str) -> None:
    """Editors append only a line break."""
    (tmp_path / "password").write_bytes(f"\t a b \t{end}".encode())
    assert "\t a b \t" == password_in(tmp_path / "password")
