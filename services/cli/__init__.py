"""The command `loyalty`."""

import typer

from services.cli import (
    access,
    audit,
    conformance,
    dead_letters,
    deployment,
    export,
    keys,
    ledger,
    opening_balances,
    processes,
    programme,
    publish,
    schemas,
    sql,
    status,
    stores,
    top,
    trail,
)
from services.logging import log_to_stderr

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Loyalty points from invoices: topics, pipeline, API, ledger and tools for operators.",
)


@app.callback()
def _before_each_command() -> None:
    # A program that replaces this process configures its log itself.
    log_to_stderr()


app.command("simulate")(publish.simulate)
app.command("replay")(publish.replay)
app.command("import")(opening_balances.import_balances)
app.add_typer(deployment.topics, name="topics")
app.add_typer(access.app, name="access")
app.add_typer(keys.app, name="keys")
app.add_typer(stores.app, name="stores")
app.add_typer(ledger.app, name="ledger")
app.add_typer(programme.app, name="programme")
app.add_typer(schemas.app, name="schemas")
app.command("settings")(deployment.show_settings)
app.command("conformance")(conformance.conformance)
app.add_typer(dead_letters.app, name="dead-letters")
app.command("up")(processes.up)
app.command("kafka")(processes.kafka)
app.command("down")(processes.down)
app.command("demo", context_settings=processes.FORWARD_OPTIONS, add_help_option=False)(processes.demo)
app.command("pipeline", context_settings=processes.FORWARD_OPTIONS, add_help_option=False)(processes.pipeline)
app.command("api", context_settings=processes.FORWARD_OPTIONS, add_help_option=False)(processes.api)
app.command("export")(export.export)
app.command("archive", context_settings=processes.FORWARD_OPTIONS)(processes.archive)
app.command("sql")(sql.sql)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("doctor")(processes.doctor)
app.command("audit")(audit.audit)
app.command("trail")(trail.trail)
app.command("rebuild")(audit.rebuild)
app.command("returns")(audit.returns)
app.command("webhooks")(processes.webhooks)
