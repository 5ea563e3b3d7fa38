"""An account of three purchases."""

from decimal import Decimal

import pytest

from services.domain.events import Purchase
from tests.support.account_histories import START, processed
from tests.unit.services.audit.facts_and_differences import PROGRAMMES, facts_of


@pytest.fixture
def three():
    """The history of three purchases."""
    return processed([[Purchase(START + n, f"I{n}", Decimal(100))] for n in (1, 2, 3)], PROGRAMMES)


@pytest.fixture
def facts(three):
    """The facts of three purchases, without differences."""
    return facts_of(three)
