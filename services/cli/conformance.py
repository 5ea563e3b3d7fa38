"""`loyalty conformance`: report what is wrong with the records of a till."""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Annotated

import typer

from services.cli.output import FAILED, MISUSED, AsJson, clear_errors, open_input, read_settings, report, stop, table
from services.conformance.review import Finding, Review, Sent
from services.conformance.sources import Layout, of_file, of_topic
from services.messaging.schema_ids import schema_ids
from services.settings import Settings


def conformance(  # noqa: PLR0913 - each option is a parameter
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Files with values of a till. - reads stdin. Default: the topic pos-invoices."),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(
            "--as",
            help="Layout of the files. lines: one value in each line. lengths: the length before each value, as "
            "kcat -f '%R%s' writes it. value: the whole file is one value.",
        ),
    ] = Layout.LINES,
    store: Annotated[
        str | None, typer.Option(help="Report only records with this StoreID in the invoice or in the key.")
    ] = None,
    till: Annotated[str | None, typer.Option(help="Report only records of this PosID.")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Read only the records of the topic from this number of past hours.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this number of records. All are counted.")] = 50,
    strict: Annotated[bool, typer.Option("--strict", help="The exit status is 1 also for warnings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report what is wrong with each record of a till: whether the pipeline refuses it, and warnings.

    The command writes nothing to Kafka. The exit status is 1 if the pipeline refuses a record.
    """
    if files and hours is not None:
        stop("--hours needs the times of the broker, but files have no times: remove --hours or the files", MISUSED)
    settings = read_settings()
    records = 0
    reasons: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    kept: list[Finding] = []
    with ExitStack() as stack, clear_errors():
        review = Review(schema_ids(settings))
        for sent in _sent(files, layout, hours, settings, stack):
            finding = review(sent)
            if not _is_selected(finding, sent, store, till):
                continue
            records += 1
            reasons.update([finding.reason] if finding.reason else [])
            if finding.reason or finding.warnings or finding.original:
                kept.append(finding)
        for finding in kept:
            review.complete(finding)
            warnings.update(finding.warnings)
    findings = [finding for finding in kept if finding.reason or finding.warnings]
    _print(records, reasons, warnings, findings, limit, as_json=as_json)
    if reasons or (strict and warnings):
        raise typer.Exit(FAILED)


def _sent(
    files: list[str] | None, layout: Layout, hours: float | None, settings: Settings, stack: ExitStack
) -> Iterable[Sent]:
    if not files:
        # For Kafka, a time before 1970 has another meaning. `--hours inf` has no time at all.
        return of_topic(settings, None if hours is None else int(max(0.0, time.time() - hours * 3600) * 1000))
    opened = [(open_input(name, stack), name) for name in files]
    return (sent for file, name in opened for sent in of_file(file, name, layout))


def _is_selected(finding: Finding, sent: Sent, store: str | None, till: str | None) -> bool:
    # A record that cannot be decoded has no StoreID, but its key may be the StoreID.
    is_of_store = store is None or finding.store == store or (not finding.store and sent.key == store.encode())
    return is_of_store and (till is None or finding.till == till)


def _print(
    records: int,
    reasons: Counter[str],
    warnings: Counter[str],
    findings: list[Finding],
    limit: int,
    *,
    as_json: bool,
) -> None:
    shown, refused = findings[:limit], reasons.total()
    value = {
        "records": records,
        "accepted": records - refused,
        "refused": refused,
        "reasons": dict(reasons.most_common()),
        "warnings": dict(warnings.most_common()),
        "findings": [{"place": each.place, "reason": each.reason, "warnings": each.warnings} for each in shown],
    }
    rows = [
        (each.place, verdict, text)
        for each in shown
        for verdict, text in [
            *([("refused", each.reason)] if each.reason else []),
            *(("warning", warning) for warning in each.warnings),
        ]
    ]
    summary = f"{records:,} records: {records - refused:,} accepted, {refused:,} refused, {warnings.total():,} warnings"
    title = f"{len(shown):,} of {len(findings):,} records: --limit shows more" if len(shown) < len(findings) else None
    found = [table("record", "verdict", "what is wrong", rows=rows, title=title)] if rows else []
    report(value, *found, summary, as_json=as_json)
