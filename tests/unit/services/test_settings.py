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
