"""The results of a demo as a table and as JSON."""

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.demo.comparison import waited_returns
from infra.demo.run import Result

_SHOWN = 10


def percentile(ascending: list[float], share: float) -> float | None:
    """The percentile by nearest rank; None without values."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else None


def figures(result: Result) -> dict[str, Any]:
    """The content of var/reports/demo.json."""
    found, expected = result.found, result.expected
    return {
        "invoices": expected.messages,
        "repeats": found.repeats,
        "shipment": len(found.shipment),
        "hadoop": len(found.hadoop),
        "notifications": len(found.notifications),
        "dead_letters": len(found.dead_letters),
        "parquet_rows": len(found.parquet),
        "sales": sum(invoices for invoices, _ in found.sales_by_store.values()),
        "ledger_entries": None if found.ledger is None else len(found.ledger),
        "customers": sum(balance is not None for balance in found.balances.values()),
        "points": float(found.points),
        "mismatches": len(result.mismatches),
        "invoices_per_second": round(expected.messages / result.seconds, 1) if result.seconds else None,
        "latency_p50_ms": _milliseconds(percentile(result.latencies, 0.50)),
        "latency_p99_ms": _milliseconds(percentile(result.latencies, 0.99)),
        "latency_samples": len(result.latencies),
        "phases_seconds": result.phases,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def show(console: Console, result: Result) -> None:
    """Print the table and the first mismatches."""
    values, expected = figures(result), result.expected
    rows = expected.hadoop.total()
    waited = len(waited_returns(expected, result.found.notifications))
    table = Table("", "found", "expected")
    for column in table.columns[1:]:
        column.justify = "right"
    counted = {
        "invoices in": (values["invoices"], expected.messages),
        "repeats dropped": (values["repeats"], expected.repeats),
        "dead letters": (values["dead_letters"], expected.dead_letters.total()),
        "shipment": (values["shipment"], len(expected.shipment)),
        "hadoop": (values["hadoop"], rows),
        "parquet rows": (values["parquet_rows"], rows),
        "sales by minute": (values["sales"], sum(invoices for invoices, _ in expected.sales.values())),
        "notifications": (values["notifications"], expected.notifications + waited),
        "balances": (values["customers"], len(expected.earned) - len(expected.moved)),
    }
    if values["ledger_entries"] is not None:
        counted["ledger entries"] = values["ledger_entries"], values["notifications"]
    for name, (number, wanted) in counted.items():
        table.add_row(name, f"{number:,}", f"{wanted:,}")
    table.add_row("points", f"{result.found.points:,.2f}", f"{expected.points:,.2f}")
    table.add_row(
        "mismatches", f"[{'red' if result.mismatches else 'green'}]{len(result.mismatches):,}", "0", end_section=True
    )
    table.add_row("invoices per second", str(values["invoices_per_second"]), "")
    for name in ("p50", "p99"):
        milliseconds = values[f"latency_{name}_ms"]
        table.add_row(f"publish to balance, {name}", "-" if milliseconds is None else f"{milliseconds:,.0f} ms", "")
    console.print(table)
    for mismatch in result.mismatches[:_SHOWN]:
        console.print(f"[red]{mismatch.nature}[/red] {escape(mismatch.text)}", soft_wrap=True, highlight=False)
    if len(result.mismatches) > _SHOWN:
        console.print(f"… and {len(result.mismatches) - _SHOWN:,} more")
