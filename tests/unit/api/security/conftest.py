"""A group of instances with callers, and one instance of it."""

from pathlib import Path

import pytest

from tests.support.clusters import Instance
from tests.support.secured import SecuredGroup


@pytest.fixture
def secured(tmp_path: Path) -> SecuredGroup:
    return SecuredGroup(tmp_path)


@pytest.fixture
def instance(secured: SecuredGroup) -> Instance:
    return secured.instance()
