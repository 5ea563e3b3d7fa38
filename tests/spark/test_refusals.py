"""What a rebuild refuses before it writes anything."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pipelines.reconciliation.reconstruction import ENTRIES_MISSING, EVENTS_LOST
from pipelines.reconciliation.refusals import check_complete, check_receivers
from services.errors import UserError


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

    with pytest.raises(UserError, match=refusal) if refusal else nullcontext():
        check_receivers(accounts, snapshot)


def test_a_refusal_says_what_to_do_about_missing_entries(spark):
    """The ledger must have them, or the operator must accept another order of the events."""
    accounts = spark.createDataFrame([(None,), (ENTRIES_MISSING,), (ENTRIES_MISSING,)], "problem string")
    snapshot = SimpleNamespace(notes=[], coverage=SimpleNamespace(events_from=0))

    with pytest.raises(UserError, match=r"^2 accounts .* in the ledger; .*`loyalty ledger gaps`.*--without-ledger$"):
        check_complete(accounts, snapshot)


def test_a_refusal_names_an_event_that_is_lost(spark):
    """It says what to do, and shows no card."""
    rows = [
        (None, [("events", "no such event: I0, of the recorded entry 1")]),
        (
            EVENTS_LOST,
            [("served balance", "of sequence 1: …"), ("events", "no such event: I1, of the recorded entry 2")],
        ),
    ]
    accounts = spark.createDataFrame(rows, "problem string, differences array<struct<`where`: string, what: string>>")
    snapshot = SimpleNamespace(notes=[], coverage=SimpleNamespace(events_from=0))

    with pytest.raises(UserError, match=r"^1 accounts .*: no such event: I1, of the .* use --accept-lost-events$"):
        check_complete(accounts, snapshot)
