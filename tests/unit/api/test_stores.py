"""/v1/stores/{store}/…: queries on every store, over real memory stores that the test writes."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from schemathesis import GenerationMode

from schemas.topics import LOYALTY_BALANCES, STORES
from services.state_stores.definition import VersionedValue
from tests.support.builders import MINUTE, NOON, balance, plain_balance, problem_type, sales, shop
from tests.support.clusters import Instance
from tests.support.openapi import assert_responses_are_documented, schema_of

BALANCES, TOP, SALES, SHOPS = "customer-balances", "top-customers", "store-sales", "stores"


@pytest.fixture
def tables() -> Instance:
    return Instance()


@pytest.fixture
def client(tables: Instance) -> Iterator[TestClient]:
    with TestClient(tables.app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def full(tables: Instance) -> Instance:
    """Thirty customers of 50 to 1,500 points, windows of two shops, three shops."""
    tables.own_everything()
    for number in range(30):
        tables.write(*balance(f"C{number:02}", f"{50 * (number + 1)}.00", number + 1))
    for minute in range(5):
        tables.write(*sales("S1", NOON + minute * MINUTE, "10.00", f"{minute}.01"))
    tables.write(*sales("S1@1700000040000", NOON, "5.00"))
    for store_id in ("S1", "S2", "S/3"):
        tables.write(*shop(store_id, "Kochi"))
    return tables


def pages(client: TestClient, path: str) -> Iterator[dict[str, Any]]:
    """Follow ``next`` to the last page."""
    cursor: str | None = ""
    while cursor is not None:
        answer = client.get(path + (f"&cursor={cursor}" if cursor else ""))
        assert answer.status_code == 200, answer.text
        yield answer.json()
        cursor = answer.json()["next"]


def keys_of(answer: dict[str, Any]) -> list[str]:
    return [entry["key"] for entry in answer["entries"]]


def test_one_key_has_its_value_and_freshness(client: TestClient, full: Instance) -> None:
    """The stored value with sequence, partition and offset. The headers have the freshness and the ETag."""
    number = full.stores[BALANCES].partition_of(b"C07")
    task = full.stores[BALANCES].tasks[number]
    task.progress.end_offset += 4

    answer = client.get(f"/v1/stores/{BALANCES}/local/keys/C07")

    assert (200, '"8"') == (answer.status_code, answer.headers["etag"])
    offset = answer.json()["offset"]
    assert 0 <= offset < task.progress.position
    assert answer.json() == {
        "key": "C07",
        "value": plain_balance("C07", "400.00", 8, "2023-11-14T22:14:00Z"),
        "sequence": 8,
        "partition": number,
        "offset": offset,
    }
    assert ("active", "4", str(task.progress.position), "false") == tuple(
        answer.headers[f"loyalty-{name}"] for name in ("role", "lag", "offset", "stale")
    )
    stored = task.store.get(b"C07")
    assert stored is not None
    assert VersionedValue.unpack(stored).body in answer.content


@pytest.mark.parametrize("key", ["a/b", "/", "a b", "é☕", "100%", "?#", "a//b", "keys/x"])
def test_keys_may_be_any_text(client: TestClient, full: Instance, key: str) -> None:
    """A key may contain slashes, percent-encoded or not."""
    full.write(*balance(key, "1.00"))

    encoded = client.get(f"/v1/stores/{BALANCES}/local/keys/{quote(key, safe='')}")

    assert (200, key) == (encoded.status_code, encoded.json()["key"])
    assert key == client.get(f"/v1/stores/{BALANCES}/local/keys/{quote(key)}").json()["key"]


@pytest.mark.usefixtures("full")
def test_an_unknown_store_differs_from_an_unknown_key(client: TestClient) -> None:
    """Both are 404 with different types. The first one names all stores."""
    assert problem_type(client.get(f"/v1/stores/{BALANCES}/local/keys/nobody"), 404) == "unknown-key"
    for path in ("keys/C01", "all", "range", "count", f"windows/x?from={NOON}&to={NOON}"):
        answer = client.get(f"/v1/stores/nothing/local/{path}")
        assert problem_type(answer, 404) == "unknown-store"
        assert answer.json()["stores"] == [BALANCES, TOP, SALES, SHOPS, "decisions", "programmes"]


@pytest.mark.usefixtures("full")
def test_several_keys_have_their_values_in_order(client: TestClient) -> None:
    """Known keys come once. Unknown keys are listed. The partitions of all keys have their status."""
    answer = client.post(f"/v1/stores/{BALANCES}/local/keys", json={"keys": ["C09", "x", "C02", "C09", "C11"]}).json()

    assert ["C02", "C09", "C11"] == keys_of(answer)
    assert ["x"] == answer["unknownKeys"]
    assert (False, []) == (answer["partial"], answer["missingPartitions"])
    assert {entry["partition"] for entry in answer["entries"]} <= {each["partition"] for each in answer["partitions"]}
    nothing = client.post(f"/v1/stores/{BALANCES}/local/keys", json={"keys": []}).json()
    assert ([], [], []) == (nothing["entries"], nothing["unknownKeys"], nothing["partitions"])


@pytest.mark.usefixtures("full")
def test_a_list_of_keys_has_a_mebibyte(client: TestClient) -> None:
    """A thousand cards of 128 characters fit, also with six bytes for a character.

    200 requests at once must fit into the memory.
    """
    path, headers = f"/v1/stores/{BALANCES}/local/keys", {"Content-Type": "application/json"}
    cards = [f"{number:04}{'é' * 124}" for number in range(1_000)]

    found = client.post(path, content=json.dumps({"keys": cards}), headers=headers)
    assert sorted(cards) == found.json()["unknownKeys"]
    refused = client.post(path, content=b" " * (2**20 + 1), headers=headers)
    assert ("body-too-large", 2**20) == (problem_type(refused, 413), refused.json()["limit"])


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        '{"keys":["C01"],"key":"C02"}',
        '{"keys":"C01"}',
        '{"keys":[1]}',
        '{"keys":["\\ud800"]}',
        '{"keys":["' + "x" * 513 + '"]}',
        "{",
        '{"keys":[' + ",".join(['"x"'] * 1001) + "]}",
    ],
    ids=lambda body: body[:20],
)
def test_a_bad_list_of_keys_is_refused(client: TestClient, body: str) -> None:
    """422 for a body that is not a list of at most 1,000 texts."""
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"/v1/stores/{BALANCES}/local/keys", content=body, headers=headers)

    unreadable = body == "{"
    assert problem_type(answer, 400 if unreadable else 422) == (
        "unreadable-body" if unreadable else "invalid-parameters"
    )


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
def test_pages_contain_each_key_once(client: TestClient, limit: int) -> None:
    """They are in order over all partitions. No page is too long."""
    answers = list(pages(client, f"/v1/stores/{BALANCES}/local/all?limit={limit}"))

    assert [f"C{number:02}" for number in range(30)] == [key for answer in answers for key in keys_of(answer)]
    assert max(len(answer["entries"]) for answer in answers) <= limit
    assert -(-30 // limit) == len(answers)


def test_pages_are_complete_while_keys_come_and_go(client: TestClient, full: Instance) -> None:
    """A key that is written or deleted between two pages does not affect other keys."""
    following = pages(client, f"/v1/stores/{BALANCES}/local/all?limit=10")
    first = keys_of(next(following))
    full.write(*balance("C00a", "1.00"))  # before the cursor
    full.write(*balance("C15a", "1.00"))  # after the cursor
    full.write(LOYALTY_BALANCES, first[-1], None)  # the key in the cursor

    rest = [key for answer in following for key in keys_of(answer)]

    expected = [f"C{number}" for number in range(10, 30)]
    assert sorted([*expected, "C15a"]) == rest


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("from=C03&to=C05", ["C03", "C04", "C05"]),
        ("from=C28", ["C28", "C29"]),
        ("to=C01", ["C00", "C01"]),
        ("prefix=C1&limit=3", ["C10", "C11", "C12"]),
        ("prefix=C2&from=C25&to=C26", ["C25", "C26"]),
        ("from=C05&to=C03", []),
        ("prefix=D", []),
        ("from=C005&to=C01", ["C01"]),
    ],
)
def test_a_range_includes_both_ends(client: TestClient, query: str, expected: list[str]) -> None:
    """A prefix narrows the range."""
    assert expected == keys_of(client.get(f"/v1/stores/{BALANCES}/local/range?{query}").json())


@pytest.mark.usefixtures("full")
def test_a_cursor_belongs_to_its_query(client: TestClient) -> None:
    """422 for a cursor of another store or range, and for an invalid cursor. Another limit is allowed."""
    base = f"/v1/stores/{BALANCES}/local"
    cursor = client.get(f"{base}/range?prefix=C&limit=1").json()["next"]

    assert ["C01"] == keys_of(client.get(f"{base}/range?prefix=C&limit=1&cursor={cursor}").json())
    assert ["C01", "C02"] == keys_of(client.get(f"{base}/range?prefix=C&limit=2&cursor={cursor}").json())
    for path in (
        f"{base}/range?prefix=C1&cursor={cursor}",
        f"{base}/all?cursor={cursor}",
        f"/v1/stores/{TOP}/local/range?prefix=C&cursor={cursor}",
        f"{base}/range?prefix=C&cursor=x",
        f"{base}/range?prefix=C&cursor=é",
        f"{base}/range?prefix=C&cursor={cursor[:-4]}!!!!",
        f"{base}/range?prefix=C&cursor=",
    ):
        answer = client.get(path)
        assert problem_type(answer, 422) == "invalid-parameters"
        assert answer.json()["errors"][0]["in"] == ["query", "cursor"]


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=1_0",
        "partition=3",
        "partition=-1",
        "partition=x",
        "partition=0.0",
        "partition=+1",
        f"from={'x' * 513}",
    ],
)
def test_a_bad_parameter_is_named(client: TestClient, query: str) -> None:
    answer = client.get(f"/v1/stores/{BALANCES}/local/range?{query}")

    assert problem_type(answer, 422) == "invalid-parameters"
    assert answer.json()["errors"][0]["in"][:2] == ["query", query.partition("=")[0]]


@pytest.mark.usefixtures("full")
def test_the_results_of_single_partitions_add_up(client: TestClient) -> None:
    """The results of the single partitions together have every key and the whole count."""
    base = f"/v1/stores/{BALANCES}/local"
    answers = [client.get(f"{base}/all?limit=1000&partition={number}").json() for number in range(3)]

    assert sorted(f"C{number:02}" for number in range(30)) == sorted(key for each in answers for key in keys_of(each))
    assert [[number] for number in range(3)] == [[part["partition"] for part in each["partitions"]] for each in answers]
    counts = [client.get(f"{base}/count?partition={number}").json()["count"] for number in range(3)]
    assert [len(each["entries"]) for each in answers] == counts
    assert 30 == client.get(f"{base}/count").json()["count"] == sum(counts)
    assert counts[0] + counts[2] == client.get(f"{base}/count?partition=2&partition=0").json()["count"]


def test_a_derived_store_has_the_customers_above_the_threshold(client: TestClient, full: Instance) -> None:
    """The threshold is 1,000 points by default. A customer who falls below it leaves the store."""
    base = f"/v1/stores/{TOP}/local"
    assert [f"C{number}" for number in range(19, 30)] == keys_of(client.get(f"{base}/all").json())

    full.write(*balance("C25", "999.99", 99))
    full.write(*balance("C00", "1000.00", 99))

    assert problem_type(client.get(f"{base}/keys/C25"), 404) == "unknown-key"
    assert "1000.00" == client.get(f"{base}/keys/C00").json()["value"]["TotalLoyaltyPoints"]
    assert 11 == client.get(f"{base}/count").json()["count"]


def test_a_global_store_keeps_the_last_record(client: TestClient, full: Instance) -> None:
    """The newest reference record counts. A null value removes the key."""
    full.write(*shop("S1", "Pune"))
    full.write(STORES, "S2", None)

    answer = client.get(f"/v1/stores/{SHOPS}/local/all").json()

    assert ["S/3", "S1"] == keys_of(answer)
    assert "Pune" == answer["entries"][1]["value"]["City"]
    assert answer["entries"][1]["offset"] + 1 == answer["entries"][1]["sequence"]


@pytest.mark.usefixtures("full")
def test_the_windows_of_a_shop_are_a_range_of_minutes(client: TestClient) -> None:
    """Both ends are included. The windows have exact figures, and there are no other keys."""
    base = f"/v1/stores/{SALES}/local/windows"

    answer = client.get(f"{base}/S1?from=2023-11-14T22:15:00Z&to=2023-11-14T22:17:00Z").json()

    assert ["22:15", "22:16", "22:17"] == [entry["value"]["WindowStart"][11:16] for entry in answer["entries"]]
    first = answer["entries"][0]["value"]
    figures = ("Count", "Sum", "Minimum", "Maximum", "Average")
    assert [2, "11.01", "1.01", "10.00", "5.51"] == [first[name] for name in figures]
    assert f"S1@{NOON + MINUTE}" == answer["entries"][0]["key"]
    later = client.get(f"{base}/S1?from=2023-11-14T22:15:00.000001Z&to=2023-11-14T22:17:00Z").json()
    assert answer["entries"][1:] == later["entries"]
    assert 5 == len(client.get(f"{base}/S1?from={NOON}&to={NOON + 1_439 * MINUTE}").json()["entries"])
    assert 1 == len(client.get(f"{base}/S1@1700000040000?from={NOON}&to={NOON}").json()["entries"])
    assert [] == client.get(f"{base}/S9?from={NOON}&to={NOON + MINUTE}").json()["entries"]


@pytest.mark.usefixtures("full")
def test_a_bad_range_of_windows_is_refused(client: TestClient) -> None:
    """422 for more than a day, a wrong order, a missing end or a time without zone. 400 for a store without windows."""
    base = f"/v1/stores/{SALES}/local/windows/S1"
    for query, name in (
        (f"from={NOON + MINUTE}&to={NOON}", "from"),
        (f"from={NOON}&to={NOON + 1_440 * MINUTE}", "to"),
        (f"from={NOON}", "to"),
        (f"to={NOON}", "from"),
        (f"from=2023-11-14T22:15:00&to={NOON}", "from"),
        (f"from=0001-01-01T00:00:00Z&to={NOON}", "to"),
        (f"from=yesterday&to={NOON}", "from"),
    ):
        answer = client.get(f"{base}?{query}")
        assert problem_type(answer, 422) == "invalid-parameters"
        assert answer.json()["errors"][0]["in"] == ["query", name]
    balances = client.get(f"/v1/stores/{BALANCES}/local/windows/C01?from={NOON}&to={NOON}")
    assert problem_type(balances, 400) == "not-windowed"


def test_a_missing_partition_is_named(client: TestClient, full: Instance) -> None:
    """421 for a key on another instance. Queries over several keys name the missing partitions."""
    store = full.stores[BALANCES]
    gone = store.partition_of(b"C07")
    task = store.remove(gone)
    assert task is not None
    base = f"/v1/stores/{BALANCES}/local"

    assert problem_type(client.get(f"{base}/keys/C07"), 421) == "not-here"
    everything = client.get(f"{base}/all").json()
    assert (True, [gone]) == (everything["partial"], everything["missingPartitions"])
    assert 30 - task.store.count() == len(everything["entries"]) == client.get(f"{base}/count").json()["count"]
    asked = client.post(f"{base}/keys", json={"keys": ["C07"]}).json()
    assert ([], [], [gone]) == (asked["entries"], asked["unknownKeys"], asked["missingPartitions"])


@pytest.mark.parametrize(("target", "expected"), [(99, "restoring"), (None, "starting")])
def test_nothing_is_served_before_the_restore(
    client: TestClient, tables: Instance, target: int | None, expected: str
) -> None:
    """503 with Retry-After while this instance can read nothing that is wanted."""
    tables.feed.restored = False
    if target is not None:
        tables.own_everything(target)
    base = f"/v1/stores/{SALES}/local"

    for answer in (
        client.get(f"{base}/keys/S1"),
        client.get(f"{base}/all"),
        client.get(f"{base}/count"),
        client.get(f"{base}/windows/S1?from={NOON}&to={NOON}"),
        client.post(f"{base}/keys", json={"keys": ["S1"]}),
    ):
        assert problem_type(answer, 503) == expected
        assert int(answer.headers["retry-after"]) >= 1


def test_an_instance_without_partitions_returns_a_partial_result(client: TestClient) -> None:
    """With more instances than partitions, an instance without partitions gives an empty and partial result."""
    answer = client.get(f"/v1/stores/{BALANCES}/local/all").json()

    assert ([], True, [0, 1, 2]) == (answer["entries"], answer["partial"], answer["missingPartitions"])


def test_a_closed_store_is_stopping(client: TestClient, full: Instance) -> None:
    """503 stopping for every query."""
    for task in full.stores[BALANCES].tasks.values():
        task.store.close()
    base = f"/v1/stores/{BALANCES}/local"

    for answer in (client.get(f"{base}/keys/C01"), client.get(f"{base}/all"), client.get(f"{base}/count")):
        assert problem_type(answer, 503) == "stopping"


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    ("route", "method"),
    [
        ("keys/{key}", "GET"),
        ("keys", "POST"),
        ("range", "GET"),
        ("all", "GET"),
        ("count", "GET"),
        ("windows/{key}", "GET"),
    ],
)
def test_responses_match_the_openapi_document(
    client: TestClient, route: str, method: str, mode: GenerationMode
) -> None:
    """Schemathesis finds no response that the document does not describe, for valid and for invalid requests."""
    document = schema_of(client.app)
    path = next(path for path in document if path.startswith("/v1/stores/{store}/local/") and path.endswith(route))
    assert_responses_are_documented(document[path][method], mode, max_examples=30)
