"""Functions that make Spark columns, and names that all other packages share. They call the rules of ``services``."""
