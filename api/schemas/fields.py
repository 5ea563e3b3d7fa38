"""Types of fields that several requests and responses have."""

import re
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

LONGEST_CARD = 128

CAMEL_CASE = ConfigDict(alias_generator=to_camel, populate_by_name=True)

EXACT = "An exact number with two decimals, as a string. Most clients would read a JSON number as a binary fraction."

PointsText = Annotated[str, Field(pattern=r"^-?[0-9]+\.[0-9]{2}$", examples=["417.04"])]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T09:30:00.000Z"])]
"""ISO 8601 in UTC."""


def spelled(pattern: str, reason: str) -> BeforeValidator:
    """Checks a text, with a message for people. The field keeps its pattern for the OpenAPI document.

    The check must follow the pattern. Otherwise the document loses the pattern.
    """

    def check(text: object) -> object:
        if not isinstance(text, str) or not re.fullmatch(pattern, text):
            raise ValueError(reason)
        return text

    return BeforeValidator(check)
