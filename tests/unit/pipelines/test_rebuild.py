"""The balances that a rebuild writes, and what the state stores make of them."""

from dataclasses import replace
from decimal import Decimal

import orjson
import pytest

from pipelines.accounts.records import writer_ids
from pipelines.reconciliation.reconstruction import is_replaced, records_of, with_tombstone
from schemas.topics import LOYALTY_BALANCES
from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.codecs.records import balance_record
from services.domain.entries import Entry
from services.domain.events import Purchase
from services.domain.programme import DAY, Programmes
from services.messaging.avro import record_encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.state_stores import catalogue
from services.state_stores.catalogue import balance_body
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from tests.support.account_histories import CARD, START, processed

IDS = FolderSchemaIds()
NOW = START + 200 * DAY
HISTORY = processed([[Purchase(START + n, f"I{n}", Decimal(100))] for n in (1, 2, 3)], Programmes())
LAST = HISTORY.entries[-1]


def changelog_value(entry: Entry) -> bytes:
    encode = record_encoder(str(LOYALTY_BALANCES.value), writer_ids(IDS)[LOYALTY_BALANCES])
    return encode(balance_record(CARD, entry))


def rebuilt_balances(served: Entry) -> list[bytes | None]:
    """The values of the balance records that a rebuild writes when this balance is served."""
    facts = Facts(
        events=list(HISTORY.events),
        recorded={Source.LOYALTY: HISTORY.entries, Source.LEDGER: HISTORY.entries},
        balance=orjson.loads(balance_body(balance_record(CARD, served))),
    )
    compared = frozenset({Source.EVENT, Source.LOYALTY, Source.LEDGER, Source.BALANCE})
    verdict, recomputed = compare(CARD, facts, Programmes(), Coverage(compared, 0, 0, 0, NOW), lambda card: f"p-{card}")
    records = records_of(CARD, recomputed, NOW, writer_ids(IDS))
    if is_replaced(facts, verdict, recomputed):
        records = with_tombstone(records)
    return [record["value"] for record in records if record["topic"] == LOYALTY_BALANCES.name]  # type: ignore[misc]


@pytest.mark.parametrize(
    "served",
    [
        LAST,
        HISTORY.entries[0],  # the last micro-batch has not written its balance
        replace(LAST, total=LAST.total + 100),  # a wrong balance with the same sequence number
        replace(LAST, sequence=9, total=LAST.total + 100),  # a wrong balance with a higher sequence number
    ],
    ids=["right", "older", "same version", "higher version"],
)
def test_a_running_store_takes_the_rebuilt_balance(served: Entry) -> None:
    """A store ignores a value that is not newer. So a rebuild deletes a wrong balance before it writes the new one."""
    task = StoreTask(catalogue.stores(IDS)[0], 0, MemoryStorePartition(), "test", TaskProgress(None, 0, 0, 0, 0))
    task.apply([ChangelogRecord(0, START, CARD.encode(), changelog_value(served))])

    values = rebuilt_balances(served)
    for offset, value in enumerate(values, start=1):
        task.apply([ChangelogRecord(offset, START, CARD.encode(), value)])

    stored = task.get(CARD.encode())
    assert stored is not None
    assert stored.body == balance_body(balance_record(CARD, LAST))
    assert (None in values) == (served.total != LAST.total and served.version >= LAST.version)
