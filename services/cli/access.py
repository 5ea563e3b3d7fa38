"""`loyalty access`: the users and rights of the services on secured brokers."""

from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka.admin._acl import AclBinding, AclOperation
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from schemas.access import USERS
from services.cli.output import MISUSED, AsJson, clear_errors, read_settings, report, stop, table
from services.messaging.access import SCRAM_MECHANISMS, apply_rights, rights, set_passwords, user_of
from services.messaging.publishing import require_broker
from services.settings import password_in

app = typer.Typer(no_args_is_help=True, help="Users and rights of the services.")


@app.command("list")
def list_rights(*, as_json: AsJson = False) -> None:
    """Show the rights of all services. Kafka denies everything else."""
    rows = sorted((_as_row(right) for right in rights(read_settings())), key=lambda row: tuple(row.values()))
    shown = table("user", "may", "kind", "name", rows=(row.values() for row in rows))
    report({"rights": rows}, shown, as_json=as_json)


@app.command("apply")
def apply(
    *,
    passwords: Annotated[
        Path | None,
        typer.Option(help="Folder with one password file for each user. Without this option no password changes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set the users and rights of all services.

    The command removes other rights of these users on the names of this deployment, and on all names (`*`).
    """
    settings = read_settings()
    if passwords and settings.kafka_sasl_mechanism not in SCRAM_MECHANISMS:
        stop(
            f"--passwords: Kafka keeps no passwords of {settings.kafka_sasl_mechanism}: set "
            f"LOYALTY_KAFKA_SASL_MECHANISM to {' or '.join(SCRAM_MECHANISMS)}",
            MISUSED,
        )
    with clear_errors():
        new_passwords = {user_of(user, settings): _password(passwords / user) for user in USERS if passwords}
        require_broker(settings)
        changes = apply_rights(settings)
        if new_passwords:
            # Do this last. Afterwards the password of this process can be wrong, so it cannot open another connection.
            set_passwords(settings, new_passwords)
    lists = {
        word: [_as_row(right) for right in found]
        for word, found in (("granted", changes.granted), ("withdrawn", changes.withdrawn))
    }
    lines = [f"{word}: {' '.join(row.values())}" for word, rows in lists.items() for row in rows]
    summary = f"ready: {len(rights(settings))} rights, {len(new_passwords)} passwords set"
    report({**lists, "users": [*new_passwords]}, *lines, summary, as_json=as_json)


def _password(file: Path) -> str:
    try:
        password = password_in(file)
    except UnicodeDecodeError:
        stop(f"{file} is not UTF-8: write the password of the user {file.name} into it", MISUSED)
    if not password:
        stop(f"{file} is empty: write the password of the user {file.name} into it", MISUSED)
    return password


def _as_row(right: AclBinding) -> dict[str, str]:
    return {
        "user": right.principal.removeprefix("User:"),
        "may": AclOperation(right.operation).name.lower(),
        "kind": ResourceType(right.restype).name.lower(),
        "name": right.name + "*" * (right.resource_pattern_type == ResourcePatternType.PREFIXED),
    }
