"""What a rebuild refuses before it writes anything."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pipelines.reconciliation.reconstruction import ENTRIES_MISSING
from pipelines.reconciliation.refusals import RebuildError, check_complete, check_lost_events, check_receivers


@pytest.mark.parametrize(
    ("nameless", "refusal"),
    [
        ([["gift/in"], []], None),
        ([["gift/in"], ["lost/in", "lost-too/in"]], "^2 transfers or moves have not reached their cards"),
    ],
)
def test_points_for_a_pseudonym_must_have_been_sent(spark, nameless, refusal):
    """The records have the command of an old transfer, whose receiver is erased. They lack the others."""
    accounts = spark.createDataFrame([(ids,) for ids in nameless], "nameless array<string>")
    records = spark.createDataFrame([("!gift/in",), ("!gift",), ("#lost",), (None,)], "identity string")
    snapshot = SimpleNamespace(events=SimpleNamespace(records=records))

    with pytest.raises(RebuildError, match=refusal) if refusal else nullcontext():
        check_receivers(accounts, snapshot)


def test_a_refusal_says_what_to_do_about_missing_entries(spark):
    """The ledger must have them, or the operator must accept another order of the events."""
    accounts = spark.createDataFrame([(None,), (ENTRIES_MISSING,), (ENTRIES_MISSING,)], "problem string")
    snapshot = SimpleNamespace(notes=[], coverage=SimpleNamespace(events_from=0))

    with pytest.raises(RebuildError, match=r"^2 accounts .* in the ledger; .*`loyalty ledger gaps`.*--without-ledger$"):
        check_complete(accounts, snapshot)


LOST = "lost array<struct<id: string, sequence: int, can_come_again: boolean>>"


@pytest.mark.parametrize(
    ("lost", "refusal"),
    [
        ([[], [("gift/in", 2, True)]], None),
        ([[("gift/in", 2, False)]], "^1 recorded entries .* event gift/in of the entry 2"),
        ([[("I0", 1, True), ("gift/in", 2, True)], [("I1", 3, True)]], "^2 recorded .* use --accept-lost-events$"),
    ],
    ids=["sent again", "a later entry depends on it", "others"],
)
def test_only_commands_that_are_sent_again_may_be_lost(spark, lost, refusal):
    """The account then gets the points again, so it loses nothing."""
    accounts = spark.createDataFrame([(entries,) for entries in lost], LOST)
    commands = spark.createDataFrame([("gift/in",), ("other/in",)], "id string")

    with pytest.raises(RebuildError, match=refusal) if refusal else nullcontext():
        check_lost_events(accounts, commands)
