"""The problems of commands: a request that cannot be executed, a refusal, and a decision that is not known yet."""

from collections.abc import Mapping
from typing import Any

from api.http.problems import BadRequest, Conflict, NotFound, Unavailable, Unprocessable

_EXAMPLE_COMMAND = "0b9f0e5c-7a53-5f0d-8f43-5ffb1a0c9a3e"


class IdempotencyKeyMissing(BadRequest, code="idempotency-key-missing", title="Idempotency-Key is missing"):
    """A command needs the header Idempotency-Key with 1 to 255 printable ASCII characters. Use a new key for each
    command, and the same key to repeat a command.
    """


class IdempotencyKeyReused(
    Unprocessable, code="idempotency-key-reused", title="The Idempotency-Key belongs to another request"
):
    """A command with the same key and another body was sent to this path before. Use a new key for a new command."""


class CommandInFlight(
    Conflict,
    code="command-in-flight",
    title="The command is in progress",
    example={"retry_after": 1, "headers": {"Location": f"/v1/commands/{_EXAMPLE_COMMAND}"}},
):
    """The command has no decision yet. Repeat the request later with the same Idempotency-Key: the command is executed
    once. If the response has a Location, you can also read the state of the command there.
    """


class CommandErased(Conflict, code="command-erased", title="The customer of the command was erased"):
    """The command was decided before the customer was erased. It does not run again. A new command needs a new key."""


class CommandNotVisible(Unavailable, code="command-not-visible", title="The command is not visible yet"):
    """The command was sent, and this instance does not show it yet. Repeat the request with the same Idempotency-Key:
    the command is executed once.
    """


class KafkaUnavailable(Unavailable, code="kafka-unavailable", title="Kafka is unavailable"):
    """Kafka did not confirm the command. Repeat the request with the same Idempotency-Key: the command is executed
    once.
    """


class TooManyCommands(Unavailable, code="too-many-commands", title="Too many commands at the same time"):
    """This instance has reached its limit of commands that wait for a decision, or the part of it that one caller may
    use. Repeat the request later with the same Idempotency-Key: the command is executed once.
    """


class UnknownCommand(NotFound, code="unknown-command", title="No such command"):
    """No command with this id was sent in the last 20 days, or its customer is erased. Check the id."""


class UnknownRedemption(NotFound, code="unknown-redemption", title="No such redemption"):
    """No redemption with this id was made in the last 20 days, or its customer is erased. Use the RedemptionID that the
    reservation returned.
    """


class RedemptionPending(Conflict, code="redemption-pending", title="The redemption is not decided yet", retry_after=1):
    """The reservation has no decision yet, and can still be refused. Nothing was changed. Repeat the request later."""


class UnknownTarget(NotFound, code="unknown-customer", title="No such customer"):
    """The other card of the request (the member into) has no balance. Check its number. If it is a new card, request a
    replacement instead.
    """


class CardInUse(Conflict, code="card-in-use", title="The new card has an account"):
    """The new card already has an account. Take another card, or merge the accounts."""


class CommandRefused(Conflict, title="The command was refused"):
    """The programme does not allow this command. Reason has the code."""

    # The code of a subclass is the reason of the decision.
    def __init_subclass__(cls, **declared: Any) -> None:
        command = {"CommandID": _EXAMPLE_COMMAND, "Status": "refused", "Kind": "reserve"}
        example = {**command, "Reason": declared["code"], "AvailableLoyaltyPoints": "9.98", "AccountSequence": 12}
        super().__init_subclass__(**declared, example=example)

    @staticmethod
    def from_decision(decision: Mapping[str, Any]) -> "CommandRefused":
        """The problem of a decision that refuses a command. Its code is the reason of the decision."""
        # Programs log errors, so no error may contain a card.
        members = {name: value for name, value in decision.items() if value is not None and name != "CustomerCardNo"}
        refusal = _REFUSALS.get(decision["Reason"], CommandRefused)(**members)
        refusal.code = decision["Reason"]
        refusal.headers = {"Location": f"/v1/commands/{decision['CommandID']}"}
        return refusal


class InsufficientPoints(CommandRefused, code="insufficient-points", title="Not enough points"):
    """The command needs more points than the customer can spend now. Use at most AvailableLoyaltyPoints."""


class RedemptionNotOpen(CommandRefused, code="unknown-redemption", title="The redemption is not open"):
    """The redemption was captured or voided before, or it has lapsed. Before you start a new redemption, check whether
    this one was captured: repeat its capture with the Idempotency-Key of that capture. Without the key, read the
    entries: an entry lapsed with the RedemptionID as EventID says that it has lapsed. An entry redeemed names its
    capture, and not its redemption.
    """


class TooManyPoints(CommandRefused, code="too-many-points", title="Too many points"):
    """The total of the customer would be outside of the permitted range. Use a smaller adjustment."""


class TooManyRedemptions(CommandRefused, code="too-many-redemptions", title="Too many open redemptions"):
    """The customer has 1,000 open redemptions or more. Capture or void open redemptions, or wait until they lapse. Then
    send the command with a new Idempotency-Key.
    """


class SameCustomer(CommandRefused, code="same-customer", title="Both cards are the same"):
    """The command needs two different cards. Correct one of them."""


class CardBlocked(CommandRefused, code="card-blocked", title="The card is blocked"):
    """Points of a blocked card cannot be redeemed or transferred. The helpdesk can unblock it."""


class CardReplaced(CommandRefused, code="card-replaced", title="The card was replaced"):
    """The account has moved to another card. Read the balance of the old card: the response names the new card. Send
    the command for the new card.
    """


class TargetReplaced(CardReplaced, code="card-replaced", title="The card was replaced"):
    """The other card of the request was replaced, so its account now belongs to newCard. A replaced card cannot get an
    account again. Use another card.
    """


_REFUSALS = {
    each.code: each
    for each in (
        CardBlocked,
        CardReplaced,
        InsufficientPoints,
        RedemptionNotOpen,
        SameCustomer,
        TooManyPoints,
        TooManyRedemptions,
    )
}
