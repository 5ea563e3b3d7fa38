"""Sends a trading day through a running stack and reads all outputs."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from infra.containers.stack import ContainerStack
from infra.demo.comparison import Mismatch, Outputs, mismatches
from infra.demo.helpdesk import Helpdesk
from infra.demo.invoice_oracle import Record
from infra.demo.oracle import Expected, Sent
from infra.demo.probes import BalanceReader, LedgerReader, PipelineProgress, reached
from infra.demo.topic_reader import OUTPUTS, TopicReader
from infra.local.stack import LocalStack
from schemas import topics
from services.messaging.publishing import Publisher, connected_producer
from services.messaging.schema_ids import schema_ids
from services.settings import Settings
from services.sql.files import line_items

FAN_OUT, LOYALTY, SALES, EXPORT = "fan-out", "loyalty", "sales", "export"
QUERIES = {
    FAN_OUT: topics.POS_INVOICES,
    LOYALTY: topics.POS_INVOICES,
    SALES: topics.POS_INVOICES,
    EXPORT: topics.HADOOP,
}
"""The queries of the pipeline by their names in the metrics, and their input topics."""

PROGRESS_TIMEOUT_SECONDS = 480.0
"""The longest time without progress. Even on a slow machine, the first micro-batches need much less."""

WATCHED = 200
"""The number of invoices whose latency is measured, spread evenly over the day."""

_READ = (*OUTPUTS, topics.STORE_SALES)
_STEP_SECONDS = 0.1
_POLL_SECONDS = 0.5
_STRANGERS = 20
_NOBODY = "nobody-has-this-card"
_ADDED = {"DateSource", "LineID", "date", "batch"}
"""The columns that are not in a hadoop record. Any other unknown column is a mismatch."""


class DemoFailedError(RuntimeError):
    """The demo makes no progress. The message names the missing output and has the last log lines."""


@dataclass
class Result:
    """The result of a demo.

    Attributes:
        mismatches: all differences from the expected outputs.
        seconds: from the first published invoice to the last output.
        latencies: seconds from the publication of an invoice to its balance over HTTP, ascending.
        phases: the seconds of each part of the demo, by name.
    """

    expected: Expected
    found: Outputs = field(default_factory=Outputs)
    mismatches: list[Mismatch] = field(default_factory=list)
    seconds: float = 0
    latencies: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)


@contextmanager
def timed(phases: dict[str, float], name: str) -> Iterator[None]:
    """Measure the seconds of a part of the demo."""
    started = time.monotonic()
    yield
    phases[name] = round(time.monotonic() - started, 1)


class Demo:
    """One trading day in a running stack."""

    def __init__(
        self, stack: LocalStack | ContainerStack, expected: Expected, progress: Progress, resources: ExitStack
    ) -> None:
        self._stack = stack
        self._settings = stack.settings
        self._ids = schema_ids(stack.settings)
        self._expected = expected
        self._topics = resources.enter_context(closing(TopicReader(stack.settings, _READ)))
        self._pipeline = resources.enter_context(
            closing(PipelineProgress(stack.metrics_url, self._settings.metrics_key_file))
        )
        self._watched = _evenly(expected.readings, WATCHED)
        self._api = resources.enter_context(closing(BalanceReader(stack.api_url, len(self._watched), stack.key_file)))
        # The settings of a stack in containers do not lead to the database of its ledger.
        self._ledger = (
            resources.enter_context(closing(LedgerReader(stack.settings.ledger_url)))
            if isinstance(stack, LocalStack)
            else None
        )
        self._progress = progress
        self._published = 0
        self._polled = 0.0
        self._api_positions: dict[int, int] = {}
        self._exported: dict[int, int] = {}
        rows = expected.hadoop.total()
        totals = {
            "published": expected.messages,
            topics.SHIPMENT.name: len(expected.shipment),
            topics.HADOOP.name: rows,
            topics.LOYALTY.name: expected.notifications,
            topics.DEAD_LETTERS.name: expected.dead_letters.total(),
            "balances": len(expected.earned),
            "parquet rows": rows,
        }
        self._bars = {name: progress.add_task(name, total=total) for name, total in totals.items()}

    def publish(self, sent: Sequence[Sent], rate: float) -> None:
        """Publish all messages at this rate (0: as fast as possible). Measures the latency of some of them."""
        topic = self._settings.name_of(topics.POS_INVOICES)
        producer = connected_producer(self._stack.till_settings, "loyalty-demo", [topic])
        started = time.monotonic()
        with Publisher(producer) as publisher:
            for number, message in enumerate(sent):
                while rate and (left := started + number / rate - time.monotonic()) > 0:
                    publisher.poll(0)
                    self._step(min(left, _STEP_SECONDS))
                publisher.publish(topic, message.key, message.value)
                if watched := self._watched.get(self._published):
                    self._api.watch(*watched)
                self._published += 1
                self._show("published", self._published)

    def wait(self) -> None:
        """Wait until each reader has read its topics to the end, in the order of the dataflow."""
        invoices = self._topics.ends(topics.POS_INVOICES)
        for query in (FAN_OUT, LOYALTY):
            self._until(f"the {query} query", partial(self._has_passed, query, invoices))
        ends: dict[int, int] = {}
        commands = self._topics.ends(topics.LOYALTY_COMMANDS)
        while ends != commands:  # a processed command can cause another command
            ends = commands
            self._until("the commands", partial(self._has_processed, ends))
            commands = self._topics.ends(topics.LOYALTY_COMMANDS)
        rows = self._topics.ends(topics.HADOOP)
        self._until(f"the {EXPORT} query", partial(self._has_passed, EXPORT, rows))
        self._until(f"the {SALES} query", partial(self._has_passed, SALES, invoices))
        outputs = {topic: self._topics.ends(topic) for topic in _READ}
        self._until("the output topics", lambda: self._topics.has_read(outputs))
        balances = self._topics.ends(topics.LOYALTY_BALANCES)
        self._until("the API", lambda: reached(self._api_positions, balances))
        if ledger := self._ledger:
            self._until("the ledger", lambda: reached(ledger.positions(), outputs[topics.LOYALTY]))
        self._poll()

    def latencies(self) -> list[float]:
        """Seconds from the publication of each measured invoice to its balance, ascending."""
        return self._api.seconds()

    def outputs(self) -> Outputs:
        """All outputs, read to the end."""
        self._pipeline.read()
        strangers = [_NOBODY, *sorted(self._expected.strangers)[:_STRANGERS]]
        return Outputs(
            shipment=self._topics.records(topics.SHIPMENT, self._ids),
            hadoop=self._topics.records(topics.HADOOP, self._ids),
            notifications=self._topics.records(topics.LOYALTY, self._ids),
            dead_letters=self._topics.dead_letters(),
            repeats=self._pipeline.repeats(FAN_OUT),
            parquet=exported_rows(self._stack.exported()),
            sales=self._topics.records(topics.STORE_SALES, self._ids),
            ledger=self._ledger.entries() if self._ledger else None,
            balances=self._api.balances(self._expected.earned.keys() - self._expected.moved.keys()),
            moved=self._api.moved(self._expected.moved),
            unknown=self._api.statuses(strangers),
            changed=self._topics.changed,
        )

    def _has_passed(self, query: str, ends: dict[int, int]) -> bool:
        return reached(self._positions(query), ends)

    def _has_processed(self, commands: dict[int, int]) -> bool:
        return reached(self._pipeline.positions(LOYALTY, self._settings.name_of(topics.LOYALTY_COMMANDS)), commands)

    def _positions(self, query: str) -> dict[int, int]:
        return self._pipeline.positions(query, self._settings.name_of(QUERIES[query]))

    def _until(self, awaited: str, is_there: Callable[[], bool]) -> None:
        state, moved = self._state(), time.monotonic()
        while not is_there():
            self._step(_STEP_SECONDS)
            if self._state() != state:
                state, moved = self._state(), time.monotonic()
            elif time.monotonic() - moved > PROGRESS_TIMEOUT_SECONDS:
                raise DemoFailedError(
                    f"no progress for {PROGRESS_TIMEOUT_SECONDS:.0f} s while waiting for {awaited}. Read the logs:\n"
                    f"{self._stack.last_lines()}"
                )

    def _state(self) -> tuple[object, ...]:
        """A value that differs after any progress."""
        bars = tuple(task.completed for task in self._progress.tasks)
        positions = [dict(self._positions(query)) for query in QUERIES]
        return bars, positions, dict(self._api_positions), self._api.watched

    def _step(self, seconds: float) -> None:
        self._topics.read(seconds)
        if time.monotonic() - self._polled > _POLL_SECONDS:
            self._poll()

    def _poll(self) -> None:
        """Read all positions, and check that all parts run."""
        self._stack.check()
        self._pipeline.read()
        customers, self._api_positions = self._api.customers()
        for topic in OUTPUTS:
            self._show(topic.name, self._topics.count(topic))
        self._show("balances", customers)
        # Reading the files can mean copying them from a container, so read them only after new exports.
        if (exported := dict(self._positions(EXPORT))) != self._exported:
            self._show("parquet rows", count_exported_rows(self._stack.exported()))
            self._exported = exported
        self._polled = time.monotonic()

    def _show(self, bar: str, done: int) -> None:
        self._progress.update(self._bars[bar], completed=done)


def run(
    stack: LocalStack | ContainerStack,
    sent: Sequence[Sent],
    expected: Expected,
    rate: float,
    progress: Progress,
    helpdesk: Helpdesk | None = None,
) -> Result:
    """Send a trading day through a running stack, and compare all outputs with the expected ones.

    Args:
        helpdesk: imports balances before the day, and replaces a card after it.

    Raises:
        HelpdeskError: a command of the helpdesk failed.
        ProcessFailedError: a part of the stack has ended.
        DemoFailedError: there is no progress.
    """
    result = Result(expected)
    with ExitStack() as resources:
        demo = Demo(stack, expected, resources.enter_context(progress), resources)
        started = time.monotonic()
        if helpdesk:
            with timed(result.phases, "import balances twice"):
                helpdesk.import_balances(stack.settings)
        with timed(result.phases, "publish"):
            demo.publish(sent, rate)
        with timed(result.phases, "wait for the outputs"):
            demo.wait()
        if helpdesk and helpdesk.late:
            with timed(result.phases, "replace a card"):
                helpdesk.replace_card(stack.api_url, stack.key_file)
                demo.publish(helpdesk.late, 0)
                demo.wait()
        result.seconds = time.monotonic() - started
        with timed(result.phases, "read and compare"):
            result.latencies = demo.latencies()
            result.found = demo.outputs()
            result.mismatches = mismatches(expected, result.found)
    return result


def progress_bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _evenly(readings: dict[int, tuple[str, int]], at_most: int) -> dict[int, tuple[str, int]]:
    """At most this number of readings, spread evenly over the day."""
    numbers, chosen = list(readings), min(at_most, len(readings))
    picked = (numbers[place * len(numbers) // chosen] for place in range(chosen))
    return {number: readings[number] for number in picked}


def count_exported_rows(settings: Settings) -> int:
    """The number of exported rows; 0 while the files change."""
    try:
        files = line_items(settings)
        return int(files.count_rows()) if files else 0
    except (OSError, pa.ArrowInvalid):
        return 0


def exported_rows(settings: Settings) -> list[Record]:
    """The rows of all files, without the columns that the export adds to a hadoop record."""
    files = line_items(settings, schema=None)
    if not files:
        return []
    return list(files.to_table([name for name in files.schema.names if name not in _ADDED]).to_pylist())
