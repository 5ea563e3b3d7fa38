"""The contracts with other programs: an OpenAPI document for HTTP, and an AsyncAPI document for Kafka.

Both documents are generated from the code and committed. A test compares them with the code and with the last release.
"""
