"""Measure the export to Parquet and to Delta (``make bench-export``): records per second, processor time and files.

The benchmark loads the topic hadoop once. Then the export reads the topic to its end several times, each time into a
new folder, and the formats alternate. The first micro-batch is the warm-up. Writes var/reports/export.json.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.brokers import broker
from benchmarks.machine import machine
from benchmarks.pipeline import Variant, run_to_the_end
from benchmarks.reports import medians, publish_report
from infra.demo.invoice_oracle import rows
from infra.local.folders import ROOT
from schemas import topics
from services.messaging.administration import create_topics
from services.messaging.avro import encoder
from services.messaging.publishing import connected_producer, publish
from services.messaging.schema_ids import FolderSchemaIds
from services.pos_simulator.simulation import Options, Simulation
from services.settings import Settings
from services.sql.maintenance import maintain

REPORT = Path("var/reports/export.json")
FORMATS = ("parquet", "delta")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--invoices", type=int, default=40_000, help="number of invoices whose line items are exported")
    parser.add_argument("--batch", type=int, default=10_000, help="records in each micro-batch")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each format")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = {"machine": machine(), "options": vars(options), "medians": measure(Path(directory), options)}
    publish_report(REPORT, report)


def measure(directory: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in FORMATS}
    with broker(directory, max_offsets_per_trigger=options.batch) as settings:
        create_topics(settings)
        name = settings.name_of(topics.HADOOP)
        publish(lines(options.invoices), connected_producer(settings, "benchmark", [name]), name)
        for number in range(options.rounds):
            for export_format in FORMATS:
                folder = directory / f"{export_format}-{number}"
                own = settings.model_copy(update={"export_format": export_format, "export_dir": str(folder)})
                runs[export_format].append(export(own, directory / f"{folder.name}.log"))
                print(export_format, runs[export_format][-1], flush=True)
    return medians(runs)


def lines(invoices: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values for the topic hadoop, from simulated invoices."""
    encode = encoder(topics.HADOOP, FolderSchemaIds())
    for message in Simulation(Options(count=invoices, repeats=0, broken=0)).messages():
        for line in map(dict, rows(message.invoice or {})):
            yield str(line["StoreID"]).encode(), encode(line)


def export(settings: Settings, log: Path) -> dict[str, float]:
    found = run_to_the_end(Variant("export", ROOT), settings, log)
    figures = {
        "records_per_second": found["invoices_per_second"],
        "cpu_seconds_per_1000_records": found["cpu_seconds_per_1000_invoices"],
        "peak_memory_mib": found["peak_memory_mib"],
        **files(settings),
    }
    if settings.export_format == "delta":
        merged = maintain(settings, keep_hours=0)
        figures["files_after_maintenance"] = figures["files"] - merged.merged + merged.written
    return figures


def files(settings: Settings) -> dict[str, float]:
    found = list(Path(settings.export_dir).glob("date=*/**/*.parquet"))
    return {"files": len(found), "mib": round(sum(file.stat().st_size for file in found) / 2**20, 2)}


if __name__ == "__main__":
    main()
