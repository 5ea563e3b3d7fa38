"""The identity of instances: what is accepted, and what is refused."""

import os
import time
from hashlib import sha256
from pathlib import Path

import pytest
from fastapi import HTTPException
from starlette.types import Message

from api.security import hops
from api.security.caller import Caller
from api.security.hops import HopRequest, Hops, InstanceSecretError, InstanceSecrets
from api.security.problems import ForwardRefused
from services.api_keys.keys import Scope

pytestmark = pytest.mark.anyio

ONE, TWO = "http://one:8080", "http://two:8080"
ANNA = Caller("token:anna", frozenset({Scope.BALANCE_READ}), frozenset({"STR1"}), "A")
MALLORY = Caller("token:mallory", frozenset(Scope))
PATH = "/v1/customers/A/balance?timeout=1"
REQUEST = HopRequest("GET", PATH, "active")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "instance.secret"


@pytest.fixture
def two(file: Path) -> Hops:
    """The receiver."""
    return Hops(TWO, InstanceSecrets(file))


def signed(file: Path, caller: Caller = ANNA, target: str = TWO) -> str:
    return Hops(ONE, InstanceSecrets(file)).sign(caller, target, REQUEST)


def test_the_receiver_knows_the_caller(file: Path, two: Hops) -> None:
    """Name, scopes and limits arrive. The request counts as forwarded. The file is made once, for its owner only."""
    caller = two.verify(signed(file), REQUEST).caller

    assert Caller(ANNA.name, ANNA.scopes, ANNA.store_ids, ANNA.card, is_forwarded=True) == caller
    assert 0o600 == file.stat().st_mode & 0o777


def test_an_identity_counts_once(file: Path, two: Hops) -> None:
    """A replayed request is refused, also by a receiver that has started since."""
    identity = signed(file)
    two.verify(identity, REQUEST)

    with pytest.raises(ForwardRefused):
        two.verify(identity, REQUEST)
    with pytest.raises(ForwardRefused):
        Hops(TWO, InstanceSecrets(file)).verify(identity, REQUEST)


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "DELETE"},
        {"path": "/v1/customers/B/balance?timeout=1"},
        {"path": PATH + "&maxLag=0"},
        {"role": "standby"},
        {"role": ""},
        {"idempotency_key": "k"},
    ],
)
def test_an_identity_belongs_to_one_request(file: Path, two: Hops, changed: dict[str, str]) -> None:
    """Another method, path, query, role or Idempotency-Key is refused. After the refusal, the right request is
    accepted.
    """
    identity = signed(file)

    with pytest.raises(ForwardRefused):
        two.verify(identity, REQUEST._replace(**changed))
    assert "token:anna" == two.verify(identity, REQUEST).caller.name


@pytest.mark.parametrize(
    ("content", "received", "accepted"),
    [
        (b'{"keys":["A"]}', [b'{"keys":["A"]}'], True),
        (b'{"keys":["A"]}', [b'{"keys":', b'["A"]}'], True),
        (b'{"keys":["A"]}', [b'{"keys":["B"]}'], False),
        (b'{"keys":["A"]}', [b""], False),
        (b'{"keys":["A"]}', [b'{"keys":["A"]}', b" "], False),
        (None, [b""], True),
        (None, [b"{}"], False),
    ],
)
async def test_an_identity_belongs_to_one_body(
    file: Path, two: Hops, content: bytes | None, received: list[bytes], *, accepted: bool
) -> None:
    """The receiver refuses another body at its end, in any parts, and a body if none was signed."""
    hop = two.verify(Hops(ONE, InstanceSecrets(file)).sign(ANNA, TWO, REQUEST, content), REQUEST)
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in received]
    parts[-1]["more_body"] = False

    async def receive() -> Message:
        return parts.pop(0)

    async def read() -> None:
        checked = hop.checked(receive)
        while parts:
            await checked()

    if accepted:
        await read()
    else:
        with pytest.raises(HTTPException) as refused:
            await read()
        assert isinstance(refused.value.__cause__, ForwardRefused)


async def test_a_disconnect_is_no_wrong_body(file: Path, two: Hops) -> None:
    """The rest of the body never arrives. The sender has closed the connection, so there is nobody to refuse."""
    hop = two.verify(Hops(ONE, InstanceSecrets(file)).sign(ANNA, TWO, REQUEST, b"{}"), REQUEST)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    assert {"type": "http.disconnect"} == await hop.checked(receive)()


def test_an_identity_belongs_to_one_receiver(file: Path, two: Hops) -> None:
    """An instance cannot pass it on to a third one."""
    with pytest.raises(ForwardRefused):
        two.verify(signed(file, target="http://three:8080"), REQUEST)


@pytest.mark.parametrize("direction", [1, -1])
def test_an_identity_of_another_time_is_refused(
    file: Path, two: Hops, monkeypatch: pytest.MonkeyPatch, direction: int
) -> None:
    """An identity ends after its lifetime and the tolerated difference of clocks. One from the future would be valid
    for longer, and again after a restart of the receiver.
    """
    identity = signed(file)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + direction * (hops.LIFETIME_SECONDS + 1))

    with pytest.raises(ForwardRefused):
        two.verify(identity, REQUEST)


def test_a_corrected_clock_does_not_stop_an_instance(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the receiver was an hour ahead when it started. The identity is newer than the start."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    two = Hops(TWO, InstanceSecrets(file))
    monkeypatch.setattr(time, "time", lambda: now)

    assert "token:anna" == two.verify(signed(file), REQUEST).caller.name


def test_used_identities_are_forgotten_when_they_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the receiver does not grow with each forwarded request. No identity counts twice before its end."""
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    two = Hops(TWO, InstanceSecrets(file))
    end, identities = hops.LIFETIME_SECONDS, []
    for _ in range(5 * end):
        now += 1.0
        identities.append(signed(file))
        two.verify(identities[-1], REQUEST)
    assert end + 1 == len(two._used), "the oldest one is valid until this moment"
    for identity in identities:
        with pytest.raises(ForwardRefused):
            two.verify(identity, REQUEST)


def test_a_forged_identity_is_refused(file: Path, two: Hops, tmp_path: Path) -> None:
    """Another secret, other claims, no signature and other texts are refused, each in the same way."""
    by_another = signed(tmp_path / "other.secret")
    key_id, claims, signature = signed(file).split(".")
    forged = [
        by_another,
        f"{key_id}.{by_another.partition('.')[2]}",
        f"{key_id}.{signed(file, MALLORY).split('.')[1]}.{signature}",
        f"{key_id}.{claims}.",
        f"{key_id}.{claims}.\xff",
        "",
        "a.b.c",
    ]
    for identity in forged:
        with pytest.raises(ForwardRefused):
            two.verify(identity, REQUEST)


def test_secrets_rotate_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new secret is appended, then moved to the front, and then the old one is removed. The instances do this at
    different times, and accept each request at each step.
    """
    monkeypatch.setattr(hops, "_LOOK_AGAIN_SECONDS", 0.0)
    old, new = "o" * 40, "n" * 40
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_text(f"{old}\n")
    one, two = (Hops(url, InstanceSecrets(file)) for url, file in zip((ONE, TWO), files, strict=True))
    for step, content in enumerate((f"{old}\n{new}\n", f"{new}\n{old}\n", f"{new}\n")):
        for number, file in enumerate(files):
            file.write_text(content)
            os.utime(file, ns=(step, 10 * step + number + 1))
            two.verify(one.sign(ANNA, TWO, REQUEST), REQUEST)
            one.verify(two.sign(ANNA, ONE, REQUEST), REQUEST)

    files[0].write_text("z" * 40)
    os.utime(files[0], ns=(9, 99))
    with pytest.raises(ForwardRefused):
        two.verify(one.sign(ANNA, TWO, REQUEST), REQUEST)


def test_a_secret_can_have_any_bytes(file: Path) -> None:
    """The id of a secret never changes, because instances of two releases must know each other by it."""
    file.write_bytes(b" " + b"x" * 32 + b"\r\n\n" + b"\xff" * 32)

    found = InstanceSecrets(file)

    assert ("eb7637e3cd9b086a", b"x" * 32) == found.signing()
    assert b"\xff" * 32 == found.verifying(sha256(b"id of " + b"\xff" * 32).hexdigest()[:16])


def test_a_damaged_file_does_not_stop_a_running_instance(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last secrets stay in use. A process that starts says what is wrong."""
    monkeypatch.setattr(hops, "_LOOK_AGAIN_SECONDS", 0.0)
    two = Hops(TWO, InstanceSecrets(file))
    identity = signed(file)
    file.write_text("short\n")
    os.utime(file, ns=(1, 1))

    assert "token:anna" == two.verify(identity, REQUEST).caller.name
    with pytest.raises(InstanceSecretError, match="at least 32"):
        InstanceSecrets(file)
