"""`loyalty sql`: its output, its errors and its shell."""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from pyarrow import parquet
from typer.testing import CliRunner, Result

from services.cli import app
from services.cli.sql_shell import completer_of, ends, run_shell
from services.ledger.database import migrate, writing_engine
from services.settings import Settings
from services.sql.database import Database
from services.sql.questions import QUESTIONS
from tests.support.kafka import NOBODY

STATEMENT = """
    SELECT 1 AS a, 'x,"y' AS b, 1.50::DECIMAL(9,2) AS c, NULL AS d, DATE '2026-11-22' AS e, '\\xFF'::BLOB AS f, [1] AS g
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of the checkout."""
    monkeypatch.chdir(tmp_path)


def loyalty(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["sql", *arguments], env={"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": NOBODY}, input=text)


def test_reads_of_the_ledger_are_recorded_and_go_on_without_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table of the ledger and of a topic is recorded before it is read. Without Kafka the line is on stderr."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("LOYALTY_LEDGER_URL", url)
    migrate(writing_engine(url))

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


def test_a_table_shows_the_first_rows_only() -> None:
    """The last line says how to get all of them."""
    result = loyalty("SELECT range AS n FROM range(2000)")
    assert "│ 499 │" in result.stdout
    assert "│ 500 │" not in result.stdout
    assert result.stdout.endswith("1500 more rows: use --csv, --json or --parquet to get all\n")


def test_stdin_is_a_statement() -> None:
    """Without a statement and without a terminal, the command reads a statement or a question's name from stdin."""
    assert [{"a": 7}] == json.loads(loyalty("--json", text="SELECT 7 AS a;\n").stdout)["rows"]
    assert "cannot read the ledger" in loyalty(text="liability;\n").stderr


def test_the_difference_of_two_times_is_a_text(tmp_path: Path) -> None:
    """In each output, because neither JSON nor Parquet has intervals."""
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
    assert "breakage" in loyalty("--list").stdout
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
        (["return-rate"], 1, "var/parquet has no exported files: run `loyalty export` first"),
        (["FROM customer_keys"], 1, "set LOYALTY_CUSTOMER_KEY_FILE"),
        (["--json", "--csv", "SELECT 1"], 2, "choose one of --json, --csv and --parquet"),
        (["--follow", "--csv", "SELECT * FROM hadoop"], 2, "prints JSON lines only"),
        (["--follow"], 2, "--follow needs a statement"),
        (["--parquet", "no/folder/f.parquet", "SELECT 1"], 1, "No such file"),
    ],
)
def test_an_error_is_one_clear_line(arguments: list[str], status: int, error: str) -> None:
    """Stdout is empty, and the line says what to do."""
    result = loyalty(*arguments)
    assert (status, "", 1) == (result.exit_code, result.stdout, result.stderr.count("error: ")), result.output
    assert error in result.stderr


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(Settings(export_dir=str(tmp_path)))) as database:
        yield database


def test_the_shell_reads_statements_of_several_lines(database: Database, tmp_path: Path) -> None:
    """Enter ends a statement after a semicolon, and a ready question. `quit` ends the shell. The history stays."""
    asked: list[str] = []
    with create_pipe_input() as keys:
        keys.send_text("SELECT 1\nAS a;\n\nliability\nquit\n")
        run_shell(database, asked.append, tmp_path / "history", input=keys, output=DummyOutput())
    assert ["SELECT 1\nAS a", "liability"] == asked
    assert "+AS a;" in (tmp_path / "history").read_text()


def test_the_shell_ends_with_its_input(database: Database, tmp_path: Path) -> None:
    """Ctrl-C gives up a statement, and Ctrl-D ends the shell."""
    asked: list[str] = []
    with create_pipe_input() as keys:
        keys.send_text("SELECT 1\x03SELECT 2;\n\x04")
        run_shell(database, asked.append, tmp_path / "history", input=keys, output=DummyOutput())
    assert ["SELECT 2"] == asked


@pytest.mark.parametrize(
    ("begin", "completed"),
    [("hado", "hadoop"), ("SEL", "SELECT"), ("totalv", "TotalValue"), ("members-by", "members-by-tier")],
)
def test_the_shell_completes_words(database: Database, begin: str, completed: str) -> None:
    """Tables, columns, questions and words of SQL."""
    found = completer_of(database).get_completions(Document(begin), CompleteEvent())
    assert completed in [each.text for each in found]
    assert not ends(Document(begin))
