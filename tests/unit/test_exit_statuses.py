"""Errors that a user can solve: the exit statuses of docs/reference/cli.md, and the form of their texts."""

import ast
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import typer

import api.__main__ as api
import pipelines.__main__ as pipeline
from api.security.hops import InstanceSecretError
from pipelines.checkpoints.lock import CheckpointInUseError
from pipelines.checkpoints.manifest import CheckpointMismatchError
from pipelines.reconciliation import context
from pipelines.reconciliation.context import open_context
from services.audit.facts import Source
from services.audit.sources import UnreadableError
from services.errors import SettingsError, UserError
from services.ledger.database import LedgerError
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.programmes.file import ProgrammeError
from services.settings import Settings
from services.start_up import StartUpError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (1, PublishError),
        (1, SchemaRegistryUnavailableError),
        (2, CheckpointInUseError),
        (2, CheckpointMismatchError),
        (2, ProgrammeError),
        (2, SettingsError),
        (2, UserError),
        (2, StartUpError),
    ],
)
def test_the_pipeline(status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1 tells a supervisor to start it again."""
    monkeypatch.setattr(pipeline, "_claim", MagicMock(side_effect=error("why")))
    assert status == pipeline.run(Settings(), ["sales"], available_now=False)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (2, LedgerError),
        (1, UserError),
        (2, SettingsError),
        (2, InstanceSecretError),
        (2, StartUpError),
    ],
)
def test_the_api(status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "configure_logging", lambda _: None)
    monkeypatch.setattr(api, "serve", MagicMock(side_effect=error("why")))
    with pytest.raises(typer.Exit) as end:
        api.main()
    assert status == end.value.exit_code


@pytest.mark.parametrize(
    ("rebuild", "error"),
    [
        (1, CheckpointInUseError("why")),
        (1, UserError("why")),
        (1, ProgrammeError("why")),
        (1, PublishError("why")),
        (1, SchemaRegistryUnavailableError("why")),
        (1, UnreadableError(Source.STATE, "why")),
        (2, SettingsError("why")),
        (2, CheckpointMismatchError("why")),
        (2, StartUpError("why")),
    ],
)
def test_rebuild_and_audit(rebuild: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status 1 of an audit means a difference, so an audit that cannot read something always ends with 2."""
    for name in ("configure_logging", "load_programmes", "pseudonyms", "spark_session", "schema_ids"):
        monkeypatch.setattr(context, name, MagicMock())
    for failed, status in ((1, rebuild), (2, 2)):
        with pytest.raises(typer.Exit) as end, open_context("test", failed):
            raise error
        assert status == end.value.exit_code


def test_no_text_of_an_error_ends_with_a_full_stop() -> None:
    """The command line prints the text after "error: ", and other texts continue it."""
    files = [
        file for name in ("api", "infra", "pipelines", "schemas", "services") for file in (ROOT / name).rglob("*.py")
    ]
    raised = {
        f"{file.relative_to(ROOT)}:{node.lineno}": ast.unparse(node.exc)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and node.exc
    }
    assert len(raised) > 100
    assert [] == [place for place, text in raised.items() if re.search(r"\.['\"]\)$", text)]
