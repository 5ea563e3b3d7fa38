"""The table of stores."""

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

_MINUTE = timedelta(minutes=1)
# A sum has up to 28 digits: the default context would round the average of a large one twice.
_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)
_HUNDREDTH = Decimal("0.01")


def stores(ids: SchemaIds, threshold: Decimal = TOP_CUSTOMERS_THRESHOLD) -> tuple[StoreDefinition, ...]:
    """Every store an instance keeps; ``threshold`` is that of the top customers."""
    balances = _balances(ids)
    return (
        balances,
        StoreDefinition(TOP_CUSTOMERS, topics.LOYALTY_BALANCES, balances.view, derived=_from(threshold)),
        StoreDefinition(STORE_SALES, topics.STORE_SALES, _sales_view(ids), window=_MINUTE),
        StoreDefinition(STORES, topics.STORES, _store_view(ids), is_global=True),
        StoreDefinition(DECISIONS, topics.LOYALTY_DECISIONS, _decision_view(ids)),
        StoreDefinition(PROGRAMMES, topics.LOYALTY_PROGRAMMES, _programme_view(ids), is_global=True),
    )


def _balances(ids: SchemaIds) -> StoreDefinition:
    decode = decoder(topics.LOYALTY_BALANCES, ids, decimals_as_text=True)

    def view(key: bytes, value: bytes) -> View:
        balance = decode(value)
        _check_key(key, balance["CustomerCardNo"].encode())
        return View(balance["Sequence"], balance_body(balance), balance["UpdatedTime"], balance["OpenedTime"])

    return StoreDefinition(BALANCES, topics.LOYALTY_BALANCES, view)


def _from(threshold: Decimal) -> Filter:
    def keeps(body: bytes) -> bool:
        return Decimal(orjson.loads(body)["TotalLoyaltyPoints"]) >= threshold

    return Filter(BALANCES, keeps, f"{threshold.normalize():f} points or more")


def _sales_view(ids: SchemaIds) -> Viewer:
    decode = decoder(topics.STORE_SALES, ids)

    def view(key: bytes, value: bytes) -> View:
        sales = decode(value)
        _check_key(key, window_key(sales["StoreID"], sales["WindowStart"]))
        return View(sales["Sequence"], sales_body(sales))

    return view


def _store_view(ids: SchemaIds) -> Viewer:
    decode = decoder(topics.STORES, ids)

    def view(key: bytes, value: bytes) -> View:
        store = decode(value)
        _check_key(key, store["StoreID"].encode())
        return View(None, orjson.dumps(store))

    return view


def _decision_view(ids: SchemaIds) -> Viewer:
    decode = decoder(topics.LOYALTY_DECISIONS, ids)

    def view(key: bytes, value: bytes) -> View:
        decision = decode(value)
        _check_key(key, decision["CommandID"].encode())
        return View(decision["Sequence"], decision_body(decision))

    return view


def _programme_view(ids: SchemaIds) -> Viewer:
    decode = decoder(topics.LOYALTY_PROGRAMMES, ids)

    def view(key: bytes, value: bytes) -> View:
        version = decode(value)
        _check_key(key, str(version["Version"]).encode())
        times = {name: _time(version[name]) for name in ("EffectiveTime", "PublishedTime")}
        return View(None, orjson.dumps({**version, **times}, option=orjson.OPT_UTC_Z))

    return view


def balance_body(balance: Record) -> bytes:
    """The JSON that answers for a Balance.

    Points are a string with two places: exact in every client, where a JSON number becomes a binary fraction in most.
    Times are ISO 8601 in UTC. Raises UndecodableError for a time outside of the years 1 to 9999.
    """
    available = balance["AvailableLoyaltyPoints"]
    if available is None:
        # Written before points could be pending or reserved: all that there were could be spent.
        available = balance["TotalLoyaltyPoints"]
    shown = {
        "CustomerCardNo": balance["CustomerCardNo"],
        "TotalLoyaltyPoints": _points(balance["TotalLoyaltyPoints"]),
        "AvailableLoyaltyPoints": _points(available),
        "PendingLoyaltyPoints": _points(balance["PendingLoyaltyPoints"]),
        "ReservedLoyaltyPoints": _points(balance["ReservedLoyaltyPoints"]),
        "Tier": balance["Tier"] or None,
        "Sequence": balance["Sequence"],
        "OpenedTime": _time_or_none(balance["OpenedTime"]),
        "UpdatedTime": _time(balance["UpdatedTime"]),
    }
    return orjson.dumps(shown, option=orjson.OPT_UTC_Z)


def decision_body(decision: Record) -> bytes:
    """The JSON of a Decision: points and times as in ``balance_body``; null for what it says nothing about."""
    shown = {
        "CommandID": decision["CommandID"],
        "Status": decision["Status"],
        "Kind": decision["Kind"],
        "CustomerCardNo": decision["CustomerCardNo"] or None,
        "Points": _points_or_none(decision["Points"]),
        "RedemptionID": decision["RedemptionID"] or None,
        "Reason": decision["Reason"] or None,
        "ExpiresTime": _time_or_none(decision["ExpiresTime"]),
        "TotalLoyaltyPoints": _points_or_none(decision["TotalLoyaltyPoints"]),
        "AvailableLoyaltyPoints": _points_or_none(decision["AvailableLoyaltyPoints"]),
        "AccountSequence": decision["AccountSequence"] or None,
        "OpenedTime": _time_or_none(decision["OpenedTime"]),
        "UpdatedTime": _time_or_none(decision["UpdatedTime"]),
        "RequestHash": decision["RequestHash"],
    }
    return orjson.dumps(shown, option=orjson.OPT_UTC_Z)


def sales_body(sales: Record) -> bytes:
    """The JSON that answers for StoreSales: amounts and times as in ``balance_body``, and the average amount.

    The average has two places, rounded half up (away from zero). Raises UndecodableError for a time that no calendar
    has and for a window without invoices.
    """
    if sales["Count"] < 1:
        raise UndecodableError(f"a window of {sales['Count']} invoices has no average")
    # "plus" makes the minus zero of a small loss a zero.
    average = _EXACT.plus(_EXACT.quantize(_EXACT.divide(sales["Sum"], Decimal(sales["Count"])), _HUNDREDTH))
    shown = {
        "StoreID": sales["StoreID"],
        **{name: _time(sales[name]) for name in ("WindowStart", "WindowEnd")},
        "Count": sales["Count"],
        **{name: str(sales[name]) for name in ("Sum", "Minimum", "Maximum")},
        "Average": str(average),
        "Sequence": sales["Sequence"],
        "UpdatedTime": _time(sales["UpdatedTime"]),
    }
    return orjson.dumps(shown, option=orjson.OPT_UTC_Z)


def _check_key(key: bytes, of_value: bytes) -> None:
    if key != of_value:
        raise UndecodableError("the key is not that of the value")


def _points(points: Decimal | str | None) -> str:
    # fastavro gives None for a decimal that an older writer left to its default, which is zero.
    return "0.00" if points is None else str(points)


def _points_or_none(points: Decimal | None) -> str | None:
    return None if points is None else str(points)


def _time_or_none(milliseconds: int) -> datetime | None:
    return _time(milliseconds) if milliseconds else None


def _time(milliseconds: int) -> datetime:
    try:
        return to_datetime(milliseconds)
    except OverflowError as error:
        raise UndecodableError(f"{milliseconds} ms is no time of the calendar") from error
