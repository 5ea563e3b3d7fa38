"""Compare this pipeline and API with the alternatives that a user could choose (``make bench-peers``).

All contenders read the same preloaded invoices from the same broker, in alternation. A figure counts only if the output
agrees with the oracle of the demo. Without ``--only``, all parts run.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import growth, reads, report, scale_out, setup, throughput
from infra.local.jars import JarsError
from infra.local.java import JavaNotFoundError

PARTS: dict[str, Callable[[Path, argparse.Namespace], list[dict[str, Any]]]] = {
    "throughput": throughput.measure,
    "reads": reads.measure,
    "growth": growth.measure,
    "scale-out": scale_out.measure,
}


def main() -> None:
    options = parsed()
    try:
        setup.java_class_path()
        setup.python()
    except (setup.PeersSetupError, JarsError, JavaNotFoundError) as error:
        sys.exit(f"bench-peers: {error}")
    for part in options.only or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            entries = PARTS[part](Path(directory), options)
        report.keep(entries, f"python -m benchmarks.peers {shlex.join(sys.argv[1:])}".strip(), vars(options))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="measure only this part (can be repeated)")
    parser.add_argument("--rounds", type=int, default=3, help="number of alternating rounds")
    parser.add_argument("--invoices", type=int, default=400_000, help="number of preloaded invoices")
    parser.add_argument("--customers", type=int, default=20_000, help="number of customers")
    parser.add_argument("--batch", type=int, default=100_000, help="invoices in a micro-batch of this project")
    parser.add_argument("--broken", type=float, default=0.005, help="share of broken invoices")
    parser.add_argument(
        "--repeats",
        type=float,
        default=0.0,
        help="share of duplicates. Of the peers, only Kafka Streams drops them",
    )
    parser.add_argument("--branch", choices=["fan-out", "loyalty"], help="measure the throughput of this branch only")
    parser.add_argument(
        "--peer", action="append", metavar="NAME", help="measure only peers whose name contains this text"
    )
    parser.add_argument("--seconds", type=float, default=10, help="duration of each measurement of reads")
    parser.add_argument(
        "--shuffle-partitions", type=int, default=2, help="LOYALTY_SHUFFLE_PARTITIONS (default: one task for each core)"
    )
    parser.add_argument("--base", type=int, default=20_000, help="number of invoices of the smallest size of growth")
    return parser.parse_args()


if __name__ == "__main__":
    main()
