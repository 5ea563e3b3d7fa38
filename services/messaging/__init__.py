"""Kafka without Spark: clients, readers, publishers, Avro, schema ids, topics, rights and dead letters."""
