"""`loyalty stores`: publish and remove shops, which are records of the compacted topic `stores`."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

import schemas
from schemas import topics
from services.audit_trail import audited
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, report, stop
from services.domain.validation import BLANKS, LONGEST_TEXT
from services.messaging import publishing
from services.messaging.avro import Record, encoder
from services.messaging.publishing import connected_producer
from services.messaging.schema_ids import schema_ids
from services.pos_simulator.chain import LARGEST_CHAIN, Chain
from services.pos_simulator.simulation import Options

app = typer.Typer(no_args_is_help=True, help="The shops that all API instances know.")


@app.command("publish")
def publish(
    *,
    files: Annotated[list[Path] | None, typer.Argument(help="Files with one JSON shop in each line.")] = None,
    stores: Annotated[
        int, typer.Option(min=1, max=LARGEST_CHAIN, help="Number of simulated shops, if there are no files.")
    ] = Options().stores,
    as_json: AsJson = False,
) -> None:
    """Publish the shops of the files, or simulated shops."""
    with clear_errors():
        shops = [shop for file in files for shop in _shops_of(file)] if files else list(_simulated(stores))
        if not shops:
            stop(f"{', '.join(map(str, files or ()))}: no shops, so nothing was published: add a shop", MISUSED)
        encode = encoder(topics.STORES, schema_ids(read_settings()))
        _publish("publish", [(shop["StoreID"].encode(), encode(shop)) for shop in shops], as_json=as_json)


@app.command("remove")
def remove(
    *, store_ids: Annotated[list[str], typer.Argument(help="StoreIDs of the shops.")], as_json: AsJson = False
) -> None:
    """Remove shops. An unknown shop is not an error."""
    with clear_errors():
        _publish("remove", [(store_id.encode(), None) for store_id in store_ids], as_json=as_json)


def _simulated(stores: int) -> Iterator[Record]:
    for store in Chain(stores).stores:
        yield {"StoreID": store.store_id, "Name": store.name, "City": store.city, "State": store.state}


def _shops_of(file: Path) -> Iterator[Record]:
    names = schemas.field_names("Store")
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            shop = json.loads(line)
        except (ValueError, RecursionError) as error:
            stop(f"{file}, line {number} is not JSON: {error}", MISUSED)
        wrong = [name for name in names if not isinstance(shop, dict) or not _is_text(shop.get(name))]
        if wrong:
            stop(f"{file}, line {number}: {', '.join(wrong)} must be text in UTF-8 that is not empty", MISUSED)
        store_id = shop["StoreID"]
        # Validation refuses invoices with a longer StoreID. People do not see the blanks.
        if len(store_id) > LONGEST_TEXT:
            stop(f"{file}, line {number}: StoreID is longer than {LONGEST_TEXT} characters: shorten it", MISUSED)
        if store_id.strip(BLANKS) != store_id:
            stop(f"{file}, line {number}: StoreID has blanks at its start or end: remove them", MISUSED)
        yield {name: shop[name] for name in names}


def _is_text(value: object) -> bool:
    # JSON can contain half of a surrogate pair, which is no character and not valid in UTF-8.
    return isinstance(value, str) and bool(value.strip(BLANKS)) and not re.search("[\ud800-\udfff]", value)


def _publish(command: str, messages: Sequence[tuple[bytes, bytes | None]], *, as_json: bool) -> None:
    settings = read_settings()
    topic = settings.name_of(topics.STORES)
    producer = connected_producer(settings, "loyalty-stores", [topic])
    with audited(f"loyalty stores {command}", settings, stores=f"{len(messages)}"):
        number = publishing.publish(messages, producer, topic)
    report({"topic": topic, "published": number}, f"published to {topic}: {number}", as_json=as_json)
