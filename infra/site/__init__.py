"""The parts of the documents that come from code."""
