"""The fault of an upgrade tests the earlier release, and its balances are not compared with fields that they lack."""

from decimal import Decimal
from pathlib import Path

import pytest

from infra.demo.comparison import Balance, Outputs
from infra.demo.oracle import Expected
from tests.faults.auditor import Earlier, comparable
from tests.faults.environment import NoEvidenceError
from tests.faults.upgrade import StackOfTheRelease


def test_a_process_that_ends_is_not_replaced_by_this_version(tmp_path: Path) -> None:
    stack = StackOfTheRelease(tmp_path)
    try:
        with pytest.raises(NoEvidenceError, match="pipeline needs a restart"):
            stack.supervise()
    finally:
        stack.__exit__()


def test_only_balances_that_the_earlier_release_wrote_may_lack_their_next_expiry() -> None:
    one = Decimal(1)
    old, changed, new = Balance(one, 1, next_expiry=None), Balance(one, 2, next_expiry=None), Balance(one, 1)
    earlier = Earlier((), {("old", 1), ("changed", 1)})
    outputs = Outputs(balances={"old": old, "changed": changed, "new": new, "none": None})
    _, found = comparable(earlier, Expected(), outputs)
    assert {"old": Balance(one, 1), "changed": changed, "new": new, "none": None} == found.balances
