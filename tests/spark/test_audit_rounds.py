"""The later rounds of the audit compare only the customers that may still settle."""

from pipelines.reconciliation.audit import of_customers


def test_the_plan_does_not_grow_with_the_customers(spark):
    """An audit beside a ledger that was stopped compares most customers again."""
    facts = spark.createDataFrame([(f"p1-{number}", number) for number in range(3)], "pseudonym STRING, time LONG")

    def selected(size):
        return of_customers(facts, {f"p1-{number}": None for number in range(1, size)})

    def plan(size):
        return selected(size)._jdf.queryExecution().analyzed().toJSON()

    assert [("p1-1", 1), ("p1-2", 2)] == sorted(map(tuple, selected(1_000).collect()))
    assert len(plan(10)) + 100 > len(plan(1_000))
