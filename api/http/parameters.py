"""Parameters of requests."""

from collections import Counter
from typing import Annotated, Any, get_args, get_origin

from fastapi import Header, Path, Query, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query as QueryParameter
from pydantic import AwareDatetime

from api.http.problems import MOST_ERRORS, InvalidParameters
from api.schemas.fields import LONGEST_CARD, must_match
from api.schemas.stores import LONGEST_KEY
from api.security.permissions import checks_of

LONGEST_TIMEOUT_SECONDS = 30
"""Shorter than the idle limits of common proxies (60 s), so that this server ends the request."""

LARGEST_SEQUENCE = 2**63 - 1
LONGEST_PAGE = 1_000
MOST_WINDOWS = 1_440
"""A day of minutes."""

# Pydantic alone accepts 1.0, 1_000 and blanks around a number, and words such as yes and on.
IsInteger = must_match("-?[0-9]+", "must be a whole number, for example 42")
IsBoolean = must_match("true|false", "must be true or false")


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise InvalidParameters for a query parameter that is unknown, or that is given twice and may be given once.

    FastAPI would ignore a misspelled parameter, and the first of two. This checks the rights of the caller first.
    """
    if not request.query_params:
        return
    parameters = get_flat_params(request.scope["route"].dependant)
    known = {each.alias: each.field_info for each in parameters if isinstance(each.field_info, QueryParameter)}
    unknown = f"is unknown. This path has {', '.join(known) or 'no parameters'}"
    errors = [
        {"in": ["query", name], "reason": unknown if name not in known else "is given twice"}
        for name, number in Counter(name for name, _ in request.query_params.multi_items()).items()
        if name not in known or (number > 1 and not _takes_several(known[name].annotation))
    ]
    if errors:
        for check in checks_of(request.scope["route"]):
            await check(request)
        raise InvalidParameters(errors=errors[:MOST_ERRORS])


def _takes_several(annotation: Any) -> bool:
    """Whether the type of a parameter is a list, or a list or None."""
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


async def refuse_body(request: Request) -> None:
    """Raise InvalidParameters for a body, because its members would be ignored.

    Some clients send ``{}`` with every POST. So ``{}`` counts as no body.
    """
    if b"".join((await request.body()).split()) not in (b"", b"{}"):
        raise InvalidParameters(errors=[{"in": ["body"], "reason": "must be empty, because this path takes no body"}])


MinSequence = Annotated[
    int,
    Query(
        alias="minSequence",
        ge=0,
        le=LARGEST_SEQUENCE,
        description="Respond only with this sequence or a later one. With it a client reads its own writes.",
    ),
    IsInteger,
]
OpenedTime = Annotated[
    int,
    Query(
        alias="openedTime",
        ge=0,
        le=LARGEST_SEQUENCE,
        description="When the account of minSequence was opened, in milliseconds since the epoch. An account that was "
        "opened later satisfies every minSequence. Default: any account.",
    ),
    IsInteger,
]


def timeout_query(description: str) -> Any:
    """A parameter ``timeout`` in seconds with this description."""
    return Query(alias="timeout", ge=0, le=LONGEST_TIMEOUT_SECONDS, allow_inf_nan=False, description=description)


Timeout = Annotated[float, timeout_query("Seconds to wait for minSequence before 503 sequence-not-reached.")]
MaxLag = Annotated[
    int | None,
    Query(
        alias="maxLag",
        ge=0,
        le=LARGEST_SEQUENCE,
        description="The largest lag of a standby that may respond, in changelog records. 0: only a standby with all "
        "records. Default: no limit.",
    ),
    IsInteger,
]
IfNoneMatch = Annotated[str | None, Header(description="The ETag of an earlier response.")]
Card = Annotated[
    str, Path(min_length=1, max_length=LONGEST_CARD, description="CustomerCardNo", examples=["9265846829"])
]
StoreName = Annotated[
    str, Path(description="A state store. /v1/stores lists all of them.", examples=["customer-balances"])
]
Key = Annotated[str, Path(max_length=LONGEST_KEY, description="May contain slashes.", examples=["9265846829"])]
Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="Entries in one page."), IsInteger]
Cursor = Annotated[
    str | None,
    Query(
        max_length=1_000,
        description="`next` of the previous page. All other parameters except limit must stay as they were.",
    ),
]
From = Annotated[str | None, Query(alias="from", max_length=LONGEST_KEY, description="The first key, inclusive.")]
To = Annotated[str | None, Query(max_length=LONGEST_KEY, description="The last key, inclusive.")]
Prefix = Annotated[str, Query(max_length=LONGEST_KEY, description="Only keys that begin with this text.")]
FromTime = Annotated[
    AwareDatetime,
    Query(
        alias="from",
        description="The start of the first window, inclusive: RFC 3339 with a time zone, or milliseconds since 1970.",
    ),
]
ToTime = Annotated[
    AwareDatetime,
    Query(alias="to", description=f"The start of the last window, inclusive. At most {MOST_WINDOWS} windows."),
]
Partitions = Annotated[
    list[Annotated[int, IsInteger]] | None,
    Query(
        alias="partition", max_length=1_000, description="Only these partitions. Repeat it for several. Default: all."
    ),
]
