"""Finds the instances that can answer a request, and forwards the request to them."""
