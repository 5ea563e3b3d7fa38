"""The Spark session, the definition of a query and its metrics, Python workers, and calls of Spark's state."""
