"""The ledger process: ``python -m services.ledger`` or ``loyalty ledger run``. This module connects its parts."""

import signal
import sys

import structlog
from confluent_kafka import KafkaException
from sqlalchemy.exc import DBAPIError

from schemas.topics import LOYALTY
from services import tracing
from services.errors import UserError
from services.health import serve_health
from services.ledger.appender import Appender
from services.ledger.consumer import LedgerConsumer
from services.ledger.database import writing_engine
from services.ledger.metrics import Metrics
from services.logging import configure_logging
from services.messaging.avro import decoder
from services.messaging.schema_ids import schema_ids
from services.pseudonyms import pseudonyms
from services.settings import Settings, read_settings
from services.start_up import require_port

log = structlog.get_logger("services.ledger")

_EXIT_DO_NOT_RESTART = 2
"""The exit status of errors that a restart does not solve."""


def run(settings: Settings) -> None:
    """Run the ledger until SIGTERM or SIGINT. Raises StartUpError, LedgerError, SettingsError, OSError."""
    require_port(settings.metrics_host, settings.ledger_metrics_port, "LOYALTY_LEDGER_METRICS_PORT")
    metrics = Metrics()
    engine = writing_engine(settings.ledger_url)
    appender = Appender(engine, pseudonyms(settings.pseudonym_key_file), settings.name_of(LOYALTY))
    consumer = LedgerConsumer(settings, appender, decoder(LOYALTY, schema_ids(settings, waits=False)), metrics)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _, __: consumer.stop())
    try:
        with serve_health(settings, settings.ledger_metrics_port, metrics.registry, lambda: consumer.problem):
            consumer.run()
    finally:
        engine.dispose()


def main() -> int:
    try:
        settings = read_settings()
        settings.require_safe_metrics()
        tracing.start("loyalty-ledger")
        configure_logging(settings)
        run(settings)
    except (UserError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status if isinstance(error, UserError) else _EXIT_DO_NOT_RESTART
    except KafkaException as error:
        sys.stderr.write(f"error: the settings of Kafka do not work: {error.args[0].str()}\n")
        return _EXIT_DO_NOT_RESTART
    except DBAPIError as error:
        # The details of the driver can have card numbers.
        reason = str(error.orig).partition("\n")[0]
        advice = (
            "remove the cause, for example give the user of LOYALTY_LEDGER_URL the missing right, then start it again"
        )
        sys.stderr.write(f"error: the database refuses a statement: {reason}; {advice}\n")
        return 1
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
