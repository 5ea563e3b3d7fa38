"""Liability for finance: the points that accounts owe, by month of expiry and tier, now and at the ends of months."""

from services.sql.table import MONEY, Column, Table

_OWED = """
    WITH RECURSIVE dated AS (
        SELECT account_id, sequence, kind, points, total, tier, counterparty,
            max(time_of(time)) OVER (PARTITION BY account_id ORDER BY sequence) AS latest,
            date_trunc('month', latest)::DATE AS month,
            CASE WHEN expires_time = 0 THEN TIMESTAMP 'infinity' ELSE time_of(expires_time) END AS expires,
            CASE WHEN expires_time = 0 THEN DATE 'infinity'
                ELSE date_trunc('month', time_of(expires_time - 1))::DATE END AS expiry
        FROM ledger_entry
    ), origins AS (
        SELECT DISTINCT account_id, account_id AS origin, DATE '0001-01-01' AS since, NULL::BIGINT AS moved FROM dated
        UNION
        SELECT origins.account_id, id, greatest(since, month), least(moved, points)
        FROM origins JOIN dated ON dated.account_id = origin AND kind = 'moved-in'
        JOIN ledger_account ON coalesce(card, pseudonym) = counterparty AND id <> origins.account_id
    ), added AS (
        SELECT origins.account_id, origin, moved, greatest(month, since) AS since, expiry, max(expires) AS expires,
            sum(points) AS points
        FROM (
            SELECT account_id, origin, min(since) AS since, max(moved) AS moved FROM origins GROUP BY ALL
        ) AS origins JOIN dated ON dated.account_id = origin
        WHERE kind IN ('earned', 'received', 'imported', 'adjusted') AND points > 0 GROUP BY ALL
    ), lots AS (
        -- An old card gives only the points that it still has: those that expire last.
        SELECT account_id, since, expiry, expires, least(points, moved - coalesce(sum(points) OVER (
            PARTITION BY account_id, origin ORDER BY expiry DESC, since ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0)) AS held
        FROM added QUALIFY held > 0
        UNION ALL
        SELECT DISTINCT account_id, DATE '0001-01-01', DATE '-infinity', TIMESTAMP 'infinity', NULL FROM dated
    ), months AS (
        SELECT account_id, month, max(latest) AS latest, arg_max(total, sequence) AS total,
            arg_max(tier, sequence) AS tier,
            lead(month) OVER (PARTITION BY account_id ORDER BY max(sequence)) AS next_month
        FROM dated GROUP BY account_id, month {only}
    ), parts AS (
        SELECT account_id, month, next_month, tier, expiry,
            coalesce(sum(held) OVER (
                PARTITION BY account_id, month ORDER BY expiry DESC, since
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ), 0) AS later,
            CASE WHEN expiry = '-infinity' THEN total - greatest(0, least(total, later))
                ELSE greatest(0, least(held, total - later)) END AS part
        FROM months JOIN lots USING (account_id) WHERE since <= month AND expires > latest
    ), owed AS (
        SELECT month, next_month, tier, sum(part) AS points,
            CASE WHEN expiry = 'infinity' THEN 'never' WHEN expiry > '-infinity' THEN strftime(expiry, '%Y-%m')
                WHEN sum(part) < 0 THEN 'debt' ELSE 'unknown' END AS expiry
        FROM parts WHERE part <> 0 GROUP BY account_id, month, next_month, tier, parts.expiry
    )
"""
"""What each account owes by month of expiry, after the last change of each month in which it changes (``month``).

Customers spend the points that expire soonest. So the points that are left are those that expire last. Points that
moved from another account have the lots of that account (``origins``), at most the smallest number of the moves on the
way. The lot with the expiry ``-infinity`` takes the points that no other lot explains. An account has one row for each
month and expiry. ``next_month`` is the next month with a change, null in the newest row.
"""


def _with_owed(only: str, query: str) -> str:
    """The query that defines ``owed``. ``only`` can omit months."""
    return _OWED.replace("{only}", only) + query


_OWED_COLUMNS = (
    Column(
        "Expiry",
        "VARCHAR",
        "Month of expiry in UTC (2027-03). `never`; `debt`: the account owes points; `unknown`: no entry of the ledger "
        "says when they expire.",
    ),
    Column("Tier", "VARCHAR", "Tier of the account at that time. Empty: none."),
    Column("Accounts", "BIGINT", "Number of accounts with such points."),
    Column("Points", MONEY, "Points that are not spent, reserved and pending points included."),
)

LIABILITY = Table(
    "liability",
    "a month of expiry and a tier, now",
    "the ledger (topic loyalty)",
    _OWED_COLUMNS,
    _with_owed(
        "QUALIFY next_month IS NULL",
        """
    SELECT expiry AS Expiry, tier AS Tier, count(*) AS Accounts, sum(points(points))::DECIMAL(38, 2) AS Points
    FROM owed GROUP BY expiry, tier ORDER BY ALL
    """,
    ),
)

LIABILITY_BY_MONTH = Table(
    "liability_by_month",
    "the end of a month, a month of expiry and a tier",
    "the ledger (topic loyalty)",
    (
        Column("MonthEnd", "DATE", "Last day of a month that has ended, in UTC."),
        *_OWED_COLUMNS,
    ),
    # An account has no row for each month. Its amount is added in one month, and subtracted in the month of the next
    # change.
    _with_owed(
        "",
        """
    , changes AS (
        SELECT month, expiry, tier, count(*) AS accounts, sum(points) AS points FROM owed GROUP BY ALL
        UNION ALL
        SELECT next_month, expiry, tier, -count(*), -sum(points) FROM owed
        WHERE next_month IS NOT NULL GROUP BY ALL
    ), ended AS (
        SELECT unnest(generate_series(
            min(month)::TIMESTAMP, date_trunc('month', time_of(epoch_ms(now()))) - INTERVAL 1 MONTH, INTERVAL 1 MONTH
        ))::DATE AS first_day
        FROM changes
    )
    SELECT last_day(first_day) AS MonthEnd, expiry AS Expiry, tier AS Tier, sum(accounts)::BIGINT AS Accounts,
        sum(points(points))::DECIMAL(38, 2) AS Points
    FROM ended JOIN changes ON month <= first_day GROUP BY first_day, expiry, tier HAVING sum(accounts) <> 0
    ORDER BY ALL
    """,
    ),
    day="MonthEnd",
)
