"""The commands that the helpdesk can send, with the fields of their forms."""

from collections.abc import Mapping
from typing import NamedTuple

from services.api_keys.keys import Scope


class Field(NamedTuple):
    """A field of a form.

    Attributes:
        name: the member of the request body.
        pattern: a regular expression that the browser checks. The label describes it.
    """

    name: str
    label: str
    required: bool = True
    pattern: str = ""


class Action(NamedTuple):
    """A command that the helpdesk can send.

    Attributes:
        path: a template for the card and the redemption.
        is_final: whether the command cannot be undone.
    """

    label: str
    explanation: str
    scope: Scope
    path: str
    fields: tuple[Field, ...] = ()
    method: str = "POST"
    is_final: bool = False


_ACTOR, _REASON, _REDEMPTION = Field("actor", "Your name"), Field("reason", "Reason"), Field("redemption", "Redemption")
_POINTS = r"[0-9]{1,10}([.][0-9]{1,2})?"
_WHO_AND_WHY = (_REASON, _ACTOR)
_CARD, _RESERVATION = "/v1/customers/{card}", "/v1/redemptions/{redemption}"
ACTIONS: Mapping[str, Action] = {
    "adjust": Action(
        "Adjust",
        "Add points, or take them.",
        Scope.POINTS_ADJUST,
        f"{_CARD}/adjustments",
        (Field("points", "Points, for example 10.00 or -5.00", pattern=f"-?{_POINTS}"), *_WHO_AND_WHY),
    ),
    "redeem": Action(
        "Redeem",
        "Reserve points. Then capture the redemption, or make it void.",
        Scope.POINTS_REDEEM,
        f"{_CARD}/redemptions",
        (Field("points", "Points, for example 10.00", pattern=_POINTS), _REASON._replace(required=False)),
    ),
    "capture": Action(
        "Capture", "Spend the points of a redemption.", Scope.POINTS_REDEEM, f"{_RESERVATION}/capture", (_REDEMPTION,)
    ),
    "void": Action(
        "Void", "Give back the points of a redemption.", Scope.POINTS_REDEEM, f"{_RESERVATION}/void", (_REDEMPTION,)
    ),
    "block": Action(
        "Block", "Stop redemptions and transfers from the card.", Scope.CARD_MANAGE, f"{_CARD}/block", _WHO_AND_WHY
    ),
    "unblock": Action("Unblock", "End the block of the card.", Scope.CARD_MANAGE, f"{_CARD}/unblock", _WHO_AND_WHY),
    "replace": Action(
        "Replace",
        "Move everything to a new card that has no account.",
        Scope.CARD_MANAGE,
        f"{_CARD}/replacement",
        (Field("newCard", "New card number"), *_WHO_AND_WHY),
        is_final=True,
    ),
    "merge": Action(
        "Merge",
        "Move everything into the account of another card of the same customer. This card ends.",
        Scope.CARD_MANAGE,
        f"{_CARD}/merge",
        (Field("into", "Card number that stays"), *_WHO_AND_WHY),
        is_final=True,
    ),
    "erase": Action(
        "Erase",
        "Forget the customer: points, reservations and decisions. Nobody can undo it.",
        Scope.CUSTOMER_ERASE,
        _CARD,
        method="DELETE",
        is_final=True,
    ),
}
