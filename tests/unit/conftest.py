"""Fixtures of all unit tests."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of async tests and fixtures."""
    return "asyncio"
