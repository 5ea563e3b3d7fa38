"""Checks the records of a till: the pipeline's verdict on each, and what the vendor should improve."""
