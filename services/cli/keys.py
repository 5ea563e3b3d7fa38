"""`loyalty keys`: the API keys in the compacted topic api-keys."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from services.api_keys.keys import ApiKey, NewKey, Scope, new_key
from services.api_keys.topic import REST_DAYS, keep_key, publish_keys, read_keys, write_key
from services.audit_trail import audited
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, report, stop, table
from services.clock import now
from services.domain.formats import seconds_text
from services.messaging.publishing import PublishError
from services.messaging.schema_ids import SchemaRegistryUnavailableError
from services.settings import Settings

app = typer.Typer(no_args_is_help=True, help="The API keys that all API instances know.")

_LONGEST_NAME = 100

NameArgument = Annotated[str, typer.Argument(help="Who uses the key, for example: till of shop STR8919.")]
ScopeOption = Annotated[list[Scope], typer.Option(help="What the key allows. Repeat the option for several scopes.")]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="Days until the key expires.")]


@app.command("create")
def create(
    name: NameArgument,
    *,
    scope: ScopeOption,
    store: Annotated[
        list[str] | None,
        typer.Option(help="StoreID of a shop that the key is limited to. Repeat the option for several shops."),
    ] = None,
    days: DaysOption = 90,
    file: Annotated[
        Path | None, typer.Option(help="Write the key to this new file instead of stdout. Only you can read the file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key, and show it once: Kafka has only its hash. Every API instance accepts the key a moment later."""
    made, settings = _new(name, scope, store or [], days), read_settings()
    scopes = " ".join(sorted(scope))
    with clear_errors(), audited("loyalty keys create", settings, key=made.key.key_id, scopes=scopes):
        if file:
            _write(made, file, settings)
        else:
            publish_keys([made.key], settings)
        report(
            {**_json(made.key), "key": None if file else made.text},
            f"{made.key.key_id} expires {seconds_text(made.key.expires_time)}",
            f"written to {file}" if file else made.text,
            as_json=as_json,
        )


@app.command("ensure")
def ensure(
    name: NameArgument,
    file: Annotated[Path, typer.Argument(help="File with the key, which only you can read.")],
    *,
    scope: ScopeOption,
    days: Annotated[
        int,
        typer.Option(
            min=REST_DAYS + 1,
            max=3650,
            help=f"Days until a new key expires. A key that expires within {REST_DAYS} days is replaced.",
        ),
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Create a new key if the file has no key with these scopes, or if its key expires within 30 days.

    A key that is limited to shops is replaced, too. The old key stays valid until it expires or you revoke it.
    """
    made, settings = _new(name, scope, [], days), read_settings()
    with clear_errors(), audited("loyalty keys ensure", settings) as details:
        key = keep_key(made, file, settings)
        details["key"] = key.key_id
    report(_json(key), f"{key.key_id} in {file} expires {seconds_text(key.expires_time)}", as_json=as_json)


@app.command("list")
def show(*, as_json: AsJson = False) -> None:
    """Show the records of all keys, including expired and revoked keys. The keys themselves are not stored."""
    keys = _read().values()
    rows = (
        (
            key.key_id,
            key.name,
            _state(key),
            " ".join(sorted(key.scopes)),
            ", ".join(sorted(key.store_ids)) or "all",
            seconds_text(key.expires_time),
        )
        for key in keys
    )
    shown = table("id", "name", "state", "scopes", "shops", "expires", rows=rows)
    report({"keys": [_json(key) for key in keys]}, shown, as_json=as_json)


@app.command("revoke")
def revoke(
    key_ids: Annotated[list[str], typer.Argument(help="Ids of keys, as `loyalty keys list` shows them.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Revoke keys. Every API instance refuses them as soon as it has read the record."""
    keys = _read()
    if unknown := [key_id for key_id in key_ids if key_id not in keys]:
        stop(f"no key has the id {', '.join(unknown)}: nothing was revoked. `loyalty keys list` shows the ids", MISUSED)
    settings = read_settings()
    revoked = [keys[key_id].revoked(now()) for key_id in dict.fromkeys(key_ids)]
    with clear_errors(), audited("loyalty keys revoke", settings, keys=" ".join(key.key_id for key in revoked)):
        # All keys in one call, because its error message tells the user to repeat all of them.
        publish_keys(revoked, settings)
    text = f"revoked: {', '.join(key.key_id for key in revoked)}"
    report({"revoked": [_json(key) for key in revoked]}, text, as_json=as_json)


def _new(name: str, scopes: list[Scope], stores: list[str], days: int) -> NewKey:
    if not name.strip() or len(name) > _LONGEST_NAME:
        stop(f"NAME must have 1 to {_LONGEST_NAME} characters and must not be blank", MISUSED)
    return new_key(name, scopes, stores, now(), timedelta(days=days) // timedelta(milliseconds=1))


def _write(made: NewKey, file: Path, settings: Settings) -> None:
    """Write the key as ``write_key`` does. After an error the file stays: the broker may have the record of the key."""
    try:
        write_key(made, file, settings)
    except (PublishError, SchemaRegistryUnavailableError) as error:
        raise PublishError(f"{error}. The key in {file} may not be valid: delete this file and try again") from error


def _read() -> dict[str, ApiKey]:
    settings = read_settings()
    with clear_errors():
        return read_keys(settings)


def _state(key: ApiKey) -> str:
    if key.revoked_time:
        return "revoked"
    return "valid" if key.is_valid_at(now()) else "expired"


def _json(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "name": key.name,
        "state": _state(key),
        "scopes": sorted(key.scopes),
        "stores": sorted(key.store_ids),
        "created_time": seconds_text(key.created_time),
        "expires_time": seconds_text(key.expires_time),
        "revoked_time": seconds_text(key.revoked_time) if key.revoked_time else None,
    }
