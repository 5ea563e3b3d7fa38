"""Keys of buckets."""

from functools import cache

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


@cache
def partition_keys(spark: SparkSession, partitions: int) -> list[int]:
    """By the number of a shuffle partition, a key that Spark's partitioner sends there."""
    numbers = F.sequence(F.lit(0), F.lit(64 * partitions))
    keys = F.transform(numbers, lambda key: F.struct(F.pmod(F.hash(key), F.lit(partitions)), key))
    (row,) = spark.range(1).select(keys.alias("keys")).collect()
    key_of = dict(reversed(row.keys))
    return [key_of[partition] for partition in range(partitions)]
