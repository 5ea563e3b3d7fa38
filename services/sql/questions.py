"""Ready questions: statements with names. `loyalty sql NAME` answers one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A statement with a name. ``asks`` is the question in one line."""

    name: str
    asks: str
    sql: str


_POINTS_BY_MONTH = """
        SELECT strftime(Moment, '%Y-%m') AS Month,
            coalesce(
                sum(Points) FILTER (Kind IN ('earned', 'imported') OR (Kind = 'adjusted' AND Points > 0)), 0
            ) AS Issued,
            coalesce(-sum(Points) FILTER (Kind = 'redeemed'), 0) AS Redeemed,
            coalesce(-sum(Points) FILTER (Kind = 'expired'), 0) AS Expired,
            sum(Points) - Issued + Redeemed + Expired AS Other
        FROM (SELECT *, max(Time) OVER (PARTITION BY Account ORDER BY Sequence) AS Moment FROM loyalty_entries)
        GROUP BY Month ORDER BY Month
        """


def _share_so_far(column: str) -> str:
    """The statement for the share of all points that were issued until the end of each month.

    The shares of single months would be useless: the points that leave in a month were issued in earlier months.
    """
    return f"""
        WITH months AS ({_POINTS_BY_MONTH})
        SELECT Month, sum(Issued) OVER until AS IssuedSoFar, sum({column}) OVER until AS {column}SoFar,
            round(100 * {column}SoFar / nullif(IssuedSoFar, 0), 2) AS PercentSoFar
        FROM months WINDOW until AS (ORDER BY Month) ORDER BY Month
        """  # noqa: S608  # the column is a constant of this module


QUESTIONS = (
    Question(
        "liability",
        "How many points do we owe, by month of expiry and tier?",
        "SELECT * FROM liability ORDER BY Expiry, Tier",
    ),
    Question(
        "expiring-points",
        "How many points expire in each month, and how many remain after it? Debts do not count.",
        """
        SELECT Expiry, sum(Points) AS Expiring,
            sum(sum(Points)) OVER () - sum(sum(Points)) OVER (ORDER BY Expiry) AS Rest
        FROM liability WHERE Expiry <> 'debt' GROUP BY Expiry ORDER BY Expiry
        """,
    ),
    Question(
        "points-by-month",
        "How many points were issued and redeemed in each month, and how many expired? Imports and positive "
        "adjustments are issued points. Other has all other changes, for example returns and negative adjustments.",
        _POINTS_BY_MONTH,
    ),
    Question(
        "redemption-rate",
        "Which share of all points that were issued until the end of a month was redeemed until then?",
        _share_so_far("Redeemed"),
    ),
    Question(
        "breakage",
        "Which share of all points that were issued until the end of a month has expired until then? Points that can "
        "expire later do not count, so it is no forecast.",
        _share_so_far("Expired"),
    ),
    Question(
        "members-by-tier",
        "How many members has each tier, and how many points do they have?",
        """
        WITH members AS (
            SELECT Account, arg_max(Tier, Sequence) AS Tier, arg_max(Total, Sequence) AS Total,
                arg_max(Kind, Sequence) FILTER (Kind IN ('erased', 'moved-out', 'moved-in')) AS Last
            FROM loyalty_entries GROUP BY Account
        )
        SELECT Tier, count(*) AS Members, sum(Total) AS Points FROM members
        WHERE coalesce(Last, '') NOT IN ('erased', 'moved-out')
        GROUP BY Tier ORDER BY Tier
        """,
    ),
    Question(
        "active-members",
        "How many members bought something, by month, and how much? A replaced card counts as another member.",
        """
        SELECT strftime(Time, '%Y-%m') AS Month,
            count(DISTINCT Account) AS Members, count(*) AS Invoices, round(sum(Amount), 2) AS Amount
        FROM loyalty_entries WHERE Kind = 'earned' GROUP BY Month ORDER BY Month
        """,
    ),
    Question(
        "repeat-rate",
        "Which share of a shop's members has bought there more than once? Only invoices with line items count. "
        "A replaced card counts as another member.",
        """
        WITH nearest AS (
            SELECT Account, InvoiceNumber, StoreID, date, CreatedTime, apart(Time, date, CreatedTime) AS Distance
            FROM loyalty_entries JOIN invoices USING (InvoiceNumber) WHERE Kind = 'earned'
            QUALIFY 1 = row_number() OVER (PARTITION BY Account, Sequence ORDER BY Distance, StoreID, CreatedTime)
        ), buyers AS (
            SELECT * FROM nearest QUALIFY Account = arg_min(Account, (Distance, Account)) OVER (
                PARTITION BY InvoiceNumber, StoreID, date, CreatedTime
            )
        ), visits AS (
            SELECT StoreID, Account, count(*) AS Visits FROM buyers GROUP BY StoreID, Account
        )
        SELECT StoreID, count(*) AS Members, count(*) FILTER (Visits > 1) AS Repeating,
            round(100 * Repeating / Members, 2) AS Percent
        FROM visits GROUP BY StoreID ORDER BY Percent DESC, StoreID
        """,
    ),
    Question(
        "campaign-uplift",
        "What are the mean amount of an invoice and the points for 100 of money, by version of the programme?",
        """
        WITH versions AS (
            SELECT ProgrammeVersion, count(*) AS Invoices,
                round(avg(Amount), 2) AS MeanAmount,
                round(100 * sum(Points) / nullif(sum(Amount), 0), 2) AS PointsPer100
            FROM loyalty_entries WHERE Kind = 'earned' GROUP BY ProgrammeVersion
        )
        SELECT *, round(100 * MeanAmount / nullif(lag(MeanAmount) OVER (ORDER BY ProgrammeVersion), 0) - 100, 2)
            AS UpliftPercent
        FROM versions ORDER BY ProgrammeVersion
        """,
    ),
    Question(
        "sales-by-city",
        "How much do home deliveries bring in each city?",
        """
        SELECT City, count(*) AS Invoices, sum(Net) AS Net FROM invoices
        WHERE upper(DeliveryType) = 'HOME-DELIVERY' GROUP BY City ORDER BY Net DESC, City
        """,
    ),
    Question(
        "top-items",
        "Which twenty items have the highest sales? Returns are not subtracted.",
        """
        SELECT ItemCode, any_value(ItemDescription) AS Item, sum(ItemQty) AS Quantity,
            round(sum(TotalValue), 2) AS Value
        FROM line_items WHERE LineKind IS DISTINCT FROM 'return'
        GROUP BY ItemCode ORDER BY Value DESC, ItemCode LIMIT 20
        """,
    ),
    Question(
        "return-rate",
        "Which share of its sales does each shop take back?",
        """
        SELECT StoreID, sum(Sold) AS Sold, sum(Returned) AS Returned,
            round(100 * sum(Returned) / nullif(sum(Sold), 0), 2) AS Percent
        FROM invoices GROUP BY StoreID ORDER BY Percent DESC, StoreID
        """,
    ),
    Question(
        "dead-letters",
        "Why were records refused, the most frequent reason first?",
        """
        SELECT OriginTopic, Reason, sum(Records) AS Records, max(Day) AS LastDay
        FROM dead_letters_by_reason GROUP BY ALL ORDER BY Records DESC, Reason
        """,
    ),
)

BY_NAME = {question.name: question for question in QUESTIONS}
