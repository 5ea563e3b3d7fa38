"""The models of requests and responses."""
