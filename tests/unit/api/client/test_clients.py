"""The client repeats after temporary problems, under one key, and never returns an older balance.

Both clients are equal.
"""

import asyncio
import copy
import json
import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import httpx
import pytest

from api.client import flows
from api.client.clients import AsyncLoyaltyClient, LoyaltyClient
from api.client.errors import ProblemError, UnavailableError

T = TypeVar("T")
CARD = "50/03"
OPENED = "2026-01-31T09:30:00.000Z"
OPENED_MS = 1_769_851_800_000
BALANCE = {
    "CustomerCardNo": CARD,
    "TotalLoyaltyPoints": "417.04",
    "AvailableLoyaltyPoints": "400.00",
    "PendingLoyaltyPoints": "7.04",
    "ReservedLoyaltyPoints": "10.00",
    "Tier": None,
    "Sequence": 3,
    "OpenedTime": OPENED,
    "UpdatedTime": OPENED,
}
DECISION = {
    "CommandID": "c1",
    "Status": "done",
    "Kind": "reserve",
    "CustomerCardNo": CARD,
    "Points": "0.00",
    "ReservedPoints": "10.00",
    "RedemptionID": "c1",
    "Reason": None,
    "ExpiresTime": OPENED,
    "TotalLoyaltyPoints": "417.04",
    "AvailableLoyaltyPoints": "390.00",
    "AccountSequence": 4,
    "OpenedTime": OPENED,
    "UpdatedTime": OPENED,
}
ERASURE = DECISION | {"Kind": "erase", "CustomerCardNo": None, "RedemptionID": None}
NEXT_ACCOUNT = BALANCE | {"Sequence": 1, "OpenedTime": "2026-01-31T09:30:00.001Z"}
PENDING = {**dict.fromkeys(DECISION), "CommandID": "c1", "Status": "pending", "Kind": "reserve"}


def problem(status: int, name: str, retry_after: str | None = None) -> httpx.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    members = {"type": f"urn:problem-type:loyalty:{name}", "title": name, "detail": f"It is {name}."}
    return httpx.Response(status, json=members, headers=headers)


class Api:
    """An API that gives the answers of a script, and keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def finish(flow: flows.Flow[T], response: httpx.Response) -> T:
    """Send the last response to a flow that waits for it. Returns the result of the flow."""
    with pytest.raises(StopIteration) as end:
        flow.send(response)
    found: T = end.value.value
    return found


def run_flow(flow: flows.Flow[T], response: httpx.Response) -> T:
    """Run a flow that makes one call."""
    next(flow)
    return finish(flow, response)


Run = Callable[..., list[Any]]


def run_sync(api: Api, *calls: tuple[Any, ...], seconds: float = 30, credentials: str | None = None) -> list[Any]:
    transport = httpx.MockTransport(api)
    with LoyaltyClient("http://api", seconds=seconds, credentials=credentials, transport=transport) as client:
        return [getattr(client, name)(*arguments) for name, *arguments in calls]


def run_async(api: Api, *calls: tuple[Any, ...], seconds: float = 30, credentials: str | None = None) -> list[Any]:
    async def main() -> list[Any]:
        transport = httpx.MockTransport(api)
        client = AsyncLoyaltyClient("http://api", seconds=seconds, credentials=credentials, transport=transport)
        async with client:
            return [await getattr(client, name)(*arguments) for name, *arguments in calls]

    return asyncio.run(main())


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(flows, "_FIRST_PAUSE_SECONDS", 0.001)
    found: Run = request.param
    return found


def test_a_balance_has_the_types_of_python(run: Run) -> None:
    """Points are decimals, and times have their zone. The path has the encoded card, and the request has the
    credentials.
    """
    api = Api(httpx.Response(200, json=BALANCE))
    [balance] = run(api, ("balance", CARD), credentials="secret")
    assert (CARD, Decimal("417.04"), None, 3) == (balance.card, balance.total, balance.tier, balance.sequence)
    assert datetime(2026, 1, 31, 9, 30, tzinfo=UTC) == balance.opened_time
    assert b"/v1/customers/50%2F03/balance" == api.requests[0].url.raw_path
    assert "Bearer secret" == api.requests[0].headers["Authorization"]


def test_entries_are_read_page_by_page(run: Run) -> None:
    entry = {
        **dict.fromkeys(("EarnedLoyaltyPoints", "TotalLoyaltyPoints", "AvailableLoyaltyPoints"), "1.00"),
        **dict.fromkeys(("Kind", "InvoiceNumber", "Reason"), ""),
        "Sequence": 1,
        "OpenedTime": OPENED,
        "UpdatedTime": OPENED,
        "Tier": "gold",
        "ExpiresTime": None,
    }
    api = Api(httpx.Response(200, json={"entries": [entry], "next": "n"}), httpx.Response(200, json={"entries": []}))
    first, last = run(api, ("entries", CARD), ("entries", CARD, "n", 5))
    assert ("n", "gold", None) == (first.next, first.entries[0].tier, last.next)
    sent = [dict(request.url.params) for request in api.requests]
    assert [{"limit": "100"}, {"limit": "5", "cursor": "n"}] == sent


def test_every_command_is_sent_as_the_api_reads_it(run: Run) -> None:
    ten, calls = Decimal("10.00"), [("capture", "r/1"), ("void", "r1"), ("erase", CARD)]
    calls += [("adjust", CARD, -ten, "parcel late", "anna"), ("transfer", "1", "2", ten)]
    api = Api(*(httpx.Response(200, json=DECISION) for _ in calls))
    run(api, *calls)
    sent = [(each.method, each.url.raw_path.split(b"?")[0].decode(), each.content.decode()) for each in api.requests]
    assert [
        ("POST", "/v1/redemptions/r%2F1/capture", ""),
        ("POST", "/v1/redemptions/r1/void", ""),
        ("DELETE", "/v1/customers/50%2F03", ""),
        ("POST", "/v1/customers/50%2F03/adjustments", '{"points":"-10.00","reason":"parcel late","actor":"anna"}'),
        ("POST", "/v1/transfers", '{"from":"1","to":"2","points":"10.00","reason":""}'),
    ] == sent


def test_a_repeated_command_keeps_its_key(run: Run) -> None:
    """A lost connection or a temporary problem leads to no second command."""
    api = Api(
        httpx.ConnectError("refused"),
        problem(503, "rebalancing", "0"),
        problem(409, "command-in-flight", "0"),
        httpx.ReadTimeout("late"),
        httpx.Response(201, json=DECISION),
    )
    [command] = run(api, ("redeem", CARD, Decimal("10.00")))
    assert ("done", "c1", Decimal("10.00")) == (command.status, command.redemption_id, command.reserved_points)
    assert 5 == len(api.requests)
    assert 1 == len({request.headers["Idempotency-Key"] for request in api.requests})


def test_each_command_has_its_own_key_unless_the_caller_gives_one(run: Run) -> None:
    api = Api(*(httpx.Response(201, json=DECISION) for _ in range(3)))
    run(api, ("redeem", CARD, 1), ("redeem", CARD, 1), ("redeem", CARD, 1, "", "mine"))
    keys = [request.headers["Idempotency-Key"] for request in api.requests]
    assert (3, "mine") == (len(set(keys)), keys[2])


def test_points_are_sent_without_an_exponent(run: Run) -> None:
    """``Decimal("10.00").normalize()`` is 1E+1, which the API refuses."""
    api = Api(httpx.Response(201, json=DECISION))
    run(api, ("redeem", CARD, Decimal("10.00").normalize()))
    assert "10" == json.loads(api.requests[0].content)["points"]


@pytest.mark.parametrize(
    ("reason", "key"), [("ASCII", "é"), ("a blank at an end", "order 17 "), ("ASCII", "17\n"), ("is empty", "")]
)
def test_a_key_that_no_header_can_have_is_refused_before_a_request(run: Run, reason: str, key: str) -> None:
    """An empty key can be an unset variable. With a new key at each call, a repeated command would count twice."""
    api = Api()
    with pytest.raises(ValueError, match=reason):
        run(api, ("redeem", CARD, 1, "", key))
    assert not api.requests


def test_credentials_can_come_from_a_file(run: Run) -> None:
    """A file of a key ends with a line feed, which no header can have."""
    api = Api(httpx.Response(200, json=BALANCE))
    run(api, ("balance", CARD), credentials="secret\n")
    assert "Bearer secret" == api.requests[0].headers["Authorization"]


@pytest.mark.parametrize("credentials", ["Bearer secret", "secret\nsecret", "secreté"])
def test_credentials_that_no_header_can_have_are_refused_and_not_shown(run: Run, credentials: str) -> None:
    with pytest.raises(ValueError, match="give only the API key or the token") as raised:
        run(Api(), credentials=credentials)
    assert "secret" not in str(raised.value)


def test_the_key_is_not_lost_if_a_transport_refuses_a_request(run: Run) -> None:
    """HTTP/2 has this error if the server closes the connection. An earlier attempt may be executed."""
    error = httpx.LocalProtocolError("Invalid input ConnectionInputs.SEND_HEADERS in state ConnectionState.CLOSED")
    api = Api(httpx.ReadTimeout("late"), error, httpx.Response(201, json=DECISION))
    run(api, ("redeem", CARD, 1))
    assert (3, 1) == (len(api.requests), len({request.headers["Idempotency-Key"] for request in api.requests}))

    with pytest.raises(UnavailableError) as raised:
        run(Api(error), ("redeem", CARD, 1, "", "mine"), seconds=0)
    assert "mine" == raised.value.idempotency_key


def accepted() -> list[httpx.Response]:
    """A proxy can remove ``Location``, and can write ``Retry-After`` as a date."""
    return [
        httpx.Response(202, json=PENDING, headers={"Location": "/v1/commands/c1", "Retry-After": "0"}),
        httpx.Response(202, json=PENDING, headers={"Retry-After": "Sat, 28 Nov 2026 18:00:00 GMT"}),
    ]


@pytest.mark.parametrize(("method", "call"), [("POST", ("redeem", CARD, 1)), ("DELETE", ("erase", CARD))])
def test_an_accepted_command_is_repeated(run: Run, method: str, call: tuple[Any, ...]) -> None:
    api = Api(*accepted(), problem(409, "command-in-flight", "0"), httpx.Response(200, json=DECISION))
    [command] = run(api, call)
    assert "done" == command.status
    assert [method] * 4 == [request.method for request in api.requests]
    assert 1 == len({request.headers["Idempotency-Key"] for request in api.requests})


def test_a_command_without_a_decision_in_time_has_its_key(run: Run) -> None:
    for answer in accepted():
        with pytest.raises(UnavailableError, match="in time: 202: the command has no visible decision yet") as raised:
            run(Api(answer), ("redeem", CARD, 1, "", "mine"), seconds=0)
        assert "mine" == raised.value.idempotency_key


def test_a_refusal_is_a_problem_at_once_and_after_an_accepted_command(run: Run) -> None:
    refusal = problem(409, "insufficient-points")
    for answers in ([refusal], [*accepted(), refusal]):
        with pytest.raises(ProblemError, match="It is insufficient-points") as raised:
            run(Api(*answers), ("redeem", CARD, 1))
        assert (409, refusal.json()) == (raised.value.status, raised.value.members)


def test_the_error_of_a_command_without_an_answer_has_its_key(run: Run) -> None:
    api = Api(*(httpx.ConnectError("refused") for _ in range(1_000)))
    with pytest.raises(UnavailableError, match="Repeat it with idempotency_key='mine'") as raised:
        run(api, ("redeem", CARD, 1, "", "mine"), seconds=0.05)
    assert "mine" == raised.value.idempotency_key


def test_a_problem_after_an_attempt_without_a_decision_has_the_key(run: Run) -> None:
    """The credentials expire between two attempts, and the points may be reserved."""
    for first in (httpx.ReadTimeout("late"), *accepted()):
        api = Api(first, problem(401, "unauthenticated"))
        with pytest.raises(ProblemError, match="401 unauthenticated") as raised:
            run(api, ("redeem", CARD, 1))
        assert api.requests[0].headers["Idempotency-Key"] == raised.value.idempotency_key


def test_errors_reach_another_process_with_all_attributes() -> None:
    """A pool of processes pickles the errors of its workers."""
    refused = ProblemError.of(problem(409, "insufficient-points", retry_after="3"))
    refused.idempotency_key = "k1"
    for error in (refused, UnavailableError("no answer", "k2"), UnavailableError("no answer", None)):
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - its own bytes
            assert (type(error), str(error), vars(error)) == (type(again), str(again), vars(again))


def test_an_answer_that_cannot_be_read_is_not_final(run: Run) -> None:
    """A proxy can send a page of its own or damage a body. The command may be executed, so its key is not lost."""
    unreadable = [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, content=b'{"CommandID":"\xff"}'),
        httpx.Response(200, content=b'{"":' + b"[" * 100_000),
        httpx.Response(200, json={}),
        httpx.Response(201, json=DECISION | {"RedemptionID": None}),
        httpx.DecodingError("not gzip"),
        httpx.TooManyRedirects("too many"),
    ]
    api = Api(*unreadable, httpx.Response(201, json=DECISION))
    [command] = run(api, ("redeem", CARD, 1))
    assert "done" == command.status
    assert 1 == len({request.headers["Idempotency-Key"] for request in api.requests})

    for answer in unreadable:
        with pytest.raises(UnavailableError, match="Repeat it with idempotency_key='mine'"):
            run(Api(answer), ("redeem", CARD, 1, "", "mine"), seconds=0)
        with pytest.raises(UnavailableError):
            run(Api(answer), ("balance", CARD), seconds=0)


@pytest.mark.parametrize(("seconds", "longest"), [(0, 5), (60, 15)])
def test_no_attempt_takes_much_longer_than_the_seconds_of_the_client(run: Run, seconds: float, longest: float) -> None:
    """A server may be silent. A server that works waits for a decision for at most ten seconds."""
    balances = [httpx.Response(200, json=BALANCE | {"Sequence": sequence}) for sequence in (3, 4)]
    api = Api(balances[0], httpx.Response(201, json=DECISION), balances[1])
    run(api, ("balance", CARD), ("redeem", CARD, 1), ("balance", CARD), seconds=seconds)
    timeouts = [request.extensions["timeout"] for request in api.requests]
    assert [(5, longest)] * 3 == [(timeout["connect"], timeout["read"]) for timeout in timeouts]
    assert "timeout" not in api.requests[0].url.params
    assert [min(seconds, 10)] * 2 == [float(request.url.params["timeout"]) for request in api.requests[1:]]


def test_an_error_without_a_text_has_its_name(run: Run) -> None:
    """The timeouts of httpx have none."""
    with pytest.raises(UnavailableError, match=r"^The API gave no final answer in time: ReadTimeout\.$"):
        run(Api(httpx.ReadTimeout("")), ("balance", CARD), seconds=0)


def test_a_read_without_an_answer_has_no_key(run: Run) -> None:
    with pytest.raises(UnavailableError, match="ConnectError: refused") as raised:
        run(Api(httpx.ConnectError("refused")), ("balance", CARD), seconds=0)
    assert raised.value.idempotency_key is None


def test_a_pause_lasts_at_least_retry_after(run: Run) -> None:
    with pytest.raises(UnavailableError, match="503 rebalancing"):
        run(Api(problem(503, "rebalancing", "60")), ("balance", CARD), seconds=30)


def test_a_client_waits_before_it_repeats_a_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows.random, "uniform", lambda *_: 0.1)
    start = time.monotonic()
    run(Api(problem(503, "rebalancing"), httpx.Response(200, json=BALANCE)), ("balance", CARD))
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (429, "too-many-requests"),
        (502, "owner-unreachable"),
        (503, "rebalancing"),
        (504, "owner-timeout"),
        (409, "redemption-pending"),
    ],
)
def test_a_command_is_repeated_after_each_temporary_problem(run: Run, status: int, name: str) -> None:
    api = Api(problem(status, name), httpx.Response(201, json=DECISION))
    run(api, ("redeem", CARD, 1))
    assert 1 == len({request.headers["Idempotency-Key"] for request in api.requests})


def test_a_defect_of_the_api_is_a_problem_at_once(run: Run) -> None:
    with pytest.raises(ProblemError, match="500 internal-error") as raised:
        run(Api(problem(500, "internal-error")), ("redeem", CARD, 1, "", "mine"))
    assert "mine" == raised.value.idempotency_key


def test_a_balance_is_never_older_than_the_last_command_or_read(run: Run) -> None:
    api = Api(
        httpx.Response(201, json=DECISION),
        problem(503, "sequence-not-reached"),
        httpx.Response(200, json=BALANCE | {"Sequence": 5}),
        httpx.Response(200, json=BALANCE | {"Sequence": 6}),
    )
    run(api, ("redeem", CARD, 1), ("balance", CARD), ("balance", CARD))
    asked = [request.url.params.get("minSequence") for request in api.requests]
    assert [None, "4", "4", "5"] == asked
    assert str(OPENED_MS) == api.requests[1].url.params["openedTime"]


def test_a_repeated_command_with_an_old_decision_does_not_allow_an_older_balance(run: Run) -> None:
    sixth = BALANCE | {"Sequence": 6}
    api = Api(*(httpx.Response(200, json=body) for body in (sixth, DECISION, sixth)))
    run(api, ("balance", CARD), ("redeem", CARD, 1, "", "of last week"), ("balance", CARD))
    assert "6" == api.requests[2].url.params["minSequence"]


def test_a_client_remembers_the_versions_of_the_cards_that_it_used_last(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the memory of a client would grow with each card."""
    monkeypatch.setattr(flows, "_MOST_VERSIONS", 2)
    cards = ["1", "2", "1", "3", "1", "2"]
    api = Api(*(httpx.Response(200, json=BALANCE | {"CustomerCardNo": card}) for card in cards))
    run(api, *(("balance", card) for card in cards))
    asked = [request.url.params.get("minSequence") for request in api.requests]
    assert [None, None, "3", None, "3", None] == asked


def test_a_balance_is_never_older_than_one_that_another_task_has_seen() -> None:
    """The other task gets its balance during the request of this task, or in the pause before its next request."""
    client = flows.Flows(seconds=30)
    fourth, fifth = (httpx.Response(200, json=BALANCE | {"Sequence": sequence}) for sequence in (4, 5))
    flow = client.balance(CARD)
    asked = [next(flow)]
    assert 4 == run_flow(client.balance(CARD), fourth).sequence
    assert isinstance(flow.send(httpx.Response(200, json=BALANCE)), flows.Pause)
    asked += [next(flow)]
    assert isinstance(flow.send(problem(503, "rebalancing")), flows.Pause)
    run_flow(client.balance(CARD), fifth)
    asked += [next(flow)]
    assert 5 == finish(flow, fifth).sequence
    assert [None, 4, 5] == [step.params.get("minSequence") for step in asked if isinstance(step, flows.Call)]


def test_a_task_does_not_return_an_account_that_another_task_has_erased() -> None:
    """A 404 says only that the account is gone that the request has named. It says nothing about a later account."""
    client = flows.Flows(seconds=30)
    run_flow(client.balance(CARD), httpx.Response(200, json=BALANCE))
    flow, slow = client.balance(CARD), client.balance(CARD)
    next(flow)
    next(slow)
    run_flow(client.erase(CARD, None), httpx.Response(200, json=ERASURE))
    assert isinstance(flow.send(httpx.Response(200, json=BALANCE)), flows.Pause)
    next(flow)
    assert 1 == finish(flow, httpx.Response(200, json=NEXT_ACCOUNT)).sequence
    with pytest.raises(ProblemError, match="unknown-customer"):
        slow.send(problem(404, "unknown-customer"))
    assert 1 == run_flow(client.balance(CARD), httpx.Response(200, json=NEXT_ACCOUNT)).sequence


def test_a_balance_is_never_that_of_an_account_that_the_client_has_erased(run: Run) -> None:
    """A standby that lags still has the account. The client demands no sequence, so it gets the 404 without a wait."""
    lagging = httpx.Response(200, json=BALANCE)
    for erased in (lagging, httpx.Response(200, json=BALANCE | {"OpenedTime": None})):
        erasure = httpx.Response(200, json=ERASURE | {"OpenedTime": erased.json()["OpenedTime"]})
        api = Api(erased, erasure, erased, problem(404, "unknown-customer"))
        with pytest.raises(ProblemError, match="unknown-customer"):
            run(api, ("balance", CARD), ("erase", CARD), ("balance", CARD))
        assert {None} == {request.url.params.get("minSequence") for request in api.requests}

        api = Api(erasure, erased, httpx.Response(200, json=NEXT_ACCOUNT), httpx.Response(200, json=NEXT_ACCOUNT))
        assert [1, 1] == [each.sequence for each in run(api, ("erase", CARD), *[("balance", CARD)] * 2)[1:]]
        assert ["1", str(OPENED_MS + 1)] == [api.requests[3].url.params[name] for name in ("minSequence", "openedTime")]

    with pytest.raises(UnavailableError, match="the balance is older than what this client has seen of the card"):
        run(Api(httpx.Response(200, json=ERASURE), lagging), ("erase", CARD), ("balance", CARD), seconds=0)


def test_an_account_that_another_client_has_erased_is_forgotten() -> None:
    """The account after an erasure begins with sequence 1, so older sequences say nothing about it."""
    lagging, gone = httpx.Response(200, json=BALANCE), problem(404, "unknown-customer")
    api = Api(lagging, gone, gone, lagging, httpx.Response(200, json=NEXT_ACCOUNT))
    with LoyaltyClient("http://api", transport=httpx.MockTransport(api)) as client:
        client.balance(CARD)
        for _ in range(2):
            with pytest.raises(ProblemError, match="unknown-customer"):
                client.balance(CARD)
        assert 1 == client.balance(CARD).sequence
    assert ["3", None, None, None] == [request.url.params.get("minSequence") for request in api.requests[1:]]


@pytest.mark.parametrize(
    ("etag", "opened", "sequence"),
    [
        (f'"{OPENED_MS}.4"', str(OPENED_MS), "4"),
        (f'W/"{OPENED_MS}.4"', str(OPENED_MS), "4"),
        ('"4"', "0", "4"),
        ("", None, None),
        ('"of-a-proxy"', None, None),
    ],
)
def test_a_balance_is_never_older_than_the_replacement_of_its_card(
    etag: str, opened: str | None, sequence: str | None
) -> None:
    """The entity tag of the problem has the version. Otherwise a standby that lags shows the points as unmoved."""
    moved = problem(410, "card-replaced")
    moved.headers["ETag"] = etag
    api = Api(moved, moved)
    with LoyaltyClient("http://api", transport=httpx.MockTransport(api)) as client:
        for _ in range(2):
            with pytest.raises(ProblemError, match="card-replaced"):
                client.balance(CARD)
    asked = api.requests[1].url.params
    assert (opened, sequence) == (asked.get("openedTime"), asked.get("minSequence"))


def test_a_client_that_repeats_for_hours_keeps_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot convert 2 to the power of 1,025 to a float."""
    flow = flows.Flows(seconds=1e9).redeem(CARD, Decimal(1), "", "till-7")
    monkeypatch.setattr(flows.random, "uniform", lambda _, longest: longest)
    step = next(flow)
    for _ in range(1_100):
        assert isinstance(step, flows.Call)
        pause = flow.send(problem(503, "rebalancing"))
        assert isinstance(pause, flows.Pause)
        step = next(flow)
    assert 5.0 == pause.seconds


def test_an_instance_that_ends_without_a_problem_document_is_asked_again(run: Run) -> None:
    """The command may have been executed. So the client repeats it under its key, and its last error has the key."""
    bare = [httpx.Response(500, text="Internal Server Error"), httpx.Response(500, json=[])]
    api = Api(*bare, httpx.Response(201, json=DECISION))
    run(api, ("redeem", CARD, 1))
    assert 1 == len({request.headers["Idempotency-Key"] for request in api.requests})

    with pytest.raises(UnavailableError) as caught:
        run(Api(*(httpx.Response(500) for _ in range(9_999))), ("redeem", CARD, 1), seconds=0.05)
    assert caught.value.idempotency_key
    assert ".." not in str(caught.value)


@pytest.mark.parametrize("text", ["<html>", "[" * 100_000], ids=["page", "too many levels"])
def test_a_proxy_without_a_problem_document(run: Run, text: str) -> None:
    """A command keeps its key, because an earlier attempt may have been executed."""
    with pytest.raises(ProblemError, match="the response has no problem document") as raised:
        run(Api(httpx.Response(400, text=text)), ("balance", CARD))
    assert raised.value.idempotency_key is None
    with pytest.raises(ProblemError, match="the response has no problem document") as raised:
        run(Api(httpx.Response(400, text=text)), ("redeem", CARD, 1))
    assert raised.value.idempotency_key


@pytest.mark.parametrize("client", [LoyaltyClient, AsyncLoyaltyClient])
def test_an_address_without_a_scheme_is_refused_at_once(client: type[LoyaltyClient | AsyncLoyaltyClient]) -> None:
    with pytest.raises(ValueError, match="'localhost:8080' is not a URL of the API: begin with http:// or https://"):
        client("localhost:8080")
