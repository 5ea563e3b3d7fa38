"""Parameters that several routes have."""

from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AfterValidator

LONGEST_CARD = 128

LONGEST_TIMEOUT_SECONDS = 30
"""Shorter than the idle limits of common proxies (60 s), so that the answer is ours."""

LARGEST_SEQUENCE = 2**63 - 1

MinSequence = Annotated[
    int,
    Query(
        alias="minSequence",
        ge=0,
        le=LARGEST_SEQUENCE,
        description="Answer only with this sequence or a later one: to read one's own writes.",
    ),
]
OpenedTime = Annotated[
    int,
    Query(
        alias="openedTime",
        ge=0,
        le=LARGEST_SEQUENCE,
        description="Of the account that minSequence counts, milliseconds since the epoch: one that was opened later "
        "will do with any sequence. Default: of any account.",
    ),
]
Timeout = Annotated[
    float,
    Query(
        alias="timeout",
        ge=0,
        le=LONGEST_TIMEOUT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait for minSequence before 503 sequence-not-reached.",
    ),
]
MaxLag = Annotated[
    int | None,
    Query(
        alias="maxLag",
        ge=0,
        le=LARGEST_SEQUENCE,
        description="Changelog records that a standby's answer may lag behind; 0: only one that has them all. "
        "Default: any number.",
    ),
]
IfNoneMatch = Annotated[str | None, Header(description="ETag of an earlier answer.")]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    # JSON can carry halves of surrogate pairs, which no text in UTF-8 has.
    text.encode()
    return text


NotBlank = AfterValidator(_not_blank)

Card = Annotated[
    str, Path(min_length=1, max_length=LONGEST_CARD, description="CustomerCardNo", examples=["9265846829"])
]
