"""`loyalty ledger …` with both databases: services.cli.ledger."""

import json
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from services.cli import app
from services.ledger.appender import Batch
from services.ledger.positions import Span
from services.ledger.records import Undecodable
from tests.support.builders import entry
from tests.support.kafka import NOBODY
from tests.support.ledger import PSEUDONYMS, Ledger


def loyalty(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["ledger", *arguments])


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """No broker listens."""
    monkeypatch.setenv("LOYALTY_LEDGER_URL", database_url)
    monkeypatch.setenv("LOYALTY_KAFKA_BOOTSTRAP_SERVERS", NOBODY)


def test_a_database_without_a_ledger_is_one_line() -> None:
    """A query names the setting. `migrate` creates the tables, and a second call changes nothing."""
    answer = loyalty("gaps")
    assert (1, "") == (answer.exit_code, answer.stdout)
    (error,) = [line for line in answer.stderr.splitlines() if "[warning" not in line]
    assert "LOYALTY_LEDGER_URL" in error
    assert [0, 0] == [loyalty("migrate").exit_code, loyalty("migrate").exit_code]
    assert {"gaps": []} == json.loads(loyalty("gaps", "--json").stdout)


def test_gaps_are_shown_without_cards(ledger: Ledger) -> None:
    """The table shows the pseudonym. --json shows the card too."""
    ledger.append(("9265846829", entry(3)))
    table = loyalty("gaps").stdout
    assert PSEUDONYMS.of("9265846829") in table
    assert "9265846829" not in table
    (gap,) = json.loads(loyalty("gaps", "--json").stdout)["gaps"]
    assert ("9265846829", 1, 2) == (gap["card"], gap["first"], gap["last"])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_commands_have_no_time_limit(database_url: str) -> None:
    """A ledger can have millions of gaps. The view shows the limits of the session as the numbers of a gap."""
    with closing(Ledger(database_url)) as ledger:
        ledger.append(("9265846829", entry(1)))
        with ledger.engine.begin() as connection:
            connection.execute(text("DROP TABLE ledger_gap"))
            connection.execute(
                text("""
                    CREATE VIEW ledger_gap AS SELECT id AS account_id,
                    trim(trailing 's' from current_setting('statement_timeout'))::int AS first_sequence,
                    trim(trailing 's' from current_setting('idle_in_transaction_session_timeout'))::int AS last_sequence
                    FROM ledger_account
                """)
            )
    (gap,) = json.loads(loyalty("gaps", "--json").stdout)["gaps"]
    assert (0, 0) == (gap["first"], gap["last"])


def test_a_gap_of_an_account_with_a_wrong_clock_is_shown(ledger: Ledger) -> None:
    """Its OpenedTime is outside of the calendar. The table shows the last time of the calendar."""
    ledger.append(("9265846829", entry(3, opened_time=2**60)))
    answer = loyalty("gaps")
    assert 0 == answer.exit_code
    assert "9999-12-31" in answer.stdout


def test_undecodable_records_are_shown_until_they_are_read_again(ledger: Ledger) -> None:
    """The command shows position and reason. `reread` deletes the records and the positions."""
    record = Undecodable(0, 7, 1_700_000_000_000, "no [magic] byte")
    ledger.appender.append(Batch([], [record], {0: Span(0, 8)}))
    assert "0:7" in loyalty("undecodable").stdout
    assert "no [magic] byte" in loyalty("undecodable").stdout
    reread = loyalty("reread", "--json")
    assert {"partitions": 1} == json.loads(reread.stdout)
    assert '"action":"loyalty ledger reread"' in reread.stderr  # Kafka did not take the record
    assert {"undecodable": []} == json.loads(loyalty("undecodable", "--json").stdout)


@pytest.mark.parametrize("command", ["gaps", "undecodable", "reread"])
def test_the_ledger_of_another_deployment_is_refused(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The error names both topics. The ledger keeps its positions."""
    monkeypatch.setenv("LOYALTY_TOPIC_PREFIX", "staging-")
    answer = loyalty(command)
    assert (2, "") == (answer.exit_code, answer.stdout)
    assert "another topic: loyalty, and the settings say staging-loyalty" in answer.stderr
    assert {0: 0} == ledger.appender.stored_offsets()


@pytest.mark.parametrize("command", ["migrate", "gaps"])
def test_a_database_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """The error is one line without the password."""
    monkeypatch.setenv("LOYALTY_LEDGER_URL", "mysql://root:secret@host/db")
    answer = loyalty(command)
    assert (2, False) == (answer.exit_code, "secret" in answer.stderr)
    assert "neither sqlite" in answer.stderr
