"""Functions that make Spark columns. They call the rules of ``services``."""
