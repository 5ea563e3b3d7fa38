"""docs/reference/webhooks.md and docs/reference/programme.md agree with the code."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.domain.entries import Kind
from services.programmes.file import ROUNDING, _ProgrammeFile, parse_programme
from services.webhooks.endpoints import _Endpoint, load
from services.webhooks.metrics import Metrics
from services.yaml_files.model import _key

DOCS = Path(__file__).resolve().parents[4] / "docs"
WEBHOOKS = (DOCS / "reference" / "webhooks.md").read_text(encoding="utf-8")
PROGRAMME = (DOCS / "reference" / "programme.md").read_text(encoding="utf-8")


def rows(text: str) -> list[str]:
    """The names in the first column of a document's tables."""
    return re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE)


def examples(text: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_webhook_keys_kinds_and_metrics_are_documented() -> None:
    """The rows are exactly the keys of an endpoint, the kinds, the metrics and the headers."""
    registry = CollectorRegistry()
    Metrics(registry)
    named = {
        name for each in registry.collect() for name in [f"{each.name}_total" if each.type == "counter" else each.name]
    }
    headers = {"webhook-id", "webhook-timestamp", "webhook-signature"}
    keys = {_key(name) for name in _Endpoint.model_fields}
    assert keys | named | headers | {kind.value for kind in Kind} == set(rows(WEBHOOKS))


def test_programme_keys_are_documented() -> None:
    """The rows are exactly the keys of the file, of tiers and of campaigns."""
    inner = {
        f"{name}.{_key(field)}"
        for name, model in (
            ("tiers", _ProgrammeFile.model_fields["tiers"]),
            ("campaigns", _ProgrammeFile.model_fields["campaigns"]),
        )
        for field in model.annotation.__args__[0].model_fields  # type: ignore[union-attr]
    }
    outer = {_key(name) for name in _ProgrammeFile.model_fields} - {"tiers", "campaigns"}
    assert inner | outer == set(rows(PROGRAMME))
    assert all(f"`{mode}`" in PROGRAMME for mode in ROUNDING)


@pytest.mark.parametrize("example", examples(PROGRAMME))
def test_programme_examples_are_valid(example: str) -> None:
    """Each example is valid, if necessary with the required key."""
    assert parse_programme(example if "loyalty-factor" in example else f"loyalty-factor: 0.02\n{example}")


@pytest.mark.parametrize("example", examples(WEBHOOKS))
def test_webhook_examples_are_valid(example: str, tmp_path: Path) -> None:
    """Each example is valid after its secrets exist."""
    (tmp_path / "webhooks.yaml").write_text(example, encoding="utf-8")
    (tmp_path / "secrets").mkdir()
    for name in re.findall(r"secret-file: (\S+)", example):
        (tmp_path / name).write_text("whsec_" + "A" * 44, encoding="utf-8")
    assert load(tmp_path / "webhooks.yaml")


def test_there_are_examples() -> None:
    """Without examples the other tests would check nothing."""
    assert len(examples(PROGRAMME)) >= 3
    assert examples(WEBHOOKS)
