import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console

from infra.demo import report
from infra.demo.comparison import Balance, Mismatch, Nature, Outputs
from infra.demo.oracle import Expected
from infra.demo.run import Result


@pytest.mark.parametrize(
    ("value", "ascending", "share"),
    [(None, [], 0.5), (7.0, [7.0], 0.99), (2.0, [1.0, 2.0, 3.0], 0.5), (99.0, [float(n) for n in range(1, 101)], 0.99)],
)
def test_a_percentile_is_a_measured_value(value: float | None, ascending: list[float], share: float) -> None:
    """It uses the nearest rank, without interpolation."""
    assert value == report.percentile(ascending, share)


def test_the_report_has_the_documented_keys(tmp_path: Path) -> None:
    """Points have two decimal places."""
    found = Outputs(balances={"1": Balance(Decimal("43509.58"), 2), "2": None})
    lost = [Mismatch(Nature.LOST, "an invoice")]
    result = Result(Expected(messages=1_000), found, lost, seconds=4, latencies=[0.1, 0.2])
    report.write(tmp_path / "reports" / "demo.json", report.figures(result))
    text = (tmp_path / "reports" / "demo.json").read_text(encoding="utf-8")
    promised = {"invoices", "repeats", "shipment", "hadoop", "notifications", "dead_letters", "points", "mismatches"}
    assert json.loads(text).keys() >= promised | {"invoices_per_second", "latency_p50_ms", "latency_p99_ms"}
    assert '"points": 43509.58' in text
    assert '"mismatches": 1' in text
    assert '"invoices_per_second": 250.0' in text


def test_the_table_expects_both_notifications_of_a_return_that_waited(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a correct run would show a number that is higher than expected."""
    expected = Expected(messages=2)
    expected.earned["1"]["sale"], expected.returned["1"]["back"] = Decimal(5), "sale"
    numbers = [("sale", ""), ("back", "purchase-unknown"), ("back", "")]
    found = [{"CustomerCardNo": "1", "InvoiceNumber": number, "Reason": reason} for number, reason in numbers]
    report.show(Console(), Result(expected, Outputs(notifications=found), [], seconds=1, latencies=[]))
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "notifications" in each]
    assert ["3", "3"] == re.findall(r"\d+", line)
