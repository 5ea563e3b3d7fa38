"""Tests of the images and of the compose files. They need a container engine, so they run only on request."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _only_on_request(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--containers"):
        pytest.skip("needs --containers (make test-containers)")
