"""Everything that runs in Spark: the queries (``python -m pipelines``), the audit and the rebuild.

``pyproject.toml`` has the layers of its packages.
"""
