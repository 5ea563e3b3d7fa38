"""An account as bytes: what the loyalty query keeps in Spark's state store.

It is an Avro ``LoyaltyAccount`` in the same framing as every value on the wire, so an account that an older version of
this project wrote is read like an old record: by its schema id.
"""

from collections.abc import Iterable
from decimal import Decimal

from services.domain.account import Account, Reservation
from services.domain.events import Line
from services.domain.lots import Lots, Terms
from services.domain.returns import PastPurchase
from services.messaging.schema_ids import FolderSchemaIds
from services.messaging.wire import Record, record_decoder, record_encoder

_RECORD = "LoyaltyAccount"
_encode = record_encoder(_RECORD, FolderSchemaIds().id_of(_RECORD))
_decode = record_decoder(_RECORD, FolderSchemaIds().writer_schema)


def dump(account: Account) -> bytes:
    """The account as Spark's state store keeps it; equal accounts give equal bytes."""
    return _encode(
        {
            "TotalLoyaltyPoints": account.total,
            "Sequence": account.sequence,
            "UpdatedTime": account.updated_time,
            "OpenedTime": account.opened_time,
            "Debt": account.debt,
            "Lots": _lot_records(account.lots),
            "Reservations": [
                {
                    "RedemptionID": redemption_id,
                    "LapsesTime": reservation.lapses_time,
                    "Lots": _lot_records(reservation.lots),
                }
                for redemption_id, reservation in account.reservations.items()
            ],
            "Purchases": [_past_record(number, purchase) for number, purchase in account.purchases.items()],
            "Commands": [{"CommandID": command_id, "AppendTime": t} for command_id, t in account.commands.items()],
            "PeriodStart": account.period_start,
            "PeriodEnd": account.period_end,
            "EarnedInPeriod": account.earned_in_period,
            "Tier": account.tier,
        }
    )


def load(state: bytes) -> Account:
    """Raises UndecodableError or UnknownSchemaIdError where the bytes are no account this version can read."""
    record = _decode(state)
    account = Account(
        opened_time=record["OpenedTime"],
        sequence=record["Sequence"],
        updated_time=record["UpdatedTime"],
        debt=record["Debt"],
        lots=_lots(record["Lots"]),
        reservations={
            reservation["RedemptionID"]: Reservation(reservation["LapsesTime"], _lots(reservation["Lots"]))
            for reservation in record["Reservations"]
        },
        purchases={purchase["InvoiceNumber"]: _past(purchase) for purchase in record["Purchases"]},
        commands={command["CommandID"]: command["AppendTime"] for command in record["Commands"]},
        tier=record["Tier"],
        period_start=record["PeriodStart"],
        period_end=record["PeriodEnd"],
        earned_in_period=record["EarnedInPeriod"],
    )
    # Accounts from before there were lots have a total alone: points that never expire, or, below 0, a debt.
    unaccounted = record["TotalLoyaltyPoints"] - account.total
    if unaccounted > 0:
        account.lots[Terms()] = unaccounted
    elif unaccounted < 0:
        account.debt = -unaccounted
    return account


def _lot_records(lots: Lots) -> list[Record]:
    return [
        {
            "Points": points,
            "ExpiresTime": terms.expires_time,
            "AvailableTime": terms.available_time,
            "NoticeTime": terms.notice_time,
        }
        for terms, points in sorted(lots.items())
    ]


def _lots(records: Iterable[Record]) -> Lots:
    return {Terms(lot["ExpiresTime"], lot["AvailableTime"], lot["NoticeTime"]): lot["Points"] for lot in records}


def _past_record(number: str, purchase: PastPurchase) -> Record:
    return {
        "InvoiceNumber": number,
        "AppendTime": purchase.append_time,
        "CreatedTime": purchase.created_time,
        "StoreID": purchase.store_id,
        "Amount": str(purchase.amount),
        "Earned": purchase.earned,
        "ProgrammeVersion": purchase.programme_version,
        "Tier": purchase.tier,
        "Lines": [{"ItemCode": line.item_code, "Value": str(line.value)} for line in purchase.lines],
    }


def _past(record: Record) -> PastPurchase:
    return PastPurchase(
        record["AppendTime"],
        Decimal(record["Amount"]),
        record["Earned"],
        record["ProgrammeVersion"],
        record["Tier"],
        record["CreatedTime"],
        record["StoreID"],
        tuple([Line(line["ItemCode"], Decimal(line["Value"])) for line in record["Lines"]]),
    )
