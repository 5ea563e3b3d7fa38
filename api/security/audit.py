"""Records who sent which command and who exported which data, with pseudonyms instead of cards."""

import logging
import re
from http import HTTPStatus

import structlog
from starlette.types import Scope

from api.security.caller import Caller
from services.audit_trail import AuditTrail, audit_record
from services.pseudonyms import Pseudonyms

log = structlog.get_logger(__name__)
# LOYALTY_LOG_LEVEL must not hide these lines, because only they have the records while Kafka is not available.
logging.getLogger(__name__).setLevel(logging.INFO)

_EXPORTS = frozenset(
    {
        "/v1/customers/{card}/entries",
        "/v1/customers/{card}/statement",
        "/v1/dead-letters",
        "/v1/invoices/{invoice:path}/customers",
        "/v1/stores/{store}/all",
        "/v1/stores/{store}/keys",
        "/v1/stores/{store}/range",
        "/v1/stores/{store}/local/all",
        "/v1/stores/{store}/local/keys",
        "/v1/stores/{store}/local/range",
    }
)
"""A route can say in ``scope["is_export"]`` that its response has no data of customers."""

_REFUSED = HTTPStatus.BAD_REQUEST
_COMMAND_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_READS = frozenset({"GET", "HEAD"})
_READS_BY_POST = ("/v1/simulate", "/v1/stores/", "/v1/programmes/check")


class RequestAudit:
    """Writes one record and one log line for each command, for each export, and for each refusal of them.

    An export is a read of a customer's entries, of many entries of a store, or of dead letters. Only the instance that
    received the request from the caller writes the record.

    Args:
        url: of this instance.
    """

    def __init__(self, url: str, pseudonyms: Pseudonyms, trail: AuditTrail) -> None:
        self._url = url
        self._pseudonyms = pseudonyms
        self._trail = trail

    def note(self, caller: Caller, scope: Scope, status: int) -> None:
        """Write the record of a request after its response, if the request belongs to the audit trail."""
        route = getattr(scope.get("route"), "path", "")
        is_read = scope["method"] in _READS or scope["path"].startswith(_READS_BY_POST)
        if caller.is_forwarded or not route or (is_read and not scope.get("is_export", route in _EXPORTS)):
            return
        texts = scope.get("path_params", {})
        # The path of a refused request can contain anything, even a card in the wrong place. So keep only command ids.
        details = {name: text for name, text in texts.items() if status < _REFUSED or _COMMAND_ID.fullmatch(text)}
        details = {**details, **scope.get("audit_details", {})}
        for name in ("card", "invoice"):  # A user can enter a card in place of an invoice number.
            details.pop(name, None)
        customer = self._pseudonyms.of(texts["card"]) if "card" in texts else ""
        action = f"{scope['method']} {route}"
        record = audit_record(caller.name, action, f"{status:d}", self._url, customer=customer, details=details)
        # Log first, because Kafka may not get the record.
        log.info(
            "audit",
            id=record["EventID"],
            actor=caller.name,
            action=action,
            status=int(status),
            **({"customer": customer} if customer else {}),
            **details,
        )
        self._trail.write(record)

    def close(self) -> None:
        """Send the waiting records and stop."""
        self._trail.close()
