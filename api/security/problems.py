"""The problems of callers that the API does not know, or that ask for more than they may."""

from http import HTTPStatus

from api.http.problems import Problem, Unavailable


class Unauthenticated(
    Problem,
    status=HTTPStatus.UNAUTHORIZED,
    code="unauthenticated",
    title="The caller is not known",
    example={"reason": "The request has no credentials"},
):
    """{reason}. Send the header Authorization: Bearer with a valid API key or token."""

    def __init__(self, reason: str) -> None:
        super().__init__(headers={"WWW-Authenticate": "Bearer"}, reason=reason)


class Forbidden(Problem, status=HTTPStatus.FORBIDDEN):
    """The caller is known and may not do this."""


class ScopeMissing(
    Forbidden, code="scope-missing", title="A scope is missing", example={"scopes": ["balance:read", "points:redeem"]}
):
    """The request needs one of the scopes {scopes}. Use other credentials."""


class NotYours(Forbidden, code="not-yours", title="The object belongs to another caller"):
    """The credentials are limited to one card or to some shops, and the request asks for others. Use other
    credentials.
    """


class ForwardRefused(Forbidden, code="forward-refused", title="The request does not come from an instance"):
    """Only instances send the headers Loyalty-Forwarded-To and Loyalty-Hop, with a signature of the group that is valid
    once. Send the request without them. Instances need the same LOYALTY_TOPIC_PREFIX, the same secret
    (LOYALTY_INSTANCE_SECRET_FILE) and correct clocks.
    """


class ForeignHost(Forbidden, code="foreign-host", title="The request is for another host"):
    """Without credentials this API answers requests to localhost and to loopback addresses only. Use such an address,
    or set LOYALTY_API_ACCESS=authenticated.
    """


class TooManyRequests(
    Problem, status=HTTPStatus.TOO_MANY_REQUESTS, code="too-many-requests", title="Too many requests", retry_after=1
):
    """The caller sends more requests than its limits allow. Repeat the request later."""


class KeysUnavailable(Unavailable, code="keys-unavailable", title="Credentials cannot be checked now"):
    """This instance has not read the API keys, or the keys of the token issuer, yet. Repeat the request later."""
