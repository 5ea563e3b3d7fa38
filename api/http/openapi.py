"""The OpenAPI document."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.http import problems
from api.http.problems import MEDIA_TYPE, ProblemBody
from api.security.gate import PUBLIC_PATHS
from api.security.problems import (
    ForwardRefused,
    KeysUnavailable,
    NotYours,
    ScopeMissing,
    TooManyRequests,
    Unauthenticated,
)

DESCRIPTION = """
Reads of loyalty balances from a local store that follows the changelog `loyalty-balances`, and commands that change
points. A command needs an Idempotency-Key. A client can repeat a command under the same key: it is executed once, and
each repetition gets the same response. After 201 or 200 the next read of the balance shows the change. After 202 the
client finds the result at `Location`.

You can start any number of instances and send each request to any of them. Each instance serves a part of the customers
and forwards requests for the others. The headers of each response name the copy that was read and how fresh it is.

Every error is `application/problem+json` (RFC 9457). Clients tell errors apart by `type`.
A client can repeat a request after 503 with `Retry-After`.
"""

TAGS = [
    {"name": "customers", "description": "Reads of customers' balances, entries and statements."},
    {"name": "commands", "description": "Changes of points and cards. Each command takes effect exactly once."},
    {"name": "programme", "description": "What a basket would earn by the rules of the programme."},
    {"name": "discovery", "description": "The instances, and the partitions and keys that each of them holds."},
    {"name": "stores", "description": "Reads of any state store."},
    {
        "name": "operations",
        "description": "Health, metrics and settings of this instance, the status of the whole system, dead "
        "letters, audits, and versions of the programme.",
    },
]

# If the instance needs no credentials, the operations of its document have no `security`.
_CREDENTIALS = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key (`loyalty keys create`), or a token of the issuer. An instance that serves its own "
        "machine only (LOYALTY_API_ACCESS=loopback) needs none.",
    }
}


def install(app: FastAPI, *, needs_credentials: bool = False) -> None:
    """Add the schema of problems, the Idempotency-Key and the credentials to the document of ``app.openapi``.

    FastAPI does not know the problems, because no route returns them. It does not know the credentials, because the
    gate checks them before FastAPI. The routes declare the Idempotency-Key as optional.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            document.setdefault("components", {}).setdefault("schemas", {})["Problem"] = ProblemBody.model_json_schema()
            _require_idempotency_keys(document)
            document["components"]["securitySchemes"] = _CREDENTIALS
            if needs_credentials:
                _describe_credentials(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_credentials(document: dict[str, Any]) -> None:
    """Add the credentials, and the problems of the gate, to all operations that are not public."""
    refusals = problems.responses(
        Unauthenticated, ScopeMissing, NotYours, ForwardRefused, TooManyRequests, KeysUnavailable
    )
    for path, item in document["paths"].items():
        for operation in item.values() if path not in PUBLIC_PATHS else ():
            operation["security"] = [{"bearer": []}]
            for status, refusal in refusals.items():
                response = operation["responses"].setdefault(str(status), refusal)
                response["content"][MEDIA_TYPE]["examples"] |= refusal["content"][MEDIA_TYPE]["examples"]


def _require_idempotency_keys(document: dict[str, Any]) -> None:
    """Declare the header as required. The routes declare it as optional, because its absence has its own problem."""
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "idempotency-key":
                    parameter["name"], parameter["required"] = "Idempotency-Key", True
