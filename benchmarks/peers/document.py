"""``python -m benchmarks.peers.document`` writes the comparison with peers into docs/lab/benchmarks.md."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.peers import report
from benchmarks.peers.report import Entry
from infra.site.markdown import table

_BAR = 40
_COLUMNS = {
    "invoices_per_second": "invoices/s",
    "cpu_seconds_per_1000_invoices": "CPU s per 1,000",
    "cpu_seconds_per_1000_invoices_with_start": "the same, start included",
    "requests_per_second": "requests/s",
    "requests_per_cpu_second": "requests/CPU s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "peak_memory_mib": "peak MiB",
}


def main() -> None:
    report.into_document(section(report.read()))


def section(entries: Sequence[Entry]) -> str:
    """The report as Markdown."""
    return "\n".join([*_circumstances(entries), *_comparisons(entries), *_chart(entries), *_all_runs(entries)])


def _circumstances(entries: Sequence[Entry]) -> Iterator[str]:
    for machine in _distinct(entry["machine"] for entry in entries):
        size = f"{machine['cores']} cores, {machine['memory_gib']} GiB"
        yield f"Machine: {machine['cpu']}, {size}, {machine['system']}, Python {machine['python']}."
    for versions in _distinct(entry["versions"] for entry in entries):
        yield f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    yield "\nCommands:\n"
    yield from (f"    {command}" for command in _distinct(f"{entry['command']}" for entry in entries))
    yield ""


def _comparisons(entries: Sequence[Entry]) -> Iterator[str]:
    rows = []
    for entry in entries:
        cells = [_number(entry["ours"]), _number(entry["peer"]), _number(entry["ratio"], 3)]
        cost = _number(entry["ratio_per_cpu_second"], 3)
        rows.append([entry["work"], entry["peer_name"], *cells, cost, entry["goal"]])
    yield table(("work", "against", "ours", "theirs", "ratio", "ratio per CPU second", "goal"), rows)


def _chart(entries: Sequence[Entry]) -> Iterator[str]:
    """Bars of the rates. The fastest contender of each work has the longest bar."""
    rates: dict[str, dict[str, float]] = {}
    for entry in entries:
        if entry["work"].partition(" ")[0] in ("fan-out,", "loyalty,", "local"):
            rates.setdefault(entry["work"], {"ours": entry["ours"]})[entry["peer_name"]] = entry["peer"]
    if not rates:
        return
    width = max(len(name) for bars in rates.values() for name in bars)
    yield "```text"
    for work, bars in rates.items():
        yield work
        fastest = max(bars.values())
        for name, rate in sorted(bars.items(), key=lambda bar: -bar[1]):
            yield f"  {name:<{width}}  {'█' * max(1, round(rate / fastest * _BAR))} {_number(rate)}"
    yield "```\n"


def _all_runs(entries: Sequence[Entry]) -> Iterator[str]:
    """Medians and ranges of all contenders."""
    seen: set[tuple[str, str]] = set()
    for head, parts in _tables(entries):
        rows = []
        for work, name, runs in parts:
            if (work, name) not in seen:
                seen.add((work, name))
                rows.append([work, name, len(runs), *(_spread(runs, column) for column in head)])
        if rows:
            yield table(["work", "who", "runs", *(_COLUMNS[column] for column in head)], rows)


def _tables(
    entries: Sequence[Entry],
) -> Iterable[tuple[tuple[str, ...], list[tuple[str, str, list[dict[str, float]]]]]]:
    """Columns, and the rows (work, contender, runs) of all runs that have these columns."""
    tables: dict[tuple[str, ...], list[tuple[str, str, list[dict[str, float]]]]] = {}
    for entry in entries:
        for name, found in entry["runs"].items():
            runs = found if isinstance(found, list) else [found]
            if runs and isinstance(runs[0], dict):
                columns = tuple(column for column in _COLUMNS if column in runs[0])
                tables.setdefault(columns, []).append((entry["work"], name, runs))
    return tables.items()


def _spread(runs: Sequence[dict[str, float]], column: str) -> str:
    values = [run[column] for run in runs]
    digits = 3 if max(values) < 10 else 0
    if len(values) == 1:
        return _number(values[0], digits)
    return f"{_number(median(values), digits)} ({_number(min(values), digits)} to {_number(max(values), digits)})"


def _number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return ""
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


if __name__ == "__main__":
    main()
