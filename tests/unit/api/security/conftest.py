"""A group of instances with callers, and one instance of it."""

from pathlib import Path

import pytest

from schemas.topics import LOYALTY_DECISIONS
from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup


@pytest.fixture
def secured(tmp_path: Path) -> SecuredGroup:
    return SecuredGroup(tmp_path)


@pytest.fixture
def instance(secured: SecuredGroup) -> Instance:
    return secured.instance()


def with_marks(instance: Instance) -> Instance:
    """The instance shows the mark of a command at once, as a materialiser does."""
    instance.command_log.on_mark = lambda mark: instance.write(LOYALTY_DECISIONS, mark["CommandID"], mark)
    return instance
