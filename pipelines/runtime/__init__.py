"""The Spark session, the definition of a query, its metrics, and what keeps queries running."""
