"""Every kind of store, with real processes, a real broker and RocksDB."""

import random
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from typer.testing import CliRunner

from infra.local.ports import HOST
from infra.local.stack import environment_of
from infra.security.certificates import Authority
from schemas.topics import STORE_SALES, Topic
from services.api_keys.keys import Scope, key_id_of
from services.cli import app
from services.messaging.avro import encoder
from services.messaging.schema_ids import FolderSchemaIds
from services.pseudonyms import pseudonyms
from services.settings import Settings
from tests.support.builders import MINUTE, NOON, sales
from tests.support.kafka import BalanceWriter, publish
from tests.support.processes import ApiProcess
from tests.support.traces import received_spans
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.webhooks import TRACES, Receiver, receiving

CARDS = [f"CARD{number:03}" for number in range(120)]
CLERK = [argument for scope in Scope for argument in ("--scope", scope.value)]
ERASED = "DELETE /v1/customers/{card}", "202"
THRESHOLD = Decimal("1000.00")


@pytest.fixture
def changelog(settings: Settings, topics_created: list[str]) -> BalanceWriter:  # noqa: ARG001  # creates the topics first
    return BalanceWriter(settings)


def start(settings: Settings, tmp_path: Path, name: str, **changed: Any) -> ApiProcess:
    return ApiProcess(settings.model_copy(update={"state_dir": tmp_path / name, **changed}), tmp_path / f"{name}.log")


def write_balances(changelog: BalanceWriter) -> dict[str, Decimal]:
    """Write balances around the threshold, with late records and tombstones. Returns the right points."""
    chance = random.Random(5)
    truth: dict[str, tuple[int, Decimal]] = {}
    for _ in range(1_500):
        card = chance.choice(CARDS)
        sequence, points = truth.get(card, (0, Decimal(0)))
        match chance.randrange(12):
            case 0 if sequence > 1:
                changelog.balance(card, "5000.00", sequence - 1)  # a late record of a replaced writer
            case 1 if sequence:
                changelog.raw(card, None)
                del truth[card]
            case _:
                points = Decimal(chance.randrange(0, 200_000)) / 100
                truth[card] = (sequence + 1, points)
                changelog.balance(card, str(points), sequence + 1)
    changelog.flush()
    return {card: points for card, (_, points) in truth.items()}


def every_entry(api: ApiProcess, path: str, limit: int = 17) -> Iterator[dict[str, Any]]:
    cursor = ""
    while cursor is not None:
        answer = whole(api, f"{path}?limit={limit}" + (f"&cursor={cursor}" if cursor else ""))
        yield from answer.json()["entries"]
        cursor = answer.json()["next"]


def points_of(api: ApiProcess, path: str) -> dict[str, Decimal]:
    return {each["key"]: Decimal(each["value"]["TotalLoyaltyPoints"]) for each in every_entry(api, path)}


def at_least(threshold: Decimal, truth: dict[str, Decimal]) -> dict[str, Decimal]:
    return {card: points for card, points in truth.items() if points >= threshold}


def test_a_derived_store_filters_its_source_store(changelog: BalanceWriter, settings: Settings, tmp_path: Path) -> None:
    """The store holds the customers from the threshold on: restored, live, after a kill, and with another threshold."""
    truth = write_balances(changelog)
    with start(settings, tmp_path, "one") as api:
        api.wait_until_ready()
        assert truth == points_of(api, "/v1/stores/customer-balances/local/all")
        assert at_least(THRESHOLD, truth) == points_of(api, "/v1/stores/top-customers/local/all")
        api.kill()
    for card in CARDS:
        changelog.raw(card, None)
    truth = write_balances(changelog)
    with start(settings, tmp_path, "one") as api:
        assert any(each["resumedFrom"] for each in api.wait_until_ready()["partitions"])
        assert at_least(THRESHOLD, truth) == points_of(api, "/v1/stores/top-customers/all")
        assert 0 == api.terminate()
    with start(settings, tmp_path, "one", top_customers_threshold=Decimal(1500)) as api:
        report = api.wait_until_ready()
        assert at_least(Decimal(1500), truth) == points_of(api, "/v1/stores/top-customers/all")
        rebuilt = {each["store"] for each in report["partitions"] if each["rebuiltBecause"]}
        assert {"top-customers"} == rebuilt


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Receives the spans of all processes that the test starts."""
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{HOST}:{receiver.port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "500")
        yield receiver


def test_instances_know_every_key_and_trust_each_other_only(
    changelog: BalanceWriter, settings: Settings, spans: Receiver, tmp_path: Path
) -> None:
    """A key works on each instance, also for forwarded cards, until it is revoked. Instances use mutual TLS.

    The audit trail says who did what.

    No log, metric, error or span and no record of the trail has a key, a secret or a card.
    """
    for card in CARDS:
        changelog.balance(card, "1.00", 1)
    changelog.flush()
    made = loyalty(settings, "keys", "create", "till 7", "--scope", "balance:read", "--json")
    clerk = loyalty(settings, "keys", "create", "clerk", *CLERK, "--json")["key"]
    ensured = [
        loyalty(settings, "keys", "ensure", "operator", str(tmp_path / "key"), "--scope", "operate", "--json")["id"]
        for _ in range(2)
    ]
    assert ensured[0] == ensured[1]
    operator = (tmp_path / "key").read_text().strip()
    authority, ca, certificate = Authority.new(), tmp_path / "ca.pem", tmp_path / "instance.pem"
    ca.write_bytes(authority.certificate_pem())
    certificate.write_bytes(authority.broker_pem([HOST]))
    secured = {
        "api_access": "authenticated",
        "instance_secret_file": tmp_path / "instance.secret",
        "api_certificate_file": certificate,
        "api_certificate_key_file": certificate,
        "api_ca_file": ca,
        "api_client_ca_file": ca,
    }
    with start(settings, tmp_path, "one", **secured) as one, start(settings, tmp_path, "two", **secured) as two:
        for api in (one, two):
            api.wait_until_ready()
            assert 401 == api.http.get("/v1/instances/local").status_code
            api.http.headers["Authorization"] = f"Bearer {operator}"
        one.wait_until(lambda _: all(len(api.owned("customer-balances")) < 3 for api in (one, two)))
        for api in (one, two):
            wait_for(api, "/v1/instances", lambda answer: all(each["reachable"] for each in answer["instances"]))
            assert 403 == api.balance(CARDS[0]).status_code
            api.http.headers["Authorization"] = f"Bearer {made['key']}"
            answers = [api.balance(card) for card in CARDS]
            assert {200} == {each.status_code for each in answers}
            assert 2 == len({each.headers["loyalty-served-by"] for each in answers})
            forged = {"Loyalty-Forwarded-To": "active"}
            assert 403 == api.http.get(f"/v1/customers/{CARDS[0]}/balance", headers=forged).status_code
        shown = [*errors_of(one, clerk, CARDS), *errors_of(two, clerk, CARDS)]
        spans.wait(2, TRACES)
        loyalty(settings, "keys", "revoke", made["id"], "--json")
        one.wait_until(lambda _: all(api.balance(CARDS[0]).status_code == 401 for api in (one, two)))
        states = {each["id"]: each["state"] for each in loyalty(settings, "keys", "list", "--json")["keys"]}
        assert "revoked" == states[made["id"]]
    trail = loyalty(settings, "trail", "--json")["records"]
    actions = {(each["Action"], each["Outcome"]) for each in trail}
    assert {("loyalty keys create", "done"), ("loyalty keys revoke", "done"), ERASED} <= actions
    pseudonym = pseudonyms(settings.pseudonym_key_file).of(CARDS[1])
    assert {f"key:{key_id_of(clerk)}"} == {each["Actor"] for each in trail if each["Customer"] == pseudonym}
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("one", "two")]
    texts = [*logs, *shown, *(each.text for each in received_spans(spans)), orjson.dumps(trail).decode()]
    keys = [made["key"], clerk, operator, (tmp_path / "instance.secret").read_text().strip()]
    assert all(texts)
    assert [] == [(each, text) for each in (*keys, *CARDS) for text in texts if each in text]


def errors_of(api: ApiProcess, key: str, cards: list[str]) -> list[str]:
    """The errors of commands, exports and wrong requests that contain cards and a key, and the metrics after them."""
    one, other = cards[:2]
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "k", "traceparent": one}
    path, body = f"/v1/customers/{one}/redemptions?timeout=0", {"points": "1"}
    wrong: list[tuple[str, str, Any]] = [
        ("POST", path, {"points": one}),
        ("POST", path, {**body, "card": one}),
        ("POST", f"{path}&card={one}", body),
        ("POST", "/v1/transfers?timeout=0", {"from": one, "to": one, "points": "1", "card": other}),
        ("POST", f"/v1/redemptions/{one}/void?timeout=0", None),
        ("POST", "/v1/simulate", {"CustomerCardNo": one, "TotalAmount": one}),
        ("POST", "/v1/stores/customer-balances/keys", {"keys": one}),
        ("GET", f"/v1/customers/{one}/balance?minSequence={one}", None),
        ("GET", f"/v1/customers/{one}/statement?from={one}", None),
        ("GET", f"/v1/stores/customer-balances/all?cursor={one}", None),
        ("GET", f"/v1/stores/{one}/all", None),
        ("GET", f"/v1/commands/{one}", None),
        ("GET", f"/{one}", None),
        (one, "/livez", None),
    ]
    errors = [api.http.request(method, path, json=body, headers=headers) for method, path, body in wrong]
    errors.append(api.http.get(f"/v1/customers/{one}/balance", headers={"Authorization": f"Bearer {key}x"}))
    errors.append(api.http.get(f"/v1/customers/{one}/balance", headers={"Loyalty-Hop": key}))
    assert all(each.status_code >= 400 for each in errors)
    # A busy broker takes longer than a second to confirm the command.
    accepted = api.http.delete(f"/v1/customers/{other}?timeout=3", headers=headers)
    assert accepted.status_code in {202, 409}, accepted.text
    texts = [f"{each.headers}{each.text}" for each in errors]
    return [*texts, api.http.get("/metrics", headers=headers).text]


def test_three_instances_answer_like_one(changelog: BalanceWriter, settings: Settings, tmp_path: Path) -> None:
    """Each instance answers for all partitions. After a kill the others answer from their standbys."""
    truth = write_balances(changelog)
    write_windows(settings)
    assert 30 == loyalty(settings, "stores", "publish", "--stores", "30", "--json")["published"]
    with (
        start(settings, tmp_path, "one") as one,
        start(settings, tmp_path, "two") as two,
        start(settings, tmp_path, "three") as three,
    ):
        instances = [one, two, three]
        for api in instances:
            wait_for(api, "/v1/stores/customer-balances/count", lambda answer: each_owned_once(answer, servers=3))
            api.wait_until_ready()
            assert truth == points_of(api, "/v1/stores/customer-balances/all")
            assert at_least(THRESHOLD, truth) == points_of(api, "/v1/stores/top-customers/all")
            assert len(truth) == api.http.get("/v1/stores/customer-balances/count").json()["count"]
        assert_that_windows_are_newest(instances)
        assert_that_published_stores_are_everywhere(instances, settings, tmp_path)
        wait_for(one, "/v1/instances", each_has_a_copy)
        paging = every_entry(one, "/v1/stores/customer-balances/all", limit=10)
        first = [next(paging)["key"] for _ in range(25)]
        two.kill()
        rest = [each["key"] for each in paging]  # while it pages: the cursor does not depend on instances
        assert sorted(truth) == first + rest
        for api in (one, three):
            assert truth == points_of(api, "/v1/stores/customer-balances/all")
            asked = whole(api, "/v1/stores/customer-balances/keys", {"keys": [*CARDS, "nobody"]}).json()
            assert sorted(truth) == [each["key"] for each in asked["entries"]]
            assert sorted({*CARDS, "nobody"} - truth.keys()) == asked["unknownKeys"]


def write_windows(settings: Settings) -> None:
    """Write 240 minutes of two shops. Each minute has two late records and a count of 3."""
    records = [
        sales(shop, start, *amounts)
        for shop in ("S1", "S/2")
        for start in range(NOON, NOON + 240 * MINUTE, MINUTE)
        for amounts in (["10.00"], ["10.00", "-2.50", "1.01"], ["10.00", "-2.50"], ["10.00"])
    ]
    write(settings, STORE_SALES, records)


def assert_that_windows_are_newest(instances: list[ApiProcess]) -> None:
    """Duplicates and late records do not replace a higher count. One response can contain all minutes of a day."""
    day = f"from={NOON}&to={NOON + 1_439 * MINUTE}"
    complete = [api.http.get(f"/v1/stores/store-sales/windows/S/2?{day}").json() for api in instances]
    local = [api.http.get(f"/v1/stores/store-sales/local/windows/S%2F2?{day}").json() for api in instances]
    assert [(240, False)] * 3 == [(len(answer["entries"]), answer["partial"]) for answer in complete]
    assert 240 == len({entry["key"] for answer in local for entry in answer["entries"]})
    figures = {
        tuple(entry["value"][name] for name in ("Count", "Sum", "Minimum", "Maximum", "Average"))
        for answer in (*complete, *local)
        for entry in answer["entries"]
    }
    assert {(3, "8.51", "-2.50", "10.00", "2.84")} == figures
    counts = [api.http.get("/v1/stores/store-sales/count").json()["count"] for api in instances]
    assert [480] * 3 == counts


def assert_that_published_stores_are_everywhere(instances: list[ApiProcess], settings: Settings, folder: Path) -> None:
    """Each instance holds all stores of `loyalty stores publish` and `remove`, from before and after its start."""
    assert [30] * 3 == [api.http.get("/v1/stores/stores/local/count").json()["count"] for api in instances]
    file = folder / "shops.jsonl"
    file.write_bytes(orjson.dumps({"StoreID": "STR1000", "Name": "Flagship", "City": "Pune", "State": "Goa"}))
    loyalty(settings, "stores", "publish", str(file), "--json")
    loyalty(settings, "stores", "remove", "STR8919", "--json")
    loyalty(settings, "stores", "remove", "no-such-store", "--json")
    for api in instances:
        wait_for(api, "/v1/stores/stores/local/count", lambda answer: answer["count"] == 29)
        shown = api.http.get("/v1/stores/stores/local/keys/STR1000")
        assert "Flagship" == shown.json()["value"]["Name"]
        assert api.http.get("/v1/stores/stores/keys/STR8919").status_code == 404


def whole(api: ApiProcess, url: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """The complete response. Repeats the request with the same cursor while a page is partial."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = api.http.post(url, json=body) if body else api.http.get(url)
        assert answer.status_code == 200, answer.text
        if not answer.json()["partial"]:
            return answer
        assert answer.json()["missingPartitions"], answer.text
        assert time.monotonic() < deadline, answer.text


def each_owned_once(answer: dict[str, Any], servers: int) -> bool:
    """Whether each partition has an owner and each instance owns a partition."""
    parts = answer.get("partitions", [])
    return (
        len(parts) == 3
        and len({each["servedBy"] for each in parts}) == servers
        and all(each["role"] == "active" for each in parts)
    )


def each_has_a_copy(answer: dict[str, Any]) -> bool:
    """Whether every partition has a restored standby, which takes over quickly from a killed owner."""
    copies = [each for instance in answer["instances"] for each in instance["partitions"]]
    standbys = [each for each in copies if each["store"] == "customer-balances" and each["role"] == "standby"]
    return [0, 1, 2] == sorted(each["partition"] for each in standbys if each["restored"])


def wait_for(api: ApiProcess, path: str, is_so: Any) -> None:
    api.wait_until(lambda _: bool(is_so(api.http.get(path).json())))


def write(settings: Settings, topic: Topic, records: list[tuple[Topic, str, dict[str, Any]]]) -> None:
    encode = encoder(topic, FolderSchemaIds())
    publish(settings, topic, [(key.encode(), encode(record)) for _, key, record in records])


def loyalty(settings: Settings, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, arguments, env=environment_of(settings))
    assert result.exit_code == 0, result.output
    shown: dict[str, Any] = orjson.loads(result.stdout)
    return shown
