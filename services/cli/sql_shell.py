"""The shell of `loyalty sql`: statements of several lines, history, completion."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]

from services.sql.questions import BY_NAME

if TYPE_CHECKING:
    from services.sql.database import Database

HISTORY = Path.home() / ".loyalty_sql_history"
_WORD = re.compile(r"[\w-]+")
"""Names of ready questions can contain hyphens."""

_QUIT = ("quit", "exit", r"\q")
_WORDS = """
SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT USING ON AS AND OR NOT NULL IS IN BETWEEN HAVING DISTINCT WITH UNION
DESC CASE WHEN THEN ELSE END count sum avg min max round strftime DESCRIBE SUMMARIZE
"""


def run_shell(database: "Database", answer: Callable[[str], None], history: Path = HISTORY, **terminal: Any) -> None:
    """Read statements until the end of the input or `quit`, and answer each.

    Enter ends an input that has a semicolon at its end, or that is the name of a ready question. Otherwise Enter starts
    a new line.
    """
    session: PromptSession[str] = PromptSession(
        "loyalty> ",
        history=_history(history),
        auto_suggest=AutoSuggestFromHistory(),
        completer=completer_of(database),
        lexer=PygmentsLexer(SqlLexer),
        multiline=True,
        prompt_continuation="    ...> ",
        key_bindings=_keys(),
        **terminal,
    )
    while True:
        try:
            text = session.prompt().strip().rstrip(";").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text in _QUIT:
            return
        if text:
            answer(text)


def _history(file: Path) -> History:
    """The history in a file that only its owner can read, because statements can contain card numbers."""
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(file)


def completer_of(database: "Database") -> Completer:
    """Completes the names of tables, columns and ready questions, and keywords of SQL."""
    columns = {column for each in database.columns().values() for column, _ in each}
    words = [*_WORDS.split(), *database.columns(), *sorted(columns), *BY_NAME, "quit"]
    return WordCompleter(words, ignore_case=True, pattern=_WORD)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=Condition(_is_complete))
    def accept(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    return keys


def _is_complete() -> bool:
    return ends(get_app().current_buffer.document)


def ends(document: Document) -> bool:
    """Whether Enter ends this input."""
    text = document.text.strip()
    return not text or text.endswith(";") or text in BY_NAME or text in _QUIT
