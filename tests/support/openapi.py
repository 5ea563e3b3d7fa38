"""Checks responses against the OpenAPI document with Schemathesis."""

from functools import cache
from http import HTTPStatus
from typing import Any
from unittest.mock import MagicMock

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import negative_data_rejection, not_a_server_error, positive_data_acceptance
from schemathesis.schemas import BaseSchema

from api.app import create_app
from tests.support.examples import requests


def schema_of(app: FastAPI) -> BaseSchema:
    """The operations of an app without credentials. All apps share one document, which takes a third of a second."""
    app.openapi_schema = _document()
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@cache
def _document() -> dict[str, Any]:
    dependencies = MagicMock()
    dependencies.security = None
    return create_app(dependencies).openapi()


def settings_of_requests(max_examples: int, least: int = 5) -> settings:
    """The settings of Hypothesis for a test with generated requests."""
    return settings(max_examples=requests(max_examples, least), database=None, suppress_health_check=list(HealthCheck))


def assert_responses_are_documented(operation: Any, mode: GenerationMode, max_examples: int) -> None:
    """Send generated requests. Fails on status 500, and on a response that the document does not describe.

    The API may refuse a request that is valid in the schema: no schema can say whether a cursor is good, a command
    exists, or points differ from 0. It may refuse an invalid request with 413, which Schemathesis does not expect.
    """

    @settings_of_requests(max_examples)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call()
        assert HTTPStatus.INTERNAL_SERVER_ERROR != response.status_code
        excluded = [not_a_server_error, positive_data_acceptance]
        if response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            excluded.append(negative_data_rejection)
        case.validate_response(response, excluded_checks=excluded)

    check()
