"""Ctrl-C and SIGTERM, the same to a command: it cleans up and ends."""

import signal
from types import FrameType
from typing import Never


class InterruptedBySignalError(BaseException):
    """Someone wants the command to end; no error of its own, so nothing that handles errors takes it for one.

    Not KeyboardInterrupt: where that was raised within an ``exec`` (as in an import that makes a dataclass), Python
    remembers it as unhandled and dies of SIGINT at the end, whatever exit status was asked for.
    """


def interrupt_on_signals() -> None:
    """From now on SIGINT and SIGTERM raise InterruptedBySignalError in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_signal_number: int, _frame: FrameType | None) -> Never:
    raise InterruptedBySignalError
