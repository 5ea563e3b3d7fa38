"""The table of stores."""

from datetime import UTC, datetime, timedelta

import orjson

from schemas import topics
from services.messaging.schema_ids import SchemaIds
from services.messaging.wire import Record, UndecodableError, decoder
from services.state_stores.definition import StoreDefinition, View

BALANCES = "customer-balances"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stores(ids: SchemaIds) -> tuple[StoreDefinition, ...]:
    """Every store an instance keeps."""
    return (_balances(ids),)


def _balances(ids: SchemaIds) -> StoreDefinition:
    decode = decoder(topics.LOYALTY_BALANCES, ids)

    def view(key: bytes, value: bytes) -> View:
        balance = decode(value)
        if balance["CustomerCardNo"].encode() != key:
            raise UndecodableError("the key is not the CustomerCardNo of the value")
        return View(balance["Sequence"], balance["UpdatedTime"], balance_body(balance))

    return StoreDefinition(BALANCES, topics.LOYALTY_BALANCES, view)


def balance_body(balance: Record) -> bytes:
    """The JSON that answers for a Balance.

    Points are a string with two places: exact in every client, where a JSON number becomes a binary fraction in most.
    The time is ISO 8601 in UTC. Raises UndecodableError for a time outside of the years 1 to 9999.
    """
    try:
        updated = _EPOCH + timedelta(milliseconds=balance["UpdatedTime"])
    except OverflowError as error:
        raise UndecodableError(f"{balance['UpdatedTime']} ms is no time of the calendar") from error
    shown = {**balance, "TotalLoyaltyPoints": str(balance["TotalLoyaltyPoints"]), "UpdatedTime": updated}
    return orjson.dumps(shown, option=orjson.OPT_UTC_Z)
