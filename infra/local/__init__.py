"""The stack as processes of one machine: the broker, the pipeline, API instances, the ledger and webhooks."""
