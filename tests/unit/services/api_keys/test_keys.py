"""API keys, and `loyalty keys` with wrong input. tests/integration/test_store_queries.py has the tests with Kafka."""

import resource
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from schemas.topics import API_KEYS
from services.api_keys.keys import ApiKey, Scope, key_id_of, new_key, scopes_of
from services.api_keys.topic import keep_key
from services.cli import app
from services.errors import UserError
from services.messaging.avro import decoder, encoder
from services.messaging.publishing import PublishError
from services.settings import Settings
from services.state_stores import catalogue
from tests.support.builders import IDS
from tests.support.kafka import NOBODY

NOW, DAY = 1_700_000_000_000, 86_400_000
SCOPES = {Scope.BALANCE_READ, Scope.POINTS_REDEEM}


@pytest.fixture(autouse=True)
def trail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands need no broker for the audit trail."""
    monkeypatch.setattr("services.cli.keys.audited", lambda *_, **__: nullcontext({}))


def test_a_key_is_known_by_its_hash_only():
    """The record has no part of the key except its id. Each key is new."""
    text, key = new_key("till 7", SCOPES, {"STR1"}, NOW, DAY)

    assert key.key_id == key_id_of(text)
    assert key.matches(text)
    assert not key.matches(text[:-1] + ("A" if text[-1] != "A" else "B"))
    assert text.removeprefix(f"lk_{key.key_id}_") not in str(key.to_record())
    assert text != new_key("till 7", SCOPES, {"STR1"}, NOW, DAY).text


def test_a_key_survives_its_topic():
    """The decoded record is the key, also in the store that the API reads."""
    key = new_key("till 7", SCOPES, {"STR1", "STR2"}, NOW, DAY).key
    value = encoder(API_KEYS, IDS)(key.to_record())

    assert key == ApiKey.from_record(decoder(API_KEYS, IDS)(value))
    assert str.encode(key.hash) in catalogue.api_keys(IDS).view(key.key_id.encode(), value).body


def test_a_key_is_valid_until_it_expires_or_is_revoked():
    """The time of expiry is the first time at which the key is not valid. A second revocation changes nothing."""
    key = new_key("till 7", SCOPES, (), NOW, DAY).key

    assert [True, True, False] == [key.is_valid_at(time) for time in (NOW, NOW + DAY - 1, NOW + DAY)]
    assert not key.revoked(NOW + 5).is_valid_at(NOW + 6)
    assert key.revoked(NOW + 5) == key.revoked(NOW + 5).revoked(NOW + 9)


def test_unknown_scopes_are_left_out():
    """A key of a newer release may have scopes that this release does not know."""
    assert {Scope.OPERATE} == scopes_of(["operate", "points:print", "OPERATE"])
    key = new_key("till 7", SCOPES, (), NOW, DAY).key
    assert replace(key, scopes=frozenset()) == ApiKey.from_record({**key.to_record(), "Scopes": ["points:print"]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lk_",
        "eyJhbGciOiJSUzI1NiJ9.e30.x",
        "lk_0123456789ab_short",
        f"lk_0123456789AB_{'x' * 43}",
        f"lk_0123456789ab_{'x' * 44}",
    ],
)
def test_other_texts_are_no_keys(text: str):
    """Only the exact form counts, so a token is never looked up as a key."""
    assert key_id_of(text) is None


def loyalty(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments], env={"LOYALTY_KAFKA_BOOTSTRAP_SERVERS": NOBODY})


def test_wrong_input_is_refused_before_a_broker_is_asked(tmp_path: Path):
    """A key needs a scope that exists, and a name. An existing file is never overwritten."""
    file = tmp_path / "key"
    file.write_text("precious")

    unscoped, unknown = loyalty("create", "till"), loyalty("create", "till", "--scope", "everything")
    blank = loyalty("create", " ", "--scope", "operate")
    existing = loyalty("create", "till", "--scope", "operate", "--file", str(file))

    assert [2, 2, 2, 1] == [each.exit_code for each in (unscoped, unknown, blank, existing)]
    assert f"{file}: exists already: delete it or choose another file" in existing.stderr
    assert "precious" == file.read_text()


def test_the_file_of_a_key_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only its owner can read the file, and the key is not printed."""
    published: list[ApiKey] = []
    monkeypatch.setattr("services.api_keys.topic.publish_keys", lambda keys, _: published.extend(keys))
    file = tmp_path / "key"

    result = loyalty("create", "till", "--scope", "operate", "--store", "STR1", "--days", "2", "--file", str(file))

    text = file.read_text().strip()
    assert published[0].matches(text)
    assert ({"STR1"}, 2 * DAY) == (published[0].store_ids, published[0].expires_time - published[0].created_time)
    assert 0o600 == file.stat().st_mode & 0o777
    assert text not in result.output


def test_a_file_without_a_published_key_is_explained(tmp_path: Path):
    """The file stays, because the broker may have the record. The error says what to do, and then a new key works."""
    file = tmp_path / "key"

    result = loyalty("create", "till", "--scope", "operate", "--file", str(file))

    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert key_id_of(file.read_text().strip())
    assert f"no Kafka broker answers at {NOBODY}" in result.stderr
    assert f"The key in {file} may not be valid: delete this file and try again" in result.stderr


def test_a_file_keeps_its_key_while_it_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A key that is valid for 30 days stays. A key that is revoked, unknown or ends sooner is replaced, and so is a key
    with other scopes or with a limit to shops, or a text that only has the id of a key.
    """
    topic: dict[str, ApiKey] = {}
    monkeypatch.setattr("services.api_keys.topic.read_keys", lambda _: topic)
    monkeypatch.setattr("services.api_keys.topic.publish_keys", lambda keys, _: topic.update({keys[0].key_id: keys[0]}))
    file = tmp_path / "new folder" / "key"

    def ensure(scope: str = "operate") -> str:
        result = loyalty("ensure", "operator", str(file), "--scope", scope, "--days", "31")
        assert 0 == result.exit_code, result.stderr
        assert 0o600 == file.stat().st_mode & 0o777
        return file.read_text().strip()

    def change(text: str, **changes: Any) -> None:
        key_id = key_id_of(text) or ""
        topic[key_id] = replace(topic[key_id], **changes)

    texts = [ensure()]
    assert texts[0] == ensure() != ""
    change(texts[0], revoked_time=1)
    texts.append(ensure())
    change(texts[1], expires_time=topic[key_id_of(texts[1]) or ""].expires_time - 2 * DAY)
    texts.append(ensure())
    change(texts[2], store_ids=frozenset({"STR1"}))
    texts.append(ensure())
    change(texts[3], hash=topic[key_id_of(texts[0]) or ""].hash)
    texts.append(ensure())
    topic.clear()
    texts += [ensure("points:adjust"), ensure()]
    assert 7 == len({*texts})
    assert {Scope.OPERATE} == topic.popitem()[1].scopes
    topic.clear()
    ensure()
    assert topic.keys() == {key_id_of(file.read_text().strip())}


def test_a_key_that_would_be_replaced_at_once_is_refused(tmp_path: Path):
    """A key that is valid for 30 days would be replaced at each run."""
    result = loyalty("ensure", "operator", str(tmp_path / "key"), "--scope", "operate", "--days", "30")
    assert 2 == result.exit_code
    assert "equal to 31" in result.stderr


def test_the_old_key_stays_if_the_new_one_cannot_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise the file would have a key that no instance knows. The next run succeeds."""
    topic: dict[str, ApiKey] = {}
    monkeypatch.setattr("services.api_keys.topic.read_keys", lambda _: topic)
    monkeypatch.setattr("services.api_keys.topic.publish_keys", lambda keys, _: topic.update({keys[0].key_id: keys[0]}))
    file = tmp_path / "key"
    ensure = ("ensure", "operator", str(file), "--scope", "operate")
    loyalty(*ensure)
    first = file.read_text()
    key_id = key_id_of(first.strip()) or ""
    topic[key_id] = topic[key_id].revoked(1)

    def fail(*_: object) -> None:
        raise PublishError("no broker")

    with monkeypatch.context() as broken:
        broken.setattr("services.api_keys.topic.publish_keys", fail)
        assert 1 == loyalty(*ensure).exit_code
    assert first == file.read_text()
    assert 0 == loyalty(*ensure).exit_code
    assert topic.keys() == {key_id_of(first.strip()), key_id_of(file.read_text().strip())}
    assert [file] == list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty file would block each later start, because it has no key."""
    monkeypatch.setattr("services.api_keys.topic.publish_keys", lambda *_: None)
    ensure = ("ensure", "operator", str(tmp_path / "key"), "--scope", "operate")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert 1 == loyalty(*ensure).exit_code
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [] == list(tmp_path.iterdir())
    assert 0 == loyalty(*ensure).exit_code


def test_keys_are_revoked_together(monkeypatch: pytest.MonkeyPatch):
    """One call publishes all revocations, each once. With one call for each key, an error could leave some keys valid
    without naming them.
    """
    keys = {key.key_id: key for key in (new_key(name, SCOPES, (), NOW, DAY).key for name in "ab")}
    calls: list[list[bytes]] = []
    monkeypatch.setattr("services.cli.keys.read_keys", lambda _: keys)
    monkeypatch.setattr("services.api_keys.topic.schema_ids", lambda _: IDS)
    monkeypatch.setattr("services.api_keys.topic.connected_producer", lambda *_: None)
    monkeypatch.setattr(
        "services.api_keys.topic.publishing.publish", lambda records, *_: calls.append([key for key, _ in records])
    )

    assert 0 == loyalty("revoke", *keys, *keys).exit_code
    assert [[key_id.encode() for key_id in keys]] == calls


def test_an_unknown_schema_id_is_an_error_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A newer release can have written the record. `loyalty up` reads it too, because it keeps the key of a file."""
    newer = SimpleNamespace(value=lambda: bytes.fromhex("000000ffff"), partition=lambda: 0, offset=lambda: 7)
    monkeypatch.setattr("services.messaging.topic_reader.records_of", lambda *_: [newer])
    made = new_key("this machine", SCOPES, (), NOW, DAY)
    file = tmp_path / "key"
    file.write_text(made.text)
    reason = "topic api-keys, partition 0, offset 7: unknown schema id 65535. Use the newest release, or find out who"

    result = loyalty("list")
    with pytest.raises(UserError, match=reason):
        keep_key(made, file, Settings())

    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))
    assert f"error: {reason}" in result.stderr


def test_a_file_with_anything_else_stays(tmp_path: Path):
    """The command replaces keys only. The error names the file."""
    file = tmp_path / "notes"
    file.write_text("precious")

    result = loyalty("ensure", "operator", str(file), "--scope", "operate")

    assert (1, "precious") == (result.exit_code, file.read_text())
    assert f"{file}: has no API key" in " ".join(result.stderr.split())
