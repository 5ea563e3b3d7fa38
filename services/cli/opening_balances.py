"""`loyalty import`: give cards the points that they had in another system."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn
from uuid import NAMESPACE_URL, uuid5

import typer

from schemas import topics
from services import clock
from services.audit_trail import audited, user_name
from services.cli.output import MISUSED, AsJson, clear_errors, figures, progress, read_settings, report, stop
from services.codecs.events import command_record
from services.domain.events import Import
from services.domain.formats import points_text
from services.domain.validation import LONGEST_REASON, LONGEST_TEXT
from services.messaging.avro import encoder
from services.messaging.headers import cloud_event
from services.messaging.publishing import Publisher, connected_producer
from services.messaging.schema_ids import schema_ids
from services.opening_balances.file import OpeningBalances, read_files
from services.programmes.topic import load_programmes
from services.pseudonyms import Pseudonyms, existing_pseudonyms
from services.settings import Settings

SHOWN_ERRORS = 20

_NAMESPACE = uuid5(NAMESPACE_URL, "urn:retail-loyalty:import")


def import_balances(
    *,
    files: Annotated[list[Path], typer.Argument(help="CSV files with the suffix .csv, and other files as JSON Lines.")],
    name: Annotated[str, typer.Option(help="Name of the import. A card takes each import name only once.")],
    reason: Annotated[str, typer.Option(help="Reason in the entries. Default: the name of the import.")] = "",
    actor: Annotated[str, typer.Option(help="Actor in the entries. Default: your user name on this machine.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all rows and send nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give cards opening points with their dates of expiry.

    If a row is wrong, the command sends nothing. After an interruption, start the same command again: it continues.
    """
    reason, actor = reason or name, actor or user_name()
    if not name.strip() or max(len(name), len(actor)) > LONGEST_TEXT or len(reason) > LONGEST_REASON:
        stop(
            f"--name and --actor must have 1 to {LONGEST_TEXT} characters, and --reason at most {LONGEST_REASON}",
            MISUSED,
        )
    texts = name + reason + actor
    if texts.encode(errors="ignore").decode() != texts:
        stop("--name, --reason and --actor must be UTF-8, but one of them has other bytes: type it again", MISUSED)
    settings, now = read_settings(), clock.now()
    with clear_errors():
        # The newest version, also if it waits: the first version takes effect some time after its publication.
        zone = load_programmes(settings).versions[-1].time_zone
        found = read_files(files, zone, now)
        if found.errors:
            _stop_with_errors(found)
        risk = "a card would take the same import twice"
        names = existing_pseudonyms(settings.pseudonym_key_file, risk)
        started = time.monotonic()
        sent = 0
        if not dry_run:
            commands = import_commands(found, name, reason, actor, names)
            with audited("loyalty import", settings, cards=f"{len(found.cards)}"):
                sent = _send(commands, len(found.cards), settings, quiet=as_json)
    seconds = round(time.monotonic() - started, 3)
    points = points_text(found.points)
    values = {"rows": found.rows, "cards": len(found.cards), "points": points, "sent": sent, "time_zone": zone}
    report({**values, "seconds": seconds}, figures(values), as_json=as_json)


def import_commands(
    found: OpeningBalances, name: str, reason: str, actor: str, names: Pseudonyms
) -> Iterator[tuple[str, Import]]:
    """Yields each card and its command. The same name and card give the same id, so an account takes an import once.

    The ledger and the archive keep the id after an erasure. The id depends on the pseudonym. So nobody without the key
    of the pseudonyms can find the card by computing the ids of all cards.
    """
    for card in found.cards:
        command_id = str(uuid5(_NAMESPACE, f"{name}\n{names.of(card)}"))
        lots = found.lots_of(card)
        yield card, Import(append_time=0, command_id=command_id, reason=reason, actor=actor, lots=lots)


def _stop_with_errors(found: OpeningBalances) -> NoReturn:
    for line in found.errors[:SHOWN_ERRORS]:
        typer.echo(line, err=True)
    more = len(found.errors) - SHOWN_ERRORS
    rest = f"; {more:,} more are not shown" if more > 0 else ""
    wrong = f"{len(found.errors):,} of {found.rows:,} rows are wrong"
    stop(f"{wrong}, and nothing was sent{rest}: correct them and try again", MISUSED)


def _send(commands: Iterable[tuple[str, Import]], count: int, settings: Settings, *, quiet: bool) -> int:
    topic = settings.name_of(topics.LOYALTY_COMMANDS)
    encode = encoder(topics.LOYALTY_COMMANDS, schema_ids(settings))
    producer = connected_producer(settings, "loyalty-import", [topic])
    issued_time, number = clock.now(), 0
    with progress(topic, count, quiet=quiet) as on_progress, Publisher(producer) as publisher:
        for number, (card, command) in enumerate(commands, start=1):
            headers = cloud_event(command.command_id, topics.LOYALTY_COMMANDS.value)
            publisher.publish(topic, card.encode(), encode(command_record(card, command, issued_time)), headers)
            on_progress(number)
    return number
