"""The tables for analysts: views over files, ledger and topics. docs/reference/tables.md shows them."""

import schemas
from services.domain.formats import FIRST_TIME, LAST_TIME
from services.sql.liability import LIABILITY, LIABILITY_BY_MONTH
from services.sql.table import MONEY, POINTS, Column, Table

MACROS = (
    "CREATE MACRO points(hundredths) AS (hundredths::DECIMAL(20, 0) * 0.01)::DECIMAL(21, 2)",
    f"CREATE MACRO time_of(ms) AS CASE WHEN ms BETWEEN {FIRST_TIME} AND {LAST_TIME} THEN epoch_ms(ms) END",
    # A till can use a number again. An entry belongs to the invoice with the nearest date. The nearest time decides
    # between invoices of one date.
    """
    CREATE MACRO apart(moment, day, clock) AS (
        greatest(epoch_ms(day) - epoch_ms(moment), epoch_ms(moment) - epoch_ms(day) - 86_399_999, 0),
        clock IS NULL, abs(epoch_ms(moment) - epoch_ms(clock))
    )
    """,
)
"""Functions of all statements: hundredths to points, milliseconds since the epoch to a time in UTC, and how far an
entry is from an invoice.
"""

_AVRO = {"string": "VARCHAR", "long": "BIGINT", "int": "INTEGER", "double": "DOUBLE"}
_MEANINGS = {
    "InvoiceNumber": "Identifies the invoice across all shops.",
    "CreatedTime": "The till's clock, milliseconds since the epoch.",
    "CustomerType": "PRIME or NONPRIME.",
    "ItemPrice": "Price of one item, in money.",
    "ItemQty": "Number of items.",
    "TotalValue": "Value of the line, in money.",
}
_DATE = Column("date", "DATE", "Day of CreatedTime in UTC, or the broker's day if CreatedTime is not usable.")


def _lines() -> tuple[Column, ...]:
    """The fields of HadoopRecord. A field of a later schema is a column of the table without a change here."""
    found = []
    for field in schemas.current("HadoopRecord")["fields"]:
        kind = next(each for each in field["type"] if each != "null")
        meaning = _MEANINGS.get(field["name"]) or field.get("doc") or "As on the invoice."
        found.append(Column(field["name"], _AVRO[kind], meaning))
    return (*found, Column("DateSource", "VARCHAR", "`till` or `broker`: the clock of the date."), _DATE)


LINE_ITEMS = Table(
    "line_items",
    "a line item of an invoice, each once, without customers",
    "the files of `loyalty export` (topic hadoop)",
    _lines(),
)

INVOICES = Table(
    "invoices",
    "an invoice that has line items",
    "line_items",
    (
        Column("InvoiceNumber", "VARCHAR", "Identifies the invoice across all shops."),
        Column("StoreID", "VARCHAR", "The shop."),
        _DATE,
        Column("CreatedTime", "TIMESTAMP", "The till's clock in UTC. Null if it is not usable."),
        Column("CustomerType", "VARCHAR", "PRIME or NONPRIME."),
        Column("PaymentMethod", "VARCHAR", "As on the invoice."),
        Column("DeliveryType", "VARCHAR", "HOME-DELIVERY or TAKEAWAY."),
        Column("City", "VARCHAR", "City of the delivery."),
        Column("State", "VARCHAR", "State of the delivery."),
        Column("Lines", "BIGINT", "Number of line items."),
        Column("Sold", MONEY, "Sum of the sold lines, in money. Discounts are subtracted."),
        Column(
            "Returned",
            MONEY,
            "Sum of the returned lines less their discounts, in money. Negative if the discounts are larger.",
        ),
        Column("Net", MONEY, "Sold less Returned, in money."),
    ),
    """
    WITH lines AS (
        SELECT *, TRY_CAST(TotalValue AS DECIMAL(26, 8)) AS amount, LineKind IS NOT DISTINCT FROM 'return' AS is_return
        FROM line_items
    ), totals AS (
        SELECT InvoiceNumber, StoreID, min(date) AS date,
            min(CASE WHEN DateSource IS DISTINCT FROM 'broker' THEN time_of(CreatedTime) END) AS CreatedTime,
            any_value(CustomerType) AS CustomerType, any_value(PaymentMethod) AS PaymentMethod,
            any_value(DeliveryType) AS DeliveryType, any_value(City) AS City, any_value(State) AS State,
            count(*) AS Lines, coalesce(sum(amount) FILTER (NOT is_return), 0)::DECIMAL(38, 2) AS Sold,
            -- Some tills send returns as positive amounts. A sold line or a negative line shows that this one does not.
            coalesce(CASE WHEN bool_or(NOT is_return OR amount < 0) THEN -sum(amount) FILTER (is_return)
                ELSE abs(sum(amount) FILTER (is_return)) END, 0)::DECIMAL(38, 2) AS Returned
        -- A till can use a number again. The lines of one invoice have the same shop and the same time.
        FROM lines GROUP BY InvoiceNumber, StoreID, lines.CreatedTime
    )
    SELECT *, (Sold - Returned)::DECIMAL(38, 2) AS Net FROM totals
    """,
    day="date",
)

CUSTOMER_LINE_ITEMS = Table(
    "customer_line_items",
    "a line item of an invoice, with the key of the customer",
    "line_items, and the ledger for the customer",
    (
        Column(
            "CustomerKey",
            "VARCHAR",
            "A keyed hash of the customer's account. Null: not a member, an erased account, or not in the ledger.",
        ),
        *LINE_ITEMS.columns,
    ),
    """
    WITH sold AS (
        SELECT InvoiceNumber, StoreID, CreatedTime, min(date) AS day
        FROM line_items GROUP BY InvoiceNumber, StoreID, CreatedTime
    ), entries AS (
        SELECT InvoiceNumber, StoreID, CreatedTime, account_id, kind, reason,
            apart(time_of(time), day, time_of(CreatedTime)) AS distance
        FROM ledger_entry JOIN sold ON InvoiceNumber = invoice_number
        WHERE kind IN ('earned', 'returned') AND invoice_number <> ''
        QUALIFY 1 = row_number() OVER (
            PARTITION BY account_id, sequence ORDER BY distance, StoreID, CreatedTime
        )
    ), owners AS (
        -- An exchange can have entries of two customers: of the buyer, and of the buyer of the returned items. An entry
        -- whose own invoice is not in the files has another invoice with its number. Their times are far apart.
        SELECT InvoiceNumber, StoreID, CreatedTime,
            arg_min(account_id, (
                distance[1] > 7 * 86_400_000, kind <> 'earned', reason = 'purchase-unknown', distance, account_id
            )) AS account_id
        FROM entries GROUP BY InvoiceNumber, StoreID, CreatedTime
    )
    SELECT customer_key AS CustomerKey, line_items.*
    FROM line_items LEFT JOIN owners ON line_items.InvoiceNumber = owners.InvoiceNumber
        AND line_items.StoreID IS NOT DISTINCT FROM owners.StoreID
        AND line_items.CreatedTime IS NOT DISTINCT FROM owners.CreatedTime
        LEFT JOIN customer_keys USING (account_id)
    """,
    day="date",
)

LOYALTY_ENTRIES = Table(
    "loyalty_entries",
    "a change of an account, without the card and without free texts",
    "the ledger (topic loyalty)",
    (
        Column("Account", "BIGINT", "Number of the account in the ledger. It says nothing about the card."),
        Column("Sequence", "BIGINT", "Counts the changes of the account, from 1."),
        Column("Time", "TIMESTAMP", "Time of the change in UTC."),
        Column("Kind", "VARCHAR", "earned, redeemed, expired … (docs/reference/records.md)."),
        Column("Points", POINTS, "Change of the total, in points."),
        Column("Total", POINTS, "Total after the change, in points."),
        Column("Available", POINTS, "Part of the total that can be spent now, in points."),
        Column("Pending", POINTS, "Part of the total that can be spent later, in points."),
        Column("Reserved", POINTS, "Part of the total that is reserved, in points."),
        Column("Tier", "VARCHAR", "Tier after the change. Empty: none."),
        Column("InvoiceNumber", "VARCHAR", "The invoice of the points. Empty: none, or an erased account."),
        Column("Amount", "DOUBLE", "Total of the invoice, in money. 0 without an invoice."),
        Column(
            "Expires",
            "TIMESTAMP",
            "Time in UTC at which the points expire. For received: at which the first of them expire. For "
            "reserved: at which the reservation lapses. For earned, released, received, adjusted and imported, null "
            "means never. For other kinds, null says nothing.",
        ),
        Column("ProgrammeVersion", "BIGINT", "Version of the programme that decided."),
    ),
    """
    WITH erased AS (SELECT id FROM ledger_account WHERE erased_time IS NOT NULL)
    SELECT account_id AS Account, sequence AS Sequence, time_of(time) AS Time, kind AS Kind, points(points) AS Points,
        points(total) AS Total, points(available) AS Available, points(pending) AS Pending,
        points(reserved) AS Reserved, tier AS Tier,
        -- An invoice number would connect an erased account with the basket in line_items.
        CASE WHEN account_id IN (FROM erased) THEN '' ELSE invoice_number END AS InvoiceNumber,
        total_amount AS Amount, time_of(nullif(expires_time, 0)) AS Expires, programme_version AS ProgrammeVersion
    FROM ledger_entry
    """,
    day="Time",
)

BALANCES_BY_DAY = Table(
    "balances_by_day",
    "an account and a day on which it changed",
    "loyalty_entries",
    (
        Column("Account", "BIGINT", "Number of the account in the ledger."),
        Column("Day", "DATE", "Day in UTC. A late change counts for the day of the change before it."),
        Column("Changes", "BIGINT", "Number of changes on the day."),
        Column("Total", POINTS, "Total after the last change of the day, in points."),
        Column("Available", POINTS, "Part of it that could be spent, in points."),
        Column("Tier", "VARCHAR", "Tier after the last change of the day. Empty: none."),
    ),
    """
    WITH dated AS (
        SELECT *, (max(Time) OVER (PARTITION BY Account ORDER BY Sequence))::DATE AS Day FROM loyalty_entries
    )
    SELECT Account, Day, count(*) AS Changes, arg_max(Total, Sequence) AS Total,
        arg_max(Available, Sequence) AS Available, arg_max(Tier, Sequence) AS Tier
    FROM dated GROUP BY Account, Day
    """,
    day="Day",
)

DEAD_LETTERS_BY_REASON = Table(
    "dead_letters_by_reason",
    "a day, an original topic and a reason",
    "topic dead-letters",
    (
        Column("Day", "DATE", "Day in UTC on which the dead letters were written."),
        Column("OriginTopic", "VARCHAR", "The topic that the records came from."),
        Column("Reason", "VARCHAR", "What could not be read, or the first rule that is broken."),
        Column(
            "Records",
            "BIGINT",
            "Number of records, each once. The files count a record on two days if its first dead letter has expired "
            "and a new checkpoint of the fan-out has written it again.",
        ),
    ),
    """
    SELECT AppendTime::DATE AS Day, OriginTopic, Reason, count(*) AS Records FROM dead_letters GROUP BY ALL
    """,
    key=("Day", "OriginTopic", "Reason"),
    counts="Records",
)

SALES_BY_MINUTE = Table(
    "sales_by_minute",
    "a shop and a minute",
    "topic store-sales",
    (
        Column("StoreID", "VARCHAR", "The shop."),
        Column("Minute", "TIMESTAMP", "Start of the minute in UTC, by the broker's clock."),
        Column("Invoices", "BIGINT", "Number of valid invoices, each once, returns included."),
        Column("Net", "DECIMAL(28,2)", "Sum of the invoices, in money. Returns are subtracted."),
        Column("Smallest", "DECIMAL(18,2)", "The smallest invoice, in money."),
        Column("Largest", "DECIMAL(18,2)", "The largest invoice, in money."),
    ),
    """
    SELECT StoreID, time_of(WindowStart) AS Minute, "Count" AS Invoices, "Sum" AS Net, Minimum AS Smallest,
        Maximum AS Largest
    FROM store_sales
    """,
    key=("StoreID", "Minute"),
    counts="Invoices",
)

TABLES = (
    LINE_ITEMS,
    INVOICES,
    CUSTOMER_LINE_ITEMS,
    LOYALTY_ENTRIES,
    BALANCES_BY_DAY,
    LIABILITY,
    LIABILITY_BY_MONTH,
    DEAD_LETTERS_BY_REASON,
    SALES_BY_MINUTE,
)
"""All tables. Each view comes after the tables that it reads."""
