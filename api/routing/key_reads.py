"""Reads of single keys that this instance makes for itself: from wherever the key is, as a caller would."""

from urllib.parse import quote, urlencode

from fastapi import Request, Response

from api.http import pagination
from api.http.parameters import LONGEST_TIMEOUT_SECONDS
from api.http.problems import Problem
from api.routing.lookup import KeyQueries, KeyQuery
from services.state_stores.definition import ANY_VERSION, ReadConsistency


class KeyReads:
    """Asks ``GET /v1/stores/{store}/keys/{key}``."""

    def __init__(self, key_queries: KeyQueries) -> None:
        self._key_queries = key_queries

    async def ask(
        self, store_name: str, key: str, awaited: ReadConsistency = ANY_VERSION, seconds: float = 0.0
    ) -> Response:
        """The answer, a problem included, within little more than so many seconds."""
        store = self._key_queries.store(store_name)
        seconds = min(max(0.0, seconds), LONGEST_TIMEOUT_SECONDS)
        path = f"/v1/stores/{store_name}/keys/{quote(key, safe='')}"
        parameters = {
            "minSequence": awaited.sequence,
            "openedTime": awaited.opened_time,
            "erased": str(awaited.erased).lower(),
            "timeout": f"{seconds:.3f}",
        }
        # What another instance is sent, if the key is there.
        request = Request(
            {
                "type": "http",
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "query_string": urlencode(parameters).encode(),
                "headers": [],
            }
        )
        render = pagination.renderer(store, key.encode(), None)
        try:
            return await self._key_queries.answer(request, KeyQuery(store, key.encode(), render, awaited, seconds))
        except Problem as problem:
            return problem.response()
