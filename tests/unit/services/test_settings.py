"""Settings that are not valid give an error of one line that names the variable."""

import pytest

from services.settings import SettingsError, read_settings


def test_given_settings_go_before_the_environment(monkeypatch):
    """A given option of the command line replaces the variable. Without the option, the variable counts."""
    monkeypatch.setenv("LOYALTY_API_PORT", "8181")

    assert 8282 == read_settings(api_port=8282).api_port
    assert 8181 == read_settings(api_port=None).api_port


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOYALTY_API_PORT", "65536"),
        ("LOYALTY_LOYALTY_FACTOR", "1.5"),
        ("LOYALTY_LOYALTY_FACTOR", "NaN"),
        ("LOYALTY_REPEAT_HORIZON", "soon"),
        ("LOYALTY_API_HOST", "0.0.0.0"),  # noqa: S104  # nobody could reach it under that address
        ("LOYALTY_TOPIC_PREFIX", "a b"),
    ],
)
def test_a_setting_that_cannot_be_is_named(monkeypatch, name, value):
    """The message is one line with the name of the variable."""
    monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError, match=f"^{name}: .") as error:
        read_settings()

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("LOYALTY_API_PROT", "Did you mean LOYALTY_API_PORT?"),
        ("LOYALTY_FACTOR", "Did you mean LOYALTY_LOYALTY_FACTOR?"),
        ("loyalty_kafka_bootstrap_server", "Did you mean LOYALTY_KAFKA_BOOTSTRAP_SERVERS?"),
        ("LOYALTY_XYZZY", "`loyalty settings` lists all settings."),
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


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose passes variables that are not set as empty ones. That is no error, also for an unknown variable."""
    monkeypatch.setenv("LOYALTY_API_PORT", "")
    monkeypatch.setenv("LOYALTY_API_PROT", "")

    assert 8080 == read_settings().api_port
