"""The audit log: who sent which command, and who read which statement, with pseudonyms instead of cards."""

import structlog
from starlette.types import Scope

from api.security.caller import Caller
from services.pseudonyms import Pseudonyms

log = structlog.get_logger(__name__)

_EXPORTS = frozenset({"/v1/customers/{card}/entries", "/v1/customers/{card}/statement"})
_READS_BY_POST = ("/v1/simulate", "/v1/stores/")


class AuditLog:
    """Writes one log line for each command, for each export of a customer's entries, and for each refusal of them.

    The instance that received the request from the caller writes it, and no other.
    """

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self._pseudonyms = pseudonyms

    def note(self, caller: Caller, scope: Scope, status: int) -> None:
        """Write the line of a request after its response, if the request belongs to the audit log."""
        route = getattr(scope.get("route"), "path", "")
        is_read = scope["method"] in {"GET", "HEAD"} or scope["path"].startswith(_READS_BY_POST)
        if caller.is_forwarded or not route or (is_read and route not in _EXPORTS):
            return
        subject = dict(scope.get("path_params", {}))
        if "card" in subject:
            subject = {"customer": self._pseudonyms.of(subject["card"])}
        log.info("audit", actor=caller.name, action=f"{scope['method']} {route}", status=int(status), **subject)
