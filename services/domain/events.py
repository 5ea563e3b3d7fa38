"""Events that change an account: invoices from tills, and commands. Times are milliseconds since the epoch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from services.domain.returns import InvoiceKind, kind_of
from services.domain.validation import LONGEST_TEXT

if TYPE_CHECKING:
    from services.domain.account.model import Account


@dataclass(frozen=True, slots=True)
class Line:
    """The part of a line item that points depend on.

    Attributes:
        item_code: empty if the till did not send it.
        value: the money of the whole line, negative for a returned item of an exchange.
        takes_back_discount: whether the line takes back a discount of the original. Its value is positive then.
    """

    item_code: str
    value: Decimal
    takes_back_discount: bool = False

    @property
    def is_returned(self) -> bool:
        """Whether the line is returned if its invoice is an exchange."""
        return self.value < 0 or self.takes_back_discount


@dataclass(frozen=True, slots=True)
class Purchase:
    """The part of an invoice that points depend on. The invoice can be a sale, a return or an exchange.

    Its record is named Purchase too, and the archive keeps records of this name.

    Attributes:
        append_time: the time at which the broker appended the record.
        created_time: the clock of the till; None if the till did not send it.
        total_amount: in units of money. It is the decimal with the shortest notation of the double on the wire.
        taxable_amount: the amount before tax; None if the till did not send it, and in a half of an exchange.
        redirect_id: the id of the command that brought the invoice here from a replaced card; empty without one. The
            append time is then that of the command.
    """

    append_time: int
    invoice_number: str
    total_amount: Decimal
    store_id: str = ""
    customer_type: str = "PRIME"
    created_time: int | None = None
    original_invoice_number: str | None = None
    lines: Sequence[Line] = ()
    taxable_amount: Decimal | None = None
    redirect_id: str = ""

    @property
    def event_id(self) -> str:
        return self.redirect_id or self.invoice_number

    @property
    def invoice_kind(self) -> InvoiceKind:
        returned = [line.is_returned for line in self.lines if line.value]
        return kind_of(self.total_amount, self.original_invoice_number, returned)


def halves(purchase: Purchase) -> tuple[Purchase | None, Purchase | None]:
    """Returns the sold part and the returned part of an invoice; None for a part that the invoice does not have.

    The amount of each half of an exchange is the sum of its lines.
    """
    kind = purchase.invoice_kind
    if kind is not InvoiceKind.EXCHANGE:
        return (purchase, None) if kind is InvoiceKind.SALE else (None, purchase)
    sold = tuple(line for line in purchase.lines if line.value and not line.is_returned)
    returned = tuple(line for line in purchase.lines if line.is_returned)
    return (
        replace(purchase, total_amount=_total(sold), original_invoice_number=None, lines=sold, taxable_amount=None),
        replace(purchase, total_amount=_total(returned), lines=returned, taxable_amount=None),
    )


def _total(lines: Sequence[Line]) -> Decimal:
    return sum((line.value for line in lines), Decimal(0))


BACK = "/back"
"""The end of the id of a command that sends points, or a part of an account, back to the other card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The fields of all commands.

    Attributes:
        append_time: the time at which the broker appended the record.
        command_id: an account decides only one command of an id.
        request_hash: identifies the content of the request. The decision repeats it.
        origin_id: the id of the command of the caller, if a replaced card has forwarded it here under another id.
    """

    append_time: int
    command_id: str
    request_hash: str = ""
    reason: str = ""
    actor: str = ""
    origin_id: str = ""

    @property
    def event_id(self) -> str:
        return self.command_id

    @property
    def decision_id(self) -> str:
        """The id by which the account remembers the command, and by which the caller finds its decision."""
        return self.origin_id or self.command_id

    @property
    def is_sent_back(self) -> bool:
        """Whether the command brings back what the other account could not take."""
        return self.command_id.endswith(BACK)

    @property
    def kind(self) -> str:
        """The kind in the record LoyaltyCommand."""
        return type(self).__name__.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Command):
    """Sets points (hundredths, above 0) aside for a redemption. The id of the redemption is the id of this command.

    Attributes:
        was_accepted: whether a recorded entry shows that the account accepted the command. The limit of open
            reservations then does not apply, because earlier versions had no such limit. No record has this field.
    """

    points: int
    was_accepted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Command):
    """Spends the reserved points."""

    redemption_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Void(Command):
    """Frees the reserved points."""

    redemption_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjust(Command):
    """Corrects the points by hand: hundredths, not 0. ``allow_negative`` permits more than the available points."""

    points: int
    allow_negative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Command):
    """Sends points (hundredths, above 0) to another card."""

    points: int
    counterparty: str


@dataclass(frozen=True, slots=True)
class SentLot:
    """Points of a transfer: hundredths, and the time at which they expire (0: never)."""

    points: int
    expires_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Command):
    """Adds the points of a transfer. If the total would be too large, they go back to the counterparty."""

    counterparty: str
    lots: tuple[SentLot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Command):
    """A return with no card or with another card. The index of invoices sends it to the account that bought.

    Attributes:
        invoice: the return, or the exchange, with its own append time. The account applies only the returned half.
    """

    invoice: Purchase


@dataclass(frozen=True, slots=True, kw_only=True)
class Import(Command):
    """Adds points that the customer had in another system. An account accepts each command id only once, for ever."""

    lots: tuple[SentLot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Command):
    """Blocks the card, for example a lost one: its points cannot be redeemed or transferred until it is unblocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unblock(Command):
    """Ends the block of the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase(Command):
    """Ends the account and removes the personal data, also of the other cards of the customer.

    Attributes:
        counterparty: the other card of the customer whose erasure caused this one; empty if a caller asked for it.
    """

    counterparty: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(Command):
    """Moves everything of the account to another card, for example because this one is lost."""

    counterparty: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Replace):
    """Moves everything of the account into another account of the same customer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absorb(Command):
    """Adds a part of an account that has moved here.

    Attributes:
        counterparty: the card that the part comes from.
        part: points, reservations, purchases, returns and tier. It has no card and no commands.
    """

    counterparty: str
    part: "Account"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable(Command):
    """An ``Absorb`` whose part this version cannot read. The account refuses it.

    Replaced cards forward it like an ``Absorb``. If cards have replaced each other in a circle, it ends the circle like
    an ``Absorb`` (``account.moves.pass_on``).

    Attributes:
        counterparty: the card that the part comes from; empty if that is not readable either.
        payload: the unchanged bytes of the part.
    """

    counterparty: str = ""
    payload: bytes = b""


def derived_id(source: str, suffix: str) -> str:
    """Returns the id of a command that another event causes: the id of the event with a suffix.

    If this would be too long for a command id, a hash replaces the id of the event.
    """
    is_short = len(source) + len(suffix) <= LONGEST_TEXT
    return f"{source if is_short else hashlib.sha256(source.encode()).hexdigest()}{suffix}"


Event = (
    Purchase
    | Reserve
    | Capture
    | Void
    | Adjust
    | Transfer
    | Receive
    | Forward
    | Import
    | Block
    | Unblock
    | Replace
    | Absorb
    | Erase
    | Unreadable
)
