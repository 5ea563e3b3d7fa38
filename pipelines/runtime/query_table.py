"""The list of all queries."""

from pipelines.queries.archive import ARCHIVE
from pipelines.queries.export import EXPORT
from pipelines.queries.fan_out import FAN_OUT
from pipelines.queries.loyalty import LOYALTY
from pipelines.queries.sales import SALES

CONTINUOUS = (FAN_OUT, LOYALTY, SALES, EXPORT)
"""The queries that run by default."""

QUERIES = {query.name: query for query in (*CONTINUOUS, ARCHIVE)}
