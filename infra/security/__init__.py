"""Certificates and passwords of a secured Kafka."""
