"""Measure the cost of an invoice with 1, 4 and 16 times the invoices and customers."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.brokers import broker
from benchmarks.peers.runs import Figures, run_ours
from benchmarks.peers.workload import FAN_OUT, LOYALTY, Workload
from services.pos_simulator.simulation import Options

SIZES = (1, 4, 16)
_INVOICES_A_CUSTOMER = 4
_BATCHES = 4
"""Number of micro-batches of the first size, and of each warm-up."""


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the seconds and processor seconds for 1,000 invoices of each size with those of the first size.

    The warm-up of each run has as many invoices as the first size. Returns the entries of the report.
    """
    runs: dict[tuple[str, int], Figures] = {}
    with broker(
        directory, max_offsets_per_trigger=options.base // _BATCHES, shuffle_partitions=options.shuffle_partitions
    ) as settings:
        for size in SIZES:
            own = settings.model_copy(update={"topic_prefix": f"growth-{size}-"})
            count = options.base * (size + 1)
            customers = options.base * size // _INVOICES_A_CUSTOMER
            workload = Workload(own, Options(count, customers=customers, repeats=0.01, broken=options.broken))
            workload.load()
            for branch in (FAN_OUT, LOYALTY):
                figures = run_ours(workload, branch, directory / f"{branch}-{size}", warm_up=_BATCHES)
                runs[branch, size] = figures
                print("growth", branch, size, figures, flush=True)
    return [_entry(branch, size, runs) for branch in (FAN_OUT, LOYALTY) for size in SIZES[1:]]


def _entry(branch: str, size: int, runs: dict[tuple[str, int], Figures]) -> dict[str, Any]:
    larger, first = runs[branch, size], runs[branch, SIZES[0]]
    seconds = [1000 / figures["invoices_per_second"] for figures in (larger, first)]
    cost = [figures["cpu_seconds_per_1000_invoices"] for figures in (larger, first)]
    return {
        "work": f"growth of {branch}, {size} times, seconds per 1,000 invoices",
        "ours": round(seconds[0], 3),
        "peer": round(seconds[1], 3),
        "peer_name": "itself at once the size",
        "ratio": round(seconds[0] / seconds[1], 3),
        "ratio_per_cpu_second": round(cost[0] / cost[1], 3),
        "runs": {"larger": [larger], "first": [first]},
        "goal": "< 1.3",
    }
