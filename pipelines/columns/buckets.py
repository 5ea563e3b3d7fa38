"""Buckets: the groups of the stateful operators."""

from collections.abc import Sequence
from functools import cache

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F


def bucket_of(keys: Sequence[int], hashed: Column) -> Column:
    """The key of the bucket to which a hash belongs. ``keys`` are the keys of all buckets."""
    return F.get(F.array(*map(F.lit, keys)), F.pmod(hashed, F.lit(len(keys))).cast("int"))


@cache
def partition_keys(spark: SparkSession, partitions: int) -> list[int]:
    """For each shuffle partition, a key that Spark's partitioner sends there."""
    numbers = F.sequence(F.lit(0), F.lit(64 * partitions))
    keys = F.transform(numbers, lambda key: F.struct(F.pmod(F.hash(key), F.lit(partitions)), key))
    (row,) = spark.range(1).select(keys.alias("keys")).collect()
    key_of = dict(reversed(row.keys))
    return [key_of[partition] for partition in range(partitions)]
