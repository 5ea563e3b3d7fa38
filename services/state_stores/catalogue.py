"""The table of stores, and the JSON bodies of their values."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal

import orjson

from schemas import topics
from services.domain.formats import to_datetime
from services.messaging.avro import Record, UndecodableError, decoder
from services.messaging.schema_ids import SchemaIds
from services.settings import TOP_CUSTOMERS_THRESHOLD
from services.state_stores.definition import Filter, StoreDefinition, View, Viewer, window_key

BALANCES = "customer-balances"
TOP_CUSTOMERS = "top-customers"
STORE_SALES = "store-sales"
STORES = "stores"
DECISIONS = "decisions"
PROGRAMMES = "programmes"
API_KEYS = "api-keys"

_MINUTE = timedelta(minutes=1)
# A sum has up to 28 digits. The default context would round the average of a large sum twice.
_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)
_HUNDREDTH = Decimal("0.01")


def stores(ids: SchemaIds, threshold: Decimal = TOP_CUSTOMERS_THRESHOLD) -> tuple[StoreDefinition, ...]:
    """All stores of an instance. A top customer has at least ``threshold`` points."""
    balances = _viewer(
        decoder(topics.LOYALTY_BALANCES, ids, decimals_as_text=True),
        lambda balance: balance["CustomerCardNo"].encode(),
        lambda balance: View(balance["Sequence"], balance_body(balance), balance["UpdatedTime"], balance["OpenedTime"]),
    )
    sales = _viewer(
        decoder(topics.STORE_SALES, ids),
        lambda sales: window_key(sales["StoreID"], sales["WindowStart"]),
        lambda sales: View(sales["Sequence"], sales_body(sales)),
    )
    store = _viewer(
        decoder(topics.STORES, ids),
        lambda store: store["StoreID"].encode(),
        lambda store: View(None, orjson.dumps(store)),
    )
    decision = _viewer(
        decoder(topics.LOYALTY_DECISIONS, ids),
        lambda decision: decision["CommandID"].encode(),
        lambda decision: View(decision["Sequence"], decision_body(decision)),
    )
    programme = _viewer(
        decoder(topics.LOYALTY_PROGRAMMES, ids),
        lambda programme: str(programme["Version"]).encode(),
        lambda programme: View(None, _programme_body(programme)),
    )
    return (
        StoreDefinition(BALANCES, topics.LOYALTY_BALANCES, balances),
        StoreDefinition(TOP_CUSTOMERS, topics.LOYALTY_BALANCES, balances, derived=_at_least(threshold)),
        StoreDefinition(STORE_SALES, topics.STORE_SALES, sales, window=_MINUTE),
        StoreDefinition(STORES, topics.STORES, store, is_global=True),
        StoreDefinition(DECISIONS, topics.LOYALTY_DECISIONS, decision),
        StoreDefinition(PROGRAMMES, topics.LOYALTY_PROGRAMMES, programme, is_global=True),
    )


def api_keys(ids: SchemaIds) -> StoreDefinition:
    """The store of the API keys. It is not in ``stores``, because no request may read it. Each instance has a copy."""
    key = _viewer(
        decoder(topics.API_KEYS, ids),
        lambda key: key["KeyID"].encode(),
        lambda key: View(None, orjson.dumps(key)),
    )
    return StoreDefinition(API_KEYS, topics.API_KEYS, key, is_global=True)


def _viewer(
    decode: Callable[[bytes], Record], key_of: Callable[[Record], bytes], view_of: Callable[[Record], View]
) -> Viewer:
    def view(key: bytes, value: bytes) -> View:
        record = decode(value)
        if key != key_of(record):
            raise UndecodableError("the key of the record is not the key of its value")
        return view_of(record)

    return view


def _at_least(threshold: Decimal) -> Filter:
    def keeps(body: bytes) -> bool:
        return Decimal(orjson.loads(body)["TotalLoyaltyPoints"]) >= threshold

    return Filter(BALANCES, keeps, f"{threshold.normalize():f} points or more")


def balance_body(balance: Record) -> bytes:
    """The JSON body of a Balance.

    Points are strings with two decimal places, because a JSON number becomes an inexact binary fraction in most
    clients. Times are ISO 8601 in UTC. Raises UndecodableError for a time outside of the years 1 to 9999.
    """
    body = {
        "CustomerCardNo": balance["CustomerCardNo"],
        "TotalLoyaltyPoints": _points(balance["TotalLoyaltyPoints"]),
        "AvailableLoyaltyPoints": _points(balance["AvailableLoyaltyPoints"]),
        "PendingLoyaltyPoints": _points(balance["PendingLoyaltyPoints"]),
        "ReservedLoyaltyPoints": _points(balance["ReservedLoyaltyPoints"]),
        "Tier": balance["Tier"] or None,
        "NextExpiryTime": _time_or_none(balance["NextExpiryTime"] or 0),
        "NextExpiryPoints": _points(balance["NextExpiryPoints"]),
        "Blocked": balance["Blocked"],
        "MovedTo": balance["MovedTo"] or None,
        "Sequence": balance["Sequence"],
        "OpenedTime": _time_or_none(balance["OpenedTime"]),
        "UpdatedTime": _time(balance["UpdatedTime"]),
    }
    return orjson.dumps(body, option=orjson.OPT_UTC_Z)


def decision_body(decision: Record) -> bytes:
    """The JSON body of a Decision, with points and times as in ``balance_body``; null for an unset field."""
    body = {
        "CommandID": decision["CommandID"],
        "Status": decision["Status"],
        "Kind": decision["Kind"],
        "CustomerCardNo": decision["CustomerCardNo"] or None,
        "Points": _points(decision["Points"]),
        "RedemptionID": decision["RedemptionID"] or None,
        "Reason": decision["Reason"] or None,
        "ExpiresTime": _time_or_none(decision["ExpiresTime"]),
        "TotalLoyaltyPoints": _points(decision["TotalLoyaltyPoints"]),
        "AvailableLoyaltyPoints": _points(decision["AvailableLoyaltyPoints"]),
        "AccountSequence": decision["AccountSequence"] or None,
        "OpenedTime": _time_or_none(decision["OpenedTime"]),
        "UpdatedTime": _time_or_none(decision["UpdatedTime"]),
        "RequestHash": decision["RequestHash"],
    }
    return orjson.dumps(body, option=orjson.OPT_UTC_Z)


def sales_body(sales: Record) -> bytes:
    """The JSON body of StoreSales, with amounts and times as in ``balance_body``, and the average amount.

    The average has two decimal places, rounded half up (away from zero). Raises UndecodableError for a time outside of
    the years 1 to 9999, and for a window without invoices.
    """
    if sales["Count"] < 1:
        raise UndecodableError(f"a window of {sales['Count']} invoices has no average")
    # "plus" turns the minus zero of a small loss into zero.
    average = _EXACT.plus(_EXACT.quantize(_EXACT.divide(sales["Sum"], Decimal(sales["Count"])), _HUNDREDTH))
    body = {
        "StoreID": sales["StoreID"],
        **{name: _time(sales[name]) for name in ("WindowStart", "WindowEnd")},
        "Count": sales["Count"],
        **{name: str(sales[name]) for name in ("Sum", "Minimum", "Maximum")},
        "Average": str(average),
        "Sequence": sales["Sequence"],
        "UpdatedTime": _time(sales["UpdatedTime"]),
    }
    return orjson.dumps(body, option=orjson.OPT_UTC_Z)


def _programme_body(programme: Record) -> bytes:
    times = {name: _time(programme[name]) for name in ("EffectiveTime", "PublishedTime")}
    return orjson.dumps({**programme, **times}, option=orjson.OPT_UTC_Z)


def _points(points: Decimal | str | None) -> str | None:
    return None if points is None else str(points)


def _time_or_none(milliseconds: int) -> datetime | None:
    return _time(milliseconds) if milliseconds else None


def _time(milliseconds: int) -> datetime:
    try:
        return to_datetime(milliseconds)
    except OverflowError as error:
        raise UndecodableError(f"{milliseconds} ms is not a time of the years 1 to 9999") from error
