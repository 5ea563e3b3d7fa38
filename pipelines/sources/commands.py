"""loyalty-commands: decodes and checks the records. Each record of the topic stays exactly one row."""

from pyspark.sql import DataFrame

from pipelines.columns.decoding import decode
from schemas.topics import LOYALTY_COMMANDS
from services.messaging.schema_ids import SchemaIds


def check_commands(records: DataFrame, ids: SchemaIds) -> DataFrame:
    """Add ``command`` (struct LoyaltyCommand) and ``reason``; see ``columns.decoding``."""
    return decode(records, LOYALTY_COMMANDS, ids, into="command")
