"""The caller of a request, and its rights. Nothing here does input or output."""

from dataclasses import dataclass

from api.security.problems import NotYours, ScopeMissing
from services.api_keys.keys import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: the actor of its commands. Empty without credentials: then the body of a command names the actor.
        store_ids: the shops that the caller is limited to. None: no limit.
        card: the card that the caller is limited to. None: no limit.
        is_forwarded: whether another instance has forwarded the request. That instance has counted it.
    """

    name: str
    scopes: frozenset[Scope]
    store_ids: frozenset[str] | None = None
    card: str | None = None
    is_forwarded: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether the caller is limited to some shops or to one card."""
        return self.store_ids is not None or self.card is not None

    def require(self, *scopes: Scope) -> None:
        """Raise ScopeMissing unless the caller has one of the scopes."""
        if self.scopes.isdisjoint(scopes):
            raise ScopeMissing(scopes=[scope.value for scope in scopes])

    def require_card(self, card: str) -> None:
        """Raise NotYours if the caller is limited to another card."""
        if self.card not in (None, card):
            raise NotYours

    def require_store(self, store_id: str) -> None:
        """Raise NotYours if the caller is limited to other shops."""
        if self.store_ids is not None and store_id not in self.store_ids:
            raise NotYours


EVERYBODY = Caller("", frozenset(Scope))
"""The caller of each request if the API needs no credentials."""


UNSIGNED_INSTANCE = Caller("instance:unsigned", frozenset({Scope.OPERATE}), is_forwarded=True)
"""An instance of release 0.1, which reads the reports of its peers without credentials."""


def instance(url: str) -> Caller:
    """The caller of a request that an instance sends to a peer for itself."""
    return Caller(f"instance:{url}", frozenset(Scope))
