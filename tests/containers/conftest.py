"""Tests of the images and of what Compose makes of them: they need an engine, so they run where it is asked for."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _asked_for(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--containers"):
        pytest.skip("needs --containers (make test-containers)")
