"""`loyalty dead-letters`: list dead letters, and publish their records again."""

import base64
import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any

import typer

from services.audit_trail import announce, audited
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, report, stop, table
from services.domain.formats import seconds_text
from services.messaging import replaying
from services.messaging.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetters,
    RecordPosition,
    newest_of,
    positions_text,
)
from services.yaml_files.scalars import in_iso

app = typer.Typer(no_args_is_help=True, help="Records that could not be decoded or are not valid.")

Reason = Annotated[
    str | None, typer.Option(help="Only dead letters with this text in their reason. Case does not matter.")
]


@app.command("list")
def list_letters(
    *,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this number of the newest dead letters.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show dead letters. --json also shows their keys and values."""
    settings = read_settings()
    with clear_errors():
        if as_json:
            announce("loyalty dead-letters list", settings, limit=f"{limit}")
        reasons, newest = newest_of(DeadLetters(settings, DeadLetterFilter(reason)), limit)
    latest = newest[::-1]
    value = {
        "total": reasons.total(),
        "reasons": dict(reasons.most_common()),
        "dead_letters": [_json(letter) for letter in latest],
    }
    rows = (
        (
            letter.position,
            seconds_text(letter.time),
            f"{letter.topic or '?'} {letter.origin or '?'}",
            len(letter.value or b""),
            letter.reason,
        )
        for letter in latest
    )
    columns = ("position", "time", "origin", "bytes", "reason")
    report(value, table(*columns, rows=rows, title=f"{len(latest)} of {reasons.total()}"), as_json=as_json)


@app.command("replay")
def replay(
    *,
    reason: Reason = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARTITION:OFFSET", help="Only the dead letter at this position. Repeat the option for several."
        ),
    ] = None,
    select_all: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the command would publish, and publish nothing.")
    ] = False,
    older: Annotated[
        bool,
        typer.Option(
            "--older",
            help="Also publish records that became dead letters more than LOYALTY_REPEAT_HORIZON ago. First check that "
            "nobody has replayed them or sent them again, because they can count twice.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish the original keys and values to their original topics again.

    The dead letters stay in the list. Without --older, a record that was already processed is not counted again.
    """
    letter_filter = _selection(reason, offset or (), select_all=select_all)
    settings = read_settings()
    with clear_errors():
        since = replaying.replayed_since(settings, older=older)
        letters = DeadLetters(settings, letter_filter, since)
        found, positions, missing, left_out = replaying.select(settings, letters, letter_filter.positions, since)
        if missing:
            places = ", ".join(map(str, missing))
            stop(
                f"there is no dead letter at {places}: nothing was published. `loyalty dead-letters list` shows the "
                "positions"
            )
        published = None
        if not dry_run:
            details = {
                "selected": f"{found.total()}",
                "positions": positions_text(positions),
                "older": str(older).lower(),
            }
            with audited("loyalty dead-letters replay", settings, **details):
                published = replaying.replay(settings, letters, found, since)
    report(
        {
            "selected": found.total(),
            "published": published or 0,
            "left_out": left_out,
            "topics": dict(found),
            "dry_run": dry_run,
        },
        _outcome_text(found, published, left_out, settings.repeat_horizon),
        as_json=as_json,
    )


def _selection(reason: str | None, offsets: Iterable[str], *, select_all: bool) -> DeadLetterFilter:
    """The dead letters that the options select. Stops if an option is missing or blank, or contradicts ``--all``."""
    positions = frozenset(map(_position, offsets))
    if select_all == bool(reason is not None or positions):
        stop("select dead letters with --reason or --offset or both, or use --all alone", MISUSED)
    if reason is not None and not reason.strip():
        # Every reason contains the empty text, which an unset variable in a script gives.
        stop("--reason is blank, which would select every dead letter: use --all to select all", MISUSED)
    return DeadLetterFilter(reason, positions)


def _outcome_text(found: Counter[str], published: int | None, left_out: int, horizon: timedelta) -> str:
    """Say what a replay has done with the dead letters that it found. ``published`` is None in a dry run."""
    to = ", ".join(f"{count:,} to {topic}" for topic, count in found.items()) or "nothing"
    text = f"{'would publish' if published is None else 'published'} {to}"
    if published is not None and published < found.total():
        text = f"published {published:,} of {to}: the others are duplicates, or the topic no longer has them"
    if left_out:
        text += (
            f"\nleft out {left_out:,} that became dead letters more than {in_iso(horizon)} ago "
            "(LOYALTY_REPEAT_HORIZON), because the pipeline may have forgotten whether it has processed them. Check "
            "that nobody has replayed them or sent them again. Then use --older"
        )
    return text


def _position(text: str) -> RecordPosition:
    numbers = re.fullmatch(r"(\d{1,10}):(\d{1,19})", text)
    if numbers is None:
        stop(f"--offset {text!r} is not PARTITION:OFFSET: use for example 0:42", MISUSED)
    return RecordPosition(int(numbers[1]), int(numbers[2]))


def _json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "place": str(letter.position),
        "time": seconds_text(letter.time),
        "topic": letter.topic,
        "origin": str(letter.origin) if letter.origin else None,
        "reason": letter.reason,
        "key": None if letter.key is None else letter.key.decode("utf-8", "replace"),
        "value_base64": None if letter.value is None else base64.b64encode(letter.value).decode(),
    }
