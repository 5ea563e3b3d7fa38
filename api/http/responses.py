"""JSON responses."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import Response

REVALIDATE = "private, no-cache"
"""Clients may keep the response. They must ask for a newer one before they use it again."""
NO_STORE = "no-store"


def json_response(
    body: Mapping[str, Any], status: int = 200, *, caching: str = REVALIDATE, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(orjson.dumps(body), status, {"Cache-Control": caching, **(headers or {})}, "application/json")
