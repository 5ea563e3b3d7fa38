"""`loyalty sql`: its output, its errors and its shell."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from pyarrow import parquet
from rich.console import Console
from typer.testing import CliRunner, Result

from services.cli import app
from services.cli.output import table
from services.cli.sql import _answer
from services.cli.sql_shell import completer_of, ends, run_shell
from services.settings import Settings, read_settings
from services.sql.database import Database
from services.sql.questions import QUESTIONS
from tests.support.kafka import NOBODY
from tests.support.ledger import Ledger

STATEMENT = """
    SELECT 1 AS a, 'x,"y' AS b, 1.50::DECIMAL(9,2) AS c, NULL AS d, DATE '2026-11-22' AS e, '\\xFF'::BLOB AS f, [1] AS g
"""

ENDLESS = "SELECT sum(sqrt(range)) FROM range(1_000_000_000_000), (SELECT count(*) FROM ledger_entry)"
PROGRAM = """
from services.messaging import publishing; publishing.BROKER_TIMEOUT = 0.1
from services.cli import app; app()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of the checkout."""
    monkeypatch.chdir(tmp_path)


def loyalty(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["sql", *arguments], env={"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": NOBODY}, input=text)


def test_nested_values_and_intervals_have_no_notation_of_python() -> None:
    statement = """
        SELECT MAP {'a': '\\xFF'::BLOB} AS map, {'b': ['\\xFF'::BLOB]} AS nested,
            INTERVAL '14 months 3 days' AS duration, [INTERVAL '-1 day'] AS list
    """
    nested, durations = {"map": [["a", "/w=="]], "nested": {"b": ["/w=="]}}, ("14 months 3 days", ["-1 days"])
    row = {**nested, "duration": durations[0], "list": durations[1]}
    assert [row] == json.loads(loyalty("--json", statement).stdout)["rows"]
    (shown,) = csv.DictReader(io.StringIO(loyalty("--csv", statement).stdout))
    assert durations == (shown.pop("duration"), json.loads(shown.pop("list")))
    assert nested == {name: json.loads(text) for name, text in shown.items()}


@pytest.mark.usefixtures("a_ledger")
def test_reads_of_the_ledger_are_recorded_and_go_on_without_kafka() -> None:
    """Each table of the ledger and of a topic is recorded before it is read. Without Kafka the line is on stderr."""
    result = loyalty("--json", "SELECT count(*) AS n FROM ledger_entry")

    assert 0 == result.exit_code, result.output
    assert [{"n": 0}] == json.loads(result.stdout)["rows"]
    assert '"action":"loyalty sql","table":"ledger_entry"' in result.stderr
    assert "operator:" in result.stderr
    assert "no Kafka broker answers" in result.stderr


def test_constants_are_not_recorded() -> None:
    """A statement without a table, and the lists, need no source and no record."""
    for arguments in ([STATEMENT], ["--list"], ["--tables"]):
        assert "" == loyalty(*arguments).stderr


def test_json_has_every_type() -> None:
    """Decimals are texts, bytes are base 64, and a list is a list."""
    row = {"a": 1, "b": 'x,"y', "c": "1.50", "d": None, "e": "2026-11-22", "f": "/w==", "g": [1]}
    assert {"rows": [row], "skipped": {}} == json.loads(loyalty("--json", STATEMENT).stdout)


def test_csv_and_parquet_have_every_type(tmp_path: Path) -> None:
    """CSV has a line of names. Parquet has the types of the result."""
    names, row = csv.reader(io.StringIO(loyalty("--csv", STATEMENT).stdout))
    assert ["a", "b", "c", "d", "e", "f", "g"] == names
    assert ["1", 'x,"y', "1.50", "", "2026-11-22", "\ufffd", "[1]"] == row
    result = loyalty("--parquet", "found.parquet", STATEMENT)
    assert "found.parquet: 1 rows\n" == result.stdout
    assert "1.50" == str(parquet.read_table(tmp_path / "found.parquet")["c"][0])


def test_a_parquet_result_goes_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    Path(tmp_path, "link").symlink_to("target.parquet")
    target = Path(tmp_path, "target.parquet")
    target.touch(0o600)
    loyalty("--parquet", "link", "SELECT 1 AS a")
    assert Path(tmp_path, "link").is_symlink()
    assert "600" == f"{target.stat().st_mode:o}"[-3:]
    assert [{"a": 1}] == parquet.read_table(target).to_pylist()
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        result = loyalty("--parquet", "pipe", "SELECT 2 AS a")
        content, _ = reader.communicate(timeout=60)
    assert [{"a": 2}] == parquet.read_table(io.BytesIO(content)).to_pylist()
    assert (0, "") == (result.exit_code, result.stdout)
    assert Path(tmp_path, "pipe").is_fifo()


def test_a_file_stays_if_a_later_result_cannot_be_written(tmp_path: Path) -> None:
    loyalty("--parquet", "found.parquet", "SELECT 1 AS a")
    assert 1 == loyalty("--parquet", "found.parquet", "SELECT union_value(a := 1)").exit_code
    assert [{"a": 1}] == parquet.read_table(tmp_path / "found.parquet").to_pylist()
    assert ["found.parquet"] == [each.name for each in tmp_path.iterdir()]


def test_a_table_shows_the_first_rows_only() -> None:
    """The last line says how to get all rows."""
    result = loyalty("SELECT range AS n FROM range(2000)")
    assert "│ 499 │" in result.stdout
    assert "│ 500 │" not in result.stdout
    assert result.stdout.endswith("1500 more rows: use --csv, --json or --parquet to get all\n")


def test_a_table_has_the_texts_as_they_are() -> None:
    """Another program gets each text complete. Rich makes no emoji of ``:a:``, no colour of a tag, and no ellipsis."""
    address, long = "2001:db8:a:b::1 [red]x[/red]", "x" * 300
    result = loyalty(f"SELECT '{address}' AS \":id:\", '{long}' AS b, '{long}' AS c")
    assert f"│ {address} │ {long} │ {long} │" in result.stdout
    assert "┃ :id: " in result.stdout
    assert "no ready question has the name" in loyalty("a").stderr
    assert "':x: [red]'" in loyalty("SELECT ':x: [red]'::INTEGER").stderr


def test_a_table_has_no_control_characters() -> None:
    """With an escape sequence, a text of a caller could clear the terminal. CSV and JSON have the text unchanged."""
    text = "'a' || chr(27) || '[2J'"
    assert "│ a\ufffd[2J │" in loyalty(f"SELECT {text} AS b").stdout
    assert "'a\ufffd[2J'" in loyalty(f"SELECT ({text})::INTEGER").stderr
    assert "a\x1b[2J" in loyalty("--csv", f"SELECT {text}").stdout


def test_a_table_on_a_narrow_terminal_has_the_whole_texts() -> None:
    """A text that is too long for its column goes on in the next line."""
    terminal = Console(width=20, file=io.StringIO(), record=True)
    terminal.print(table("a", "b", rows=[("x" * 30, "y" * 30)]))
    shown = terminal.export_text()
    assert (30, 30) == (shown.count("x"), shown.count("y"))


def test_stdin_is_a_statement() -> None:
    """Without a statement and without a terminal, the command reads a statement or a question's name from stdin."""
    assert [{"a": 7}] == json.loads(loyalty("--json", text="SELECT 7 AS a;\n").stdout)["rows"]
    assert "cannot read the ledger" in loyalty(text="liability;\n").stderr


def test_the_difference_of_two_times_is_a_text(tmp_path: Path) -> None:
    """JSON and Parquet have no intervals."""
    for statement, text in (
        ("SELECT TIMESTAMP '2026-11-22 10:15' - TIMESTAMP '2026-11-19 08:00' AS a", "3 days 2:15:00"),
        ("SELECT INTERVAL 14 MONTH - INTERVAL 30 SECOND AS a", "14 months -0:00:30"),
        ("SELECT INTERVAL 0 DAY AS a", "0:00:00"),
        ("SELECT NULL::INTERVAL AS a", None),
    ):
        assert [{"a": text}] == json.loads(loyalty("--json", statement).stdout)["rows"]
        loyalty("--parquet", "found.parquet", statement)
        assert [{"a": text}] == parquet.read_table(tmp_path / "found.parquet").to_pylist()


def test_the_lists_are_complete() -> None:
    """The list of questions has their statements with --json. The list of tables has all kinds of tables."""
    questions = json.loads(loyalty("--list", "--json").stdout)["questions"]
    assert [question.name for question in QUESTIONS] == [each["name"] for each in questions]
    assert "points-by-month" in loyalty("--list").stdout
    tables = {
        each: len(columns) for each, columns in json.loads(loyalty("--tables", "--json").stdout)["tables"].items()
    }
    assert {"hadoop", "store_sales", "ledger_entry", "line_items", "liability"} <= tables.keys()
    assert not {"pg_class", "duckdb_columns", "sqlite_master"} & tables.keys()
    assert all(tables.values())


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["SELECT * FROM hadoop"], 1, f"no Kafka broker answers at {NOBODY}"),
        (["SELECT * FROM dead_letters"], 1, f"no Kafka broker answers at {NOBODY}"),
        (["--follow", "SELECT * FROM hadoop"], 1, f"no Kafka broker answers at {NOBODY}"),
        (["liability"], 1, "cannot read the ledger: check LOYALTY_LEDGER_URL"),
        (["SELEC 1"], 1, "syntax error"),
        (["liabilty"], 2, "no ready question has the name liabilty: `loyalty sql --list` shows all of them"),
        (["SELECT 'infinity'::TIMESTAMP"], 1, "a time outside of the years 1 to 9999: select it as a text"),
        (["--json", "SELECT DATE '10000-01-01'"], 1, "a time outside of the years 1 to 9999: select it as a text"),
        (["line_items"], 2, 'line_items is a table: ask "FROM line_items"'),
        ([" "], 2, "there is no statement: give one"),
        (["return-rate"], 1, "var/parquet has no exported files: wait for the export of the pipeline"),
        (["FROM customer_keys"], 1, "set LOYALTY_CUSTOMER_KEY_FILE"),
        (["--json", "--csv", "SELECT 1"], 2, "choose one of --json, --csv and --parquet"),
        (["--follow", "--csv", "SELECT * FROM hadoop"], 2, "prints JSON lines only"),
        (["--follow"], 2, "--follow needs a statement"),
        (["--parquet", "no/folder/f.parquet", "SELECT 1"], 1, "No such file"),
        (["--parquet", "f.parquet", "SELECT union_value(a := 1)"], 1, "Parquet cannot keep this result: "),
    ],
)
def test_an_error_is_one_clear_line(arguments: list[str], status: int, error: str) -> None:
    """Stdout is empty, and the line says what to do."""
    result = loyalty(*arguments)
    assert (status, "", 1) == (result.exit_code, result.stdout, result.stderr.count("error: ")), result.output
    assert error in result.stderr


def test_a_ledger_of_another_kind_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOYALTY_LEDGER_URL", "mysql://host/db")
    result = loyalty("liability")
    assert (2, True) == (result.exit_code, "neither sqlite" in result.stderr)


@pytest.fixture
def a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty ledger. There is no Kafka."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("LOYALTY_LEDGER_URL", url)
    monkeypatch.setenv("LOYALTY_KAFKA_BOOTSTRAP_SERVERS", NOBODY)
    Ledger(url).close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(Settings(export_dir=str(tmp_path)))) as database:
        yield database


def statements_of(text: str, database: Database, history: Path) -> list[str]:
    """What the shell executes after somebody has typed the text."""
    asked: list[str] = []
    with create_pipe_input() as keys:
        keys.send_text(text)
        run_shell(database, asked.append, history, input=keys, output=DummyOutput())
    return asked


def test_the_shell_reads_statements_of_several_lines(database: Database, tmp_path: Path) -> None:
    """Enter ends a statement after a semicolon, and a ready question. `quit` ends the shell. The history stays."""
    asked = statements_of("SELECT 1\nAS a;\n\nliability\nquit\n", database, tmp_path / "history")
    assert ["SELECT 1\nAS a", "liability"] == asked
    assert "+AS a;" in (tmp_path / "history").read_text()


def test_the_shell_ends_with_its_input(database: Database, tmp_path: Path) -> None:
    """Ctrl-C gives up a statement, and Ctrl-D ends the shell."""
    assert ["SELECT 2"] == statements_of("SELECT 1\x03SELECT 2;\n\x04", database, tmp_path / "history")


@pytest.mark.usefixtures("a_ledger")
def test_ctrl_c_ends_a_statement_and_not_the_shell(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line says that the statement was interrupted. The shell answers the next statement."""
    with (
        closing(Database(read_settings(), lambda _: os.kill(os.getpid(), signal.SIGINT))) as database,
        create_pipe_input() as keys,
    ):
        keys.send_text(f"{ENDLESS};\nSELECT 'later' AS a;\n\x04")
        run_shell(database, partial(_answer, database), tmp_path / "history", input=keys, output=DummyOutput())
    output, errors = capfd.readouterr()
    # Other programs can write to the same stderr, such as the broker of this test run.
    assert ["error: the statement was interrupted"] == re.findall("^error.*", errors, re.MULTILINE)
    assert "later" in output


@pytest.mark.program
@pytest.mark.usefixtures("a_ledger")
def test_ctrl_c_ends_the_command_with_130() -> None:
    """The error is one line. Before it, a warning says that there is no audit record of the command."""
    arguments = [sys.executable, "-c", PROGRAM, "sql", ENDLESS]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as command:
        try:
            assert command.stderr
            assert command.stderr.readline().startswith("warning: ")
            command.send_signal(signal.SIGINT)
            _, errors = command.communicate(timeout=60)
        finally:
            command.kill()
    assert (130, "error: the statement was interrupted\n") == (command.returncode, errors)


def test_only_its_owner_can_read_the_history(database: Database, tmp_path: Path) -> None:
    """Statements can contain cards."""
    history = tmp_path / "history"
    statements_of("SELECT 1;\nquit\n", database, history)
    assert "0o600" == oct(history.stat().st_mode & 0o777)
    assert "+SELECT 1;" in history.read_text()


@pytest.mark.timeout(60)  # a shell that waits for a key waits for ever
def test_the_shell_works_without_a_file_for_its_history(database: Database, tmp_path: Path) -> None:
    """The history then ends with the shell."""
    assert ["SELECT 1"] == statements_of("SELECT 1;\nquit\n", database, tmp_path / "no folder" / "history")


@pytest.mark.parametrize(
    ("begin", "completed"),
    [("hado", "hadoop"), ("SEL", "SELECT"), ("totalv", "TotalValue"), ("members-by", "members-by-tier")],
)
def test_the_shell_completes_words(database: Database, begin: str, completed: str) -> None:
    """It completes the names of tables, columns and questions, and the words of SQL."""
    found = completer_of(database).get_completions(Document(begin), CompleteEvent())
    assert completed in [each.text for each in found]
    assert not ends(Document(begin))
