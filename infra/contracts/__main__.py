"""``python -m infra.contracts`` writes the contracts after a change of the code.

With ``--release`` it also writes them as the contracts of the last release, with which it compares later changes.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any
from unittest.mock import MagicMock

import typer

from api.app import create_app
from infra.contracts import asyncapi
from infra.contracts.breaking import allows_breaking_changes, http_changes, topic_changes
from infra.local.folders import ROOT

FOLDER = ROOT / "docs/reference/contracts"
COMPARISONS = {"openapi.json": http_changes, "asyncapi.json": topic_changes}


def documents() -> dict[str, dict[str, Any]]:
    """The contracts of the current code, by file name.

    The routes do not depend on the dependencies of the app, so the app gets a mock.
    """
    return {"openapi.json": create_app(MagicMock()).openapi(), "asyncapi.json": asyncapi.document()}


def text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def committed(name: str) -> dict[str, Any]:
    """A committed contract, for example ``openapi.json`` or ``released/openapi.json``."""
    document: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return document


def broken(name: str, new: Mapping[str, Any]) -> list[str]:
    """The changes since the last release that break programs of users. Empty if the new version allows such changes."""
    released = committed(f"released/{name}")
    if allows_breaking_changes(new["info"]["version"], released["info"]["version"]):
        return []
    return list(dict.fromkeys(COMPARISONS[name](new, released)))


def main(
    *, release: Annotated[bool, typer.Option(help="Also write them as the contracts of the last release.")] = False
) -> None:
    """Write the contracts from the code. Refuse changes that break users, unless the version allows them."""
    for name, document in documents().items():
        if changes := broken(name, document):
            raise SystemExit(
                "\n  ".join([f"{name}: these changes break programs that were written for the last release:", *changes])
                + f"\nKeep the contract, or raise the version {version('retail-loyalty')} in pyproject.toml and run"
                " `make setup`"
            )
        for folder in (FOLDER, FOLDER / "released") if release else (FOLDER,):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text(document), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
