"""The running stack. Consecutive injections share it if their faults need the same stack."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.faults.environment import Environment
from tests.faults.scenario import Scenario


class Stacks:
    """Starts stacks, and stops them at the end of the block.

    Args:
        keep: keep the data and the logs of each stack.
        on_directory: is called with each directory that stays.
    """

    def __init__(self, *, keep: bool = False, on_directory: Callable[[Path], None] = lambda _: None) -> None:
        self._keep, self._on_directory = keep, on_directory
        self._resources = ExitStack()
        self._environment: Environment | None = None
        self._start: Callable[..., Any] | None = None
        self._injections = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def stack_for(self, scenario: Scenario[Any]) -> Environment:
        """The running stack, or a new one if the fault needs another one or if this one had enough injections."""
        if self._environment is None or not self.is_usable_for(scenario):
            self.discard()
            self._environment = self._resources.enter_context(scenario.stack(self._directory()))
            self._start = scenario.stack
        self._injections += 1
        return self._environment

    def is_usable_for(self, scenario: Scenario[Any]) -> bool:
        return scenario.stack is self._start and self._injections < scenario.most

    def discard(self) -> None:
        """Stop the stack and delete its directory. The next fault gets a new stack."""
        self._environment, self._start, self._injections = None, None, 0
        self._resources.close()

    def _directory(self) -> Path:
        directory = Path(tempfile.mkdtemp(prefix="faults-"))
        if self._keep:
            self._on_directory(directory)
        else:
            self._resources.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory
