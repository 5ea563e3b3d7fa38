"""Versions of the programme without a broker. tests/integration/test_programmes.py has the other tests."""

import pytest

from services.domain.programme import Programme
from services.programmes.file import ProgrammeError
from services.programmes.topic import _next


def test_no_version_takes_effect_before_1970() -> None:
    """The first version has no latest one that the error could name."""
    with pytest.raises(ProgrammeError, match=r"before 1970\. Nothing was published\. Publish with a later time"):
        _next("loyalty-factor: 0.02\n", Programme(), [], effective_time=-1, notice=0)
