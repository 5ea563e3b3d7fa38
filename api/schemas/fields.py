"""Types of fields, and configurations of models, that several requests and responses use."""

import re
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

LONGEST_CARD = 128

CAMEL_CASE = ConfigDict(alias_generator=to_camel, populate_by_name=True)
CAMEL_CASE_BODY = ConfigDict(alias_generator=to_camel, extra="forbid")
"""For bodies of requests. A misspelled member is an error, and is not ignored."""

EXACT = "An exact number with two decimals, as a string. Most clients would read a JSON number as a binary fraction."

PointsText = Annotated[str, Field(pattern=r"^-?[0-9]+\.[0-9]{2}$", examples=["417.04"])]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T09:30:00.000Z"])]
"""ISO 8601 in UTC."""


def must_match(pattern: str, reason: str) -> BeforeValidator:
    """A check of a text whose error is ``reason``. Pydantic's own error would be the regular expression.

    In an annotation, place it after the ``Field`` with the pattern, or after the ``Query`` with the limits. Otherwise
    the OpenAPI document loses them.
    """
    matches = re.compile(pattern).fullmatch

    def check(text: object) -> object:
        if not isinstance(text, str) or not matches(text):
            raise ValueError(reason)
        return text

    return BeforeValidator(check)
