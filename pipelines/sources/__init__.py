"""What queries read: Kafka, and the clock of the loyalty query."""
