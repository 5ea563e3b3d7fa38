"""Checks what a till sends: the verdict of the pipeline on each record, and what a vendor should improve."""
