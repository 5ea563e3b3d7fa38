"""Error messages for settings: what is wrong, and which values are possible."""

import difflib
import re

from pydantic_core import ErrorDetails, to_jsonable_python

# A name such as keyStorePassword, fs.s3a.access.key or sig, but not keyStore or design.
_NAME = r"[\w.-]*(?:pass|secret|token|signature|(?:key|sig)(?![a-z]))[\w.-]*="
# A password can contain any character, so all text after it is hidden. Only in the query of a URL, & ends it.
_PASSWORDS = (
    # The scheme of the URL can be missing.
    (re.compile(r"((?:^|://)[^/:]*):(?!//).*@", re.DOTALL), r"\1:…@"),
    (re.compile(rf"(?<![?&\w.-])({_NAME}).*", re.DOTALL | re.IGNORECASE), r"\1…"),
    (re.compile(rf"([?&]{_NAME})[^&]*", re.IGNORECASE), r"\1…"),
)


def without_passwords(text: str) -> str:
    """The text without the passwords in its URLs and its options."""
    for pattern, replacement in _PASSWORDS:
        text = pattern.sub(replacement, text)
    return text


def hint(name: str, known: list[str]) -> str:
    """The most similar name, or where all names are listed."""
    # The default cutoff (0.6) is too low: all names have the same prefix, so even very different names are similar.
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.75)
    return f" Did you mean {near[0]}?" if near else " docs/reference/settings.md lists all settings"


_FORMS = {
    "topic_prefix": "letters, digits and hyphens",
    "rate_limit": "a number and a unit, such as 500/second or 20/minute",
    "failed_login_rate": "a number and a unit, such as 500/second or 20/minute",
    "cors_origins": "origins such as https://shop.example, separated by commas",
    "schema_registry_url": "a URL, such as https://registry:8081",
    "application_server": "a URL without a path, such as http://10.0.0.7:8080",
    "status_urls": "parts with their URLs, separated by spaces, such as pipeline=http://pipeline:9108 "
    "ledger=http://ledger:9109",
}
"""Describes the format of each setting that has a pattern."""


def _expectation(error: ErrorDetails) -> str:  # noqa: PLR0911 - one for each kind of error
    """What the value must be, in words."""
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "greater_than":
            return f"more than {context['gt']}"
        case "less_than_equal":
            return f"at most {context['le']}"
        case "string_pattern_mismatch":
            return _FORMS[str(error["loc"][0])]
        case "literal_error":
            return str(context["expected"]).replace("'", "")
        case kind if kind.startswith("int_"):
            return "a whole number, such as 3"
        case kind if kind.startswith(("decimal_", "finite_")):
            return "a number, such as 0.02"
        case kind if kind.startswith("bool_"):
            return "true or false"
        case kind if kind.startswith("time_delta_"):
            return "a duration, such as PT5S or P1DT12H"
    return error["msg"]


def explain(error: ErrorDetails) -> str:
    """What is wrong with the setting that an error is about, and what to do."""
    if error["type"] == "value_error":  # Our own validators have complete messages.
        return str(error["ctx"]["error"])
    given = to_jsonable_python(error["input"])  # show a duration as ISO 8601: PT5S
    return f"{without_passwords(str(given))!r} is not possible: it must be {_expectation(error)}"
