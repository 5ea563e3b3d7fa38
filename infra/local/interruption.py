"""Ctrl-C and SIGTERM: a command cleans up and ends."""

import signal
from types import FrameType
from typing import Never


class InterruptedBySignalError(BaseException):
    """A signal asks the command to end. It is not an Exception, so error handlers do not catch it.

    KeyboardInterrupt does not work: Python ends by SIGINT and ignores the exit status if it was raised within ``exec``,
    which dataclasses use.
    """


def interrupt_on_signals() -> None:
    """Let SIGINT and SIGTERM raise InterruptedBySignalError in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM until the process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(_signal_number: int, _frame: FrameType | None) -> Never:
    raise InterruptedBySignalError
