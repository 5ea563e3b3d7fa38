"""What happens to an account: purchases from tills, commands from everybody else. Times are ms since the epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Line:
    """A line item, as far as points depend on it.

    Attributes:
        value: of the whole line, in units of money.
    """

    item_code: str
    value: Decimal


@dataclass(frozen=True, slots=True)
class Purchase:
    """An invoice, as far as points depend on it; negative or with ``original_invoice_number``: a return.

    Attributes:
        append_time: when the broker appended it.
        created_time: the till's clock; None where the till sent none.
        total_amount: in units of money, the decimal that the double's shortest notation shows.
    """

    append_time: int
    invoice_number: str
    total_amount: Decimal
    store_id: str = ""
    customer_type: str = "PRIME"
    created_time: int | None = None
    original_invoice_number: str | None = None
    lines: Sequence[Line] = ()

    @property
    def event_id(self) -> str:
        return self.invoice_number

    @property
    def is_return(self) -> bool:
        return self.total_amount < 0 or self.original_invoice_number is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What every command has.

    Attributes:
        append_time: when the broker appended it.
        command_id: known by it; a command of an id that has been decided is not decided again.
        request_hash: of the request behind it; handed on to the decision.
    """

    append_time: int
    command_id: str
    request_hash: str = ""
    reason: str = ""
    actor: str = ""

    @property
    def event_id(self) -> str:
        return self.command_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Command):
    """Set points (hundredths, above 0) aside for a redemption, which is known by this command's id."""

    points: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Command):
    """Spend what is reserved."""

    redemption_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Void(Command):
    """Free what is reserved."""

    redemption_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjust(Command):
    """Correct the points by hand: hundredths, not 0; ``allow_negative``: also below what is available."""

    points: int
    allow_negative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Command):
    """Send points (hundredths, above 0) to another card."""

    points: int
    counterparty: str


@dataclass(frozen=True, slots=True)
class SentLot:
    """Points on their way: hundredths, and when they expire (0: never)."""

    points: int
    expires_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Command):
    """The other end of a transfer. It is never refused: the points have left the other account."""

    counterparty: str
    lots: tuple[SentLot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase(Command):
    """Forget the customer."""


Event = Purchase | Reserve | Capture | Void | Adjust | Transfer | Receive | Erase
