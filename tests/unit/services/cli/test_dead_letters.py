"""What `loyalty dead-letters` shows. The test plays the topic; the integration tests cover the part with a broker."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from services.cli import app, dead_letters
from services.messaging.dead_letters import DeadLetter, RecordPosition
from services.messaging.publishing import PublishError

VALUE = bytes(range(256)) * 64
LETTERS = [
    DeadLetter(RecordPosition(0, offset), offset, "pos-invoices", RecordPosition(1, offset), "not-json", b"K", VALUE)
    for offset in range(3)
]


@pytest.fixture(autouse=True)
def _topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "DeadLetters", lambda *_: LETTERS)
    monkeypatch.setattr(dead_letters, "announce", lambda *_, **__: None)


def loyalty(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *arguments])


def test_the_newest_dead_letters_are_listed_with_their_whole_values() -> None:
    """The newest is the last one, near the prompt."""
    shown = json.loads(loyalty("list", "--limit", "2", "--json").stdout)

    assert (3, {"not-json": 3}) == (shown["total"], shown["reasons"])
    assert ["0:1", "0:2"] == [each["place"] for each in shown["dead_letters"]]
    assert {VALUE} == {base64.b64decode(each["value_base64"]) for each in shown["dead_letters"]}
    assert str(len(VALUE)) in loyalty("list").stdout


def test_whole_values_are_shown_only_after_a_record_in_the_audit_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have personal data. The table has none."""

    def refuse(action: str, *_: object, **details: str) -> None:
        raise PublishError(f"no record of {action} {details}")

    monkeypatch.setattr(dead_letters, "announce", refuse)
    refused = loyalty("list", "--json")
    assert (1, "") == (refused.exit_code, refused.stdout)
    assert "no record of loyalty dead-letters list {'limit': '50'}" in refused.stderr
    assert 0 == loyalty("list").exit_code


def test_a_replay_names_the_positions_without_a_dead_letter() -> None:
    result = loyalty("replay", "--offset", "1:0", "--offset", "0:9", "--offset", "0:1", "--dry-run")

    assert (1, "") == (result.exit_code, result.stdout)
    assert "there is no dead letter at 0:9, 1:0: nothing was published" in result.stderr
    assert "would publish 3 to pos-invoices" in loyalty("replay", "--all", "--dry-run", "--older").stdout


def test_a_replay_leaves_out_old_dead_letters_unless_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline may have forgotten that it has processed their records, so they could count twice."""
    young = replace(LETTERS[0], position=RecordPosition(1, 0), time=int(time.time() * 1_000))
    monkeypatch.setattr(dead_letters, "DeadLetters", lambda *_: [*LETTERS, young])

    result = loyalty("replay", "--all", "--dry-run")

    assert "would publish 1 to pos-invoices" in result.stdout
    assert "left out 3 that became dead letters more than P9D ago" in result.stdout
    for options, selected, left_out in (((), 1, 3), (("--older",), 4, 0)):
        shown = json.loads(loyalty("replay", "--all", "--dry-run", "--json", *options).stdout)
        assert (selected, left_out) == (shown["selected"], shown["left_out"])


def test_the_audit_trail_has_the_positions_of_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a replay of older dead letters, operators look there whether somebody has replayed them before."""
    noted: list[dict[str, str]] = []

    @contextmanager
    def audited(action: str, _: object, **details: str) -> Iterator[dict[str, str]]:
        noted.append({"action": action, **details})
        yield details

    monkeypatch.setattr(dead_letters, "audited", audited)
    monkeypatch.setattr(dead_letters.replaying, "replay", lambda *_: 3)
    young = replace(LETTERS[0], position=RecordPosition(1, 0), time=int(time.time() * 1_000))
    monkeypatch.setattr(dead_letters, "DeadLetters", lambda *_: [*LETTERS, young])

    assert (0, 0) == tuple(loyalty("replay", "--all", *options).exit_code for options in ((), ("--older",)))

    replay = {"action": "loyalty dead-letters replay"}
    assert [
        replay | {"selected": "1", "positions": "1:0", "older": "false"},
        replay | {"selected": "4", "positions": "0:0-2 1:0", "older": "true"},
    ] == noted
