"""Reads the endpoints file. docs/reference/webhooks.md explains its keys."""

import base64
import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self, cast

import httpx
from pydantic import Field, ValidationInfo, field_validator, model_validator

from services.domain.entries import Kind
from services.errors import SettingsError
from services.yaml_files.model import FileModel, Notes, validated
from services.yaml_files.scalars import duration, in_iso, member, scalar, text, whole
from services.yaml_files.tree import InvalidFileError

USUAL_KINDS = (Kind.EARNED, Kind.REDEEMED, Kind.EXPIRES_SOON, Kind.TIER)

SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret
# The number of bytes of a secret, from the specification Standard Webhooks.
_SHORTEST_SECRET, _LONGEST_SECRET = 24, 64

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,49}")
# Names in private networks can have underscores. httpx has checked an address with colons.
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}\.?|[0-9a-f]*:[0-9a-f:.]+")
_LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A receiver of notifications. Logs show neither the URL, which can contain a token, nor the secrets.

    Attributes:
        name: identifies the endpoint. Its consumer group has this name, so another name is a new endpoint.
        secrets: raw bytes. Each request has one signature per secret, so that a receiver can change to a new secret.
        kinds: the kinds of notifications that the endpoint gets.
        timeout: the longest time of one attempt. If only the status of the response arrives in this time, it counts.
        attempts: the number of attempts, the first one included.
        first_wait, longest_wait: the limits of the wait between two attempts. It doubles after each attempt. A
            random time of at most ``first_wait`` is added.
        concurrency: the number of simultaneous requests. They are for different customers.
    """

    name: str
    url: str = field(repr=False)
    secrets: tuple[bytes, ...] = field(repr=False)
    kinds: frozenset[Kind] = frozenset(USUAL_KINDS)
    timeout: timedelta = timedelta(seconds=10)
    attempts: int = 10
    first_wait: timedelta = timedelta(seconds=1)
    longest_wait: timedelta = timedelta(minutes=5)
    concurrency: int = 8


def load(file: Path) -> list[Endpoint]:
    """Read the endpoints of a file. Raises SettingsError with all problems, and OSError if it cannot be opened."""
    try:
        found = validated(file.read_text(encoding="utf-8-sig"), _EndpointsFile).endpoints
    except InvalidFileError as error:
        raise SettingsError("\n".join(f"{file}: {problem}" for problem in error.problems)) from error
    except FileNotFoundError as error:
        advice = "does not exist: write the endpoints into it, or set LOYALTY_WEBHOOKS_FILE to another file"
        raise FileNotFoundError(error.errno, advice, str(file)) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: is not in UTF-8") from error
    return [_endpoint(each, file.parent) for each in found]


def _endpoint(given: "_Endpoint", folder: Path) -> Endpoint:
    values = dict(given) | {
        "kinds": frozenset(given.kinds),
        "secrets": _secrets(folder / given.secret_file, given.name),
    }
    del values["secret_file"]
    return Endpoint(**values)


def _secrets(file: Path, endpoint: str) -> tuple[bytes, ...]:
    place = f"endpoint {endpoint}: secret-file {file}"
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not in UTF-8"
        raise SettingsError(f"{place}: {why}") from error
    if not lines:
        raise SettingsError(f"{place}: is empty")
    return tuple(_secret(line, f"{place}, secret {number}") for number, line in enumerate(lines, start=1))


def _secret(line: str, place: str) -> bytes:
    try:
        secret = base64.b64decode(line.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        secret = b""
    if not line.startswith(SECRET_PREFIX) or not _SHORTEST_SECRET <= len(secret) <= _LONGEST_SECRET:
        raise SettingsError(
            f"{place}: is not {SECRET_PREFIX} followed by {_SHORTEST_SECRET} to {_LONGEST_SECRET} random bytes in "
            "base64"
        )
    return secret


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name of at most 50 lower-case letters, digits and hyphens")
    return value


def _url(value: str) -> str:
    """Check a URL. The errors do not show it, because it can contain a token."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("is not a URL such as https://crm.example/hooks")
    if not _HOST.fullmatch(url.raw_host.decode("ascii").lower()):
        raise ValueError("has a host that is neither a name of letters, digits, hyphens and dots nor an IP address")
    if url.port is not None and not 0 < url.port <= _LARGEST_PORT:
        raise ValueError(f"has a port that is not between 1 and {_LARGEST_PORT}")
    if url.userinfo:
        raise ValueError("has a user name or password; remove it: the signature identifies the sender")
    if url.fragment:
        raise ValueError("has a fragment (#…); remove it, because requests do not send it")
    return value


def _duration(text: str) -> timedelta:
    return duration(timedelta(milliseconds=100), timedelta(hours=1))(text) * timedelta(milliseconds=1)


_DEFAULT = Endpoint("", "", ())
_Duration = Annotated[timedelta, scalar(_duration)]
_Kind = Annotated[Kind, scalar(member(Kind))]


class _Endpoint(FileModel):
    name: Annotated[str, scalar(_name)]
    url: Annotated[str, scalar(_url)]
    secret_file: Annotated[str, scalar(text)]
    kinds: list[_Kind] = Field(default_factory=lambda: list(USUAL_KINDS))
    timeout: _Duration = _DEFAULT.timeout
    attempts: Annotated[int, scalar(whole(1, 100))] = _DEFAULT.attempts
    first_wait: _Duration = _DEFAULT.first_wait
    longest_wait: _Duration = _DEFAULT.longest_wait
    concurrency: Annotated[int, scalar(whole(1, 100))] = _DEFAULT.concurrency

    @field_validator("kinds")
    @classmethod
    def _not_empty(cls, kinds: list[Kind]) -> list[Kind]:
        if not kinds:
            raise ValueError("is an empty list; remove the key to get the usual kinds")
        return kinds

    # A validator of a field would not see the default of the other one.
    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.longest_wait < self.first_wait:
            raise ValueError(f"longest-wait ({in_iso(self.longest_wait)}) is shorter than first-wait")
        return self


class _EndpointsFile(FileModel):
    endpoints: list[_Endpoint]

    @field_validator("endpoints")
    @classmethod
    def _unique_names(cls, endpoints: list[_Endpoint], info: ValidationInfo) -> list[_Endpoint]:
        if not endpoints:
            raise ValueError("is an empty list; add an endpoint")
        seen: set[str] = set()
        for number, each in enumerate(endpoints):
            if each.name in seen:
                cast(Notes, info.context).append(
                    (("endpoints", number, "name"), f"{each.name!r} is the name of another endpoint too")
                )
            seen.add(each.name)
        return endpoints
