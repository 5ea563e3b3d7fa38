"""The list of all queries."""

from pipelines.queries.archive import ARCHIVE
from pipelines.queries.export import EXPORT
from pipelines.queries.fan_out import FAN_OUT
from pipelines.queries.loyalty import LOYALTY_QUERY
from pipelines.queries.sales import SALES

QUERIES = {query.name: query for query in (FAN_OUT, LOYALTY_QUERY, SALES, EXPORT, ARCHIVE)}
