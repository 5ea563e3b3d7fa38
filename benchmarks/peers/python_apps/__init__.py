"""The peers in Python. They run in an environment of their own, and cannot import this project."""
