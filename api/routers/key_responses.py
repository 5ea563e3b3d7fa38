"""Responses to reads of one key."""

from collections.abc import Callable

from fastapi import Response

from api.http import etag, headers
from api.http.problems import Problem
from api.routing.lookup import LocalRead
from api.routing.peer_client import PeerResponse
from services.state_stores.definition import VersionedValue


def key_response(
    found: LocalRead | PeerResponse,
    body: Callable[[VersionedValue], bytes],
    not_found: type[Problem],
    if_none_match: str | None,
) -> Response:
    """The response of a peer as it is, or the entry with its ETag and freshness headers. Raises ``not_found``."""
    if isinstance(found, PeerResponse):
        return Response(*found)
    freshness = found.freshness()
    if found.value is None:
        problem = not_found()
        problem.headers = headers.texts(freshness)
        raise problem
    response = etag.answer(found.value, body, if_none_match)
    response.raw_headers.extend(freshness)
    return response
