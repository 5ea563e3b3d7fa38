"""The checkpoint of a query: manifest, lock, positions, and what must not change between two runs."""
