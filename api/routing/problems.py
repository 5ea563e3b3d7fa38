"""The problems of routing: the object does not exist, or no copy of its partition can answer now."""

from http import HTTPStatus

from api.http.problems import BadRequest, NotFound, Problem, TooManyConnections, Unavailable
from services.state_stores.contract import StoreCorruptError, StoreError
from services.state_stores.store import NotServingError


class UnknownCustomer(NotFound, code="unknown-customer", title="No such customer"):
    """This card has no balance. A card gets one with its first points, for example from a PRIME invoice. Check the card
    number, or try again later.
    """


class CardMoved(
    Problem, status=HTTPStatus.GONE, code="card-replaced", title="The card was replaced", example={"newCard": "4711"}
):
    """The account of this card has moved to another card: the card was replaced, or its account was merged. If the
    problem has the member newCard, ask for that card.
    """


class UnknownStore(
    NotFound, code="unknown-store", title="No such store", example={"stores": ["customer-balances", "top-customers"]}
):
    """There is no store with this name. Use one of {stores}."""


class UnknownKey(NotFound, code="unknown-key", title="No such key"):
    """The store has no entry with this key now. Check the key, or read again later."""


class NotWindowed(
    BadRequest, code="not-windowed", title="The store has no windows", example={"store": "customer-balances"}
):
    """The store {store} has one entry for each key. Read it by /keys."""


class Starting(Unavailable, code="starting", title="The instance is starting", example={"partition": 2}):
    """This instance has not opened partition {partition} yet. Repeat the request later. /readyz shows the progress."""


class Restoring(
    Unavailable, code="restoring", title="The store is being restored", example={"partition": 2, "restoredShare": 0.4}
):
    """This instance restores partition {partition} from its changelog, and serves it only after that. Repeat the
    request later.
    """


class Stopping(Unavailable, code="stopping", title="The store is closed"):
    """This instance stops, or the partition has moved to another one. Repeat the request."""


class Rebalancing(Unavailable, code="rebalancing", title="The partition has no owner now", example={"partition": 2}):
    """No instance can confirm now that it owns partition {partition}: the partition moves to another instance, or Kafka
    does not respond. Repeat the request later.
    """


class TooStale(Unavailable, code="too-stale", title="No copy is fresh enough", example={"maxLag": 0, "lag": 7}):
    """The owner does not respond, and no copy is within maxLag. The lag of the best copy, in records, is {lag}. maxLag
    is {maxLag}. Repeat the request later, or with a larger maxLag.
    """


class SequenceNotReached(
    Unavailable,
    code="sequence-not-reached",
    title="The required sequence is not there yet",
    example={"minSequence": 7, "currentSequence": 6},
):
    """Sequence number {minSequence} did not arrive within the timeout. The key has {currentSequence} (0: there is no
    entry). If the request has an openedTime, only sequence numbers of the account with this openedTime count. Repeat
    the request later, or with a longer timeout.
    """


class OwnerInDoubt(
    Unavailable, code="owner-in-doubt", title="The owner cannot see all earlier commands", example={"partition": 2}
):
    """The owner of partition {partition} has no recent contact with Kafka, or has not read all records. So it does not
    know whether an earlier request sent the command. Repeat the request later with the same Idempotency-Key: the
    command is executed once.
    """


class Misdirected(Problem, status=HTTPStatus.MISDIRECTED_REQUEST):
    """Another instance holds the partition."""


class NotHere(Misdirected, code="not-here", title="The partition is on another instance", example={"partition": 2}):
    """This instance does not hold partition {partition}. Use the path without /local: it finds the right instance."""


class NotTheOwner(Misdirected, code="not-the-owner", title="The partition has moved", example={"partition": 2}):
    """A peer sent this request to the owner of partition {partition}, and this instance is not the owner. Find the
    owner again.
    """


class OwnerUnreachable(
    Problem,
    status=HTTPStatus.BAD_GATEWAY,
    code="owner-unreachable",
    title="No instance with the partition responds",
    retry_after=1,
    example={"partition": 2, "tried": ["http://10.0.0.7:8080"]},
):
    """No instance with partition {partition} accepted the request: {tried}. Repeat the request later."""


class OwnerTimeout(OwnerUnreachable, status=HTTPStatus.GATEWAY_TIMEOUT, code="owner-timeout"):
    """The instances with partition {partition} did not respond in time: {tried}. Repeat the request later."""


COPY_PROBLEMS = (Starting, Restoring, Stopping)
"""The local copy of the partition cannot serve the read."""

FORWARDING_PROBLEMS = (Rebalancing, OwnerUnreachable, OwnerTimeout)
"""The request cannot be forwarded: no owner is known, or no instance responds."""

ANOTHER_MAY_ANSWER = frozenset(each.code for each in (NotTheOwner, *COPY_PROBLEMS, TooStale, TooManyConnections))
"""The codes of the problems for which another instance may have an answer."""


def from_store_error(error: NotServingError | StoreError, partition: int) -> Problem:
    """The problem of a read that the local copy of a partition cannot serve."""
    if isinstance(error, StoreError):
        damaged = isinstance(error, StoreCorruptError)
        return Restoring(partition=partition, restoredShare=0.0) if damaged else Stopping()
    if error.task is None:
        return Starting(partition=partition)
    return Restoring(partition=partition, restoredShare=round(error.task.progress.restored_share, 4))
