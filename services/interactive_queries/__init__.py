"""The group of API instances: which instance owns a partition, and reads of the local copies."""
