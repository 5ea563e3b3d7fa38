"""Measure invoices per second of each query and of its peers, on the same topic, in alternation."""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.brokers import broker
from benchmarks.peers.contenders import Peer, peers
from benchmarks.peers.runs import Figures, run_ours, run_peer
from benchmarks.peers.workload import Workload
from services.pos_simulator.simulation import Options

OURS = "ours"
_RATE, _COST = "invoices_per_second", "cpu_seconds_per_1000_invoices"
GOALS = {
    ("fan-out", "Kafka Streams at-least-once"): "≥ 0.7 per CPU second",
    ("loyalty", "Kafka Streams exactly-once v2"): "≥ 0.5 per CPU second",
    ("loyalty", "Quix Streams"): "≥ 1.5 per CPU second",
    ("loyalty", "Faust"): "≥ 3 times the rate",
}


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Entries of the report: medians of each query and of each of its peers."""
    day = Options(options.invoices, customers=options.customers, repeats=options.repeats, broken=options.broken)
    contenders = [peer for peer in peers(drop_repeats=options.repeats > 0) if _is_wanted(peer, options)]
    with broker(
        directory, max_offsets_per_trigger=options.batch, shuffle_partitions=options.shuffle_partitions
    ) as settings:
        workload = Workload(settings, day)
        workload.load()
        runs = _all_runs(workload, contenders, directory, options.rounds)
    suffix = " (repeats dropped by both)" if options.repeats else ""
    return [_entry(peer, runs, suffix) for peer in contenders]


def _is_wanted(peer: Peer, options: argparse.Namespace) -> bool:
    wanted = options.peer or [""]
    return peer.branch == (options.branch or peer.branch) and any(name.lower() in peer.name.lower() for name in wanted)


def _all_runs(
    workload: Workload, contenders: Sequence[Peer], directory: Path, rounds: int
) -> dict[tuple[str, str], list[Figures]]:
    """Runs by branch and name."""
    runs: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    for number in range(rounds):
        for branch in dict.fromkeys(peer.branch for peer in contenders):
            workload.clear()
            figures = run_ours(workload, branch, directory / f"{branch}-{number}")
            _note(runs, branch, OURS, figures)
            for peer in (each for each in contenders if each.branch == branch):
                name = f"{peer.name.replace(' ', '-').lower()}-{branch}-{number}"
                workload.clear()
                folder = directory / name
                figures = run_peer(peer.commands(workload.settings, folder, name), workload, branch, folder)
                _note(runs, branch, peer.name, figures)
    return runs


def _note(runs: dict[tuple[str, str], list[Figures]], branch: str, name: str, figures: Figures) -> None:
    runs[branch, name].append(figures)
    print(branch, name, figures, flush=True)


def _entry(peer: Peer, runs: dict[tuple[str, str], list[Figures]], suffix: str) -> dict[str, Any]:
    ours, theirs = runs[peer.branch, OURS], runs[peer.branch, peer.name]
    rate = median(run[_RATE] for run in ours), median(run[_RATE] for run in theirs)
    cost = median(run[_COST] for run in ours), median(run[_COST] for run in theirs)
    return {
        "work": f"{peer.branch}, invoices/s{suffix}",
        "ours": rate[0],
        "peer": rate[1],
        "peer_name": peer.name,
        "ratio": round(rate[0] / rate[1], 3),
        "ratio_per_cpu_second": round(cost[1] / cost[0], 3),
        "runs": {OURS: ours, peer.name: theirs},
        "goal": "" if suffix else GOALS.get((peer.branch, peer.name), ""),
    }
