"""Measure the latency from an invoice to its balance over HTTP at a steady rate, and compare it with a figure of Spark.

``benchmarks.latency`` measures the same latency with redemptions, idle and under load, in several runs.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.latency import BALANCE, PARTS, VARIANTS, Load, started
from benchmarks.latency import measure as measured
from infra.local.stack import private_settings

_SPARKS_OWN = "Spark's own stateful micro-batch, Kafka to Kafka, 1,000 records/s on 15 slots (published)"
_SPARKS_OWN_P99_MS = 463.0
"""apache/spark, connector/kafka-0-10-sql/benchmarks/RTMKafkaTransformWithStateBenchmark-results.txt."""


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report in milliseconds, one for each way to run the queries."""
    entries = []
    load = f"{options.rate} invoices/s"
    loads = [Load(None, options.warm_up, options.rate), Load(load, options.duration, options.rate)]
    for place, (name, queries) in enumerate(VARIANTS.items()):
        own = directory / str(place)
        settings = private_settings(
            own,
            spark_master="local[2]",
            shuffle_partitions=options.shuffle_partitions,
        )
        with started(own, settings, queries) as stack:
            samples = measured(stack, loads, options.customers)
        figures = {part: _spread(samples.milliseconds[part, load]) for part in PARTS}
        print("latency", name, figures, flush=True)
        p99 = figures[BALANCE]["p99_ms"]
        entries.append(
            {
                "work": f"publish to balance over HTTP at {options.rate} invoices/s, p99 ms, {name}, "
                f"{options.shuffle_partitions} shuffle partitions",
                "ours": p99,
                "peer": _SPARKS_OWN_P99_MS,
                "peer_name": _SPARKS_OWN,
                "ratio": round(p99 / _SPARKS_OWN_P99_MS, 3),
                "ratio_per_cpu_second": None,
                "runs": figures,
                "goal": "≤ 1,000 ms",
            }
        )
    return entries


def _spread(milliseconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(milliseconds, (50, 99))
    return {"invoices": len(milliseconds), "p50_ms": round(p50), "p99_ms": round(p99)}
