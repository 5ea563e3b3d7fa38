"""Where queries write: Kafka, Parquet and Delta."""
