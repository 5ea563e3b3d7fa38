"""Ctrl-C and SIGTERM: a command cleans up and ends."""

import signal
import sys
from types import FrameType
from typing import Never

_RETRY_SECONDS = 0.01


class InterruptedBySignalError(BaseException):
    """A signal asks the command to end. It is not an Exception, so error handlers do not catch it.

    KeyboardInterrupt is not suitable: if it is raised within ``exec``, which dataclasses use, Python ends by SIGINT and
    ignores the exit status.
    """


def interrupt_on_signals() -> None:
    """Let SIGINT and SIGTERM raise InterruptedBySignalError in the main thread.

    A signal can arrive in a destructor or in the garbage collector. There, Python ignores exceptions and only calls
    ``sys.unraisablehook``. The hook of this module starts a timer. Its SIGALRM raises the exception again.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupt)
    sys.unraisablehook = _raise_again


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM until the process ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(_signal_number: int, _frame: FrameType | None) -> Never:
    raise InterruptedBySignalError


def _raise_again(ignored: "sys.UnraisableHookArgs") -> None:
    if isinstance(ignored.exc_value, InterruptedBySignalError):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
    else:
        sys.__unraisablehook__(ignored)
