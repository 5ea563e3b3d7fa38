"""Bearer tokens: what is accepted, what is refused, and how keys change."""

import asyncio
import base64
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry
from structlog.testing import capture_logs

from api.security import issuer_keys, tokens
from api.security.caller import Caller
from api.security.issuer_keys import IssuerKeys
from api.security.problems import KeysUnavailable, Unauthenticated
from api.security.tokens import TokenVerifier
from services.api_keys.keys import Scope
from tests.support.http_server import QuietHandler, serving
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = pytest.mark.anyio


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "keys.json")


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    return TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(str(issuer.file)))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA", "Ed25519"])
async def test_a_good_token_names_its_caller(tmp_path: Path, algorithm: str) -> None:
    """Each algorithm is accepted. The claims become the scopes and the limits of the caller. A list without shops is
    a limit, too.
    """
    issuer = Issuer(tmp_path / "keys.json", algorithm)
    verifier = TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(str(issuer.file)))
    token = issuer.token("balance:read openid operate", store=["STR1", "STR2"], card="A")

    caller = await verifier.verify(token)

    expected = frozenset({Scope.BALANCE_READ, Scope.OPERATE})
    assert Caller("token:anna", expected, frozenset({"STR1", "STR2"}), "A") == caller
    assert caller == verifier.verified_caller(f"Bearer {token}".encode())
    assert frozenset() == (await verifier.verify(issuer.token(store=[]))).store_ids


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"iss": ...},
        {"aud": "other"},
        {"aud": ...},
        {"exp": time.time() - 60},
        {"exp": ...},
        {"exp": "tomorrow"},
        {"exp": 10**400},
        {"nbf": time.time() + 3600},
        {"sub": ...},
        {"sub": 7},
        {"sub": "x" * 200},
        {"sub": "a\nb"},
        {"card": "a\u200b"},
        {"scope": 7},
        {"scope": ["operate", 7]},
        {"store": 7},
        {"store": [7]},
        {"store": None},
        {"card": 7},
        {"card": None},
        {"other": "x" * 9000},
    ],
)
async def test_a_token_with_wrong_claims_is_refused(
    issuer: Issuer, verifier: TokenVerifier, claims: dict[str, Any]
) -> None:
    """Each claim is required and checked. A limit of an unknown form never counts as no limit."""
    token = issuer.token(**claims)

    with pytest.raises(Unauthenticated):
        await verifier.verify(token)
    assert verifier.verified_caller(f"Bearer {token}".encode()) is None


def _changed(token: str) -> str:
    head, claims, signature = token.split(".")
    payload = json.loads(base64.urlsafe_b64decode(claims + "=="))
    more = base64.urlsafe_b64encode(json.dumps({**payload, "scope": "operate"}).encode()).decode().rstrip("=")
    return f"{head}.{more}.{signature}"


def _unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


@pytest.mark.parametrize(
    "forge",
    [
        _changed,
        _unsigned,
        lambda token: token[:-4],
        lambda token: token + "." + token,
        lambda _: "",
        lambda _: "a.b.c",
        lambda _: "x" * 9000,
        lambda _: "é.é.é",
    ],
    ids=["changed", "unsigned", "cut", "twice", "empty", "no token", "too long", "not ASCII"],
)
async def test_a_forged_token_is_refused(issuer: Issuer, verifier: TokenVerifier, forge: Callable[[str], str]) -> None:
    """A changed token, a missing signature and any other text give the same problem, and never another error."""
    with pytest.raises(Unauthenticated):
        await verifier.verify(forge(issuer.token()))


async def test_the_public_key_cannot_sign(issuer: Issuer, verifier: TokenVerifier) -> None:
    """A token that is signed with the text of the public key as a shared secret is refused."""
    secret = OctKey.import_key(issuer.file.read_bytes())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "sub": "eve", "scope": "operate"}
    forged = jwt.encode({"alg": "HS256", "kid": "key-1"}, claims, secret)

    with pytest.raises(Unauthenticated):
        await verifier.verify(forged)


@pytest.mark.parametrize("algorithms", [tokens.ALGORITHMS, (*tokens.ALGORITHMS, "HS256")], ids=["ours", "with HS256"])
async def test_a_symmetric_key_of_the_set_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithms: tuple[str, ...]
) -> None:
    """Everybody can read the set, so its symmetric key signs no token, even if HS256 were allowed."""
    monkeypatch.setattr(tokens, "ALGORITHMS", algorithms)
    issuer = Issuer(tmp_path / "issuer.json")
    secret = OctKey.generate_key(256, {"kid": "key-2", "use": "sig"})
    public = json.loads(issuer.file.read_bytes())["keys"]
    issuer.file.write_text(json.dumps({"keys": [*public, secret.as_dict()]}))
    verifier = TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(str(issuer.file)))
    issuer.keys.insert(0, ("HS256", secret))
    with pytest.raises(Unauthenticated):
        await verifier.verify(issuer.token())


async def test_a_key_for_encryption_is_ignored(issuer: Issuer, verifier: TokenVerifier) -> None:
    """Its owner may not sign tokens."""
    keys = json.loads(issuer.file.read_bytes())["keys"]
    issuer.file.write_text(json.dumps({"keys": [{**key, "use": "enc"} for key in keys]}))
    with pytest.raises(KeysUnavailable):
        await verifier.verify(issuer.token())


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "AKP", "alg": "ML-DSA-44", "kid": "new", "pub": "AAAA"},
        {"kty": "EC", "crv": "brainpoolP256r1", "kid": "new", "x": "AAAA", "y": "AAAA"},
        {"kty": "OKP", "crv": "other", "kid": "new", "x": "AAAA"},
        {"kty": "RSA", "kid": "new", "n": 7, "e": "AQAB"},
        {"kid": "new"},
        None,
    ],
    ids=["kty", "EC curve", "OKP curve", "number", "no kty", "null"],
)
async def test_a_key_of_an_unknown_form_is_ignored(
    issuer: Issuer, verifier: TokenVerifier, key: dict[str, Any] | None
) -> None:
    """The other keys stay in use (RFC 7517, section 5), and a warning names the key. Without any other key the response
    is 503.
    """
    public = json.loads(issuer.file.read_bytes())["keys"]
    issuer.file.write_text(json.dumps({"keys": [key, *public]}))
    with capture_logs() as logs:
        assert "token:anna" == (await verifier.verify(issuer.token())).name
    assert [["new" if key else None]] == [each["kid"] for each in logs]

    issuer.file.write_text(json.dumps({"keys": [key]}))
    with pytest.raises(KeysUnavailable):
        await IssuerKeys(str(issuer.file)).get()


@pytest.mark.parametrize("key_id", ["key-1", "../../etc/passwd", "", None, 7, ["key-1"]])
@pytest.mark.parametrize("named", ["jwk", "jku", "x5u", "nothing"])
async def test_a_token_brings_no_key(tmp_path: Path, verifier: TokenVerifier, named: str, key_id: object) -> None:
    """The header of a token chooses one of the issuer's keys, and can neither contain nor name another one."""
    _, key = Issuer(tmp_path / "others.json").keys[0]
    evil = "https://evil.example/keys"
    more = {"jwk": {"jwk": key.as_dict(private=False)}, "jku": {"jku": evil}, "x5u": {"x5u": evil}, "nothing": {}}
    header = {"alg": "ES256", "kid": key_id, **more[named]}
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "sub": "eve", "scope": "operate"}
    signed = ".".join(_base64(json.dumps(each).encode()) for each in (header, claims))
    signature = JWSRegistry.algorithms["ES256"].sign(signed.encode(), key)

    with pytest.raises(Unauthenticated):
        await verifier.verify(f"{signed}.{_base64(signature)}")


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


async def test_the_oldest_known_token_is_forgotten(
    issuer: Issuer, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory does not grow with each token. A forgotten token is verified again."""
    monkeypatch.setattr(tokens, "_MOST_KNOWN", 3)
    texts = [issuer.token(sub=f"caller {number}") for number in range(5)]
    for text in texts:
        await verifier.verify(text)
    assert [False, False, True, True, True] == [verifier.accepted_before(text) for text in texts]
    assert "token:caller 0" == (await verifier.caller_of(texts[0])).name


async def test_a_known_token_ends_with_its_time(
    issuer: Issuer, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of verified tokens does not extend them."""
    end = time.time() + 60
    token = issuer.token(exp=end)
    await verifier.verify(token)
    assert verifier.verified_caller(f"Bearer {token}".encode())
    monkeypatch.setattr(time, "time", lambda: end)

    assert verifier.verified_caller(f"Bearer {token}".encode()) is None


async def test_the_key_of_known_tokens_is_removed_also_if_nobody_sends_another_token(
    issuer: Issuer, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known token is verified again after the time between two reads of the keys, which starts such a read."""
    monkeypatch.setattr(issuer_keys, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(issuer_keys, "REFRESH_SECONDS", 0.05)

    async def ask_again(token: str) -> None:
        while await verifier.caller_of(token):  # noqa: ASYNC110 - the refusal or the deadline ends it
            await asyncio.sleep(0.01)

    token = issuer.token()
    await verifier.caller_of(token)
    issuer.rotate()
    issuer.keys.pop()
    issuer.publish()
    with pytest.raises(Unauthenticated):
        await asyncio.wait_for(ask_again(token), 60)


async def test_new_keys_are_found_and_removed_keys_are_refused(
    issuer: Issuer, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new key works without a restart while old tokens stay valid. Tokens of a removed key end at the next read. A
    read that finds the same keys ends no token.
    """
    monkeypatch.setattr(issuer_keys, "RETRY_SECONDS", 0.0)
    old = issuer.token(exp=time.time() + 3600)
    await verifier.verify(old)
    await verifier._keys.read_again()
    assert verifier.verified_caller(f"Bearer {old}".encode())
    issuer.rotate("RS256")
    new = issuer.token(sub="berta")
    assert "token:berta" == (await verifier.verify(new)).name
    assert "token:anna" == (await verifier.verify(old)).name
    issuer.keys.pop()
    issuer.publish()
    monkeypatch.setattr(issuer_keys, "REFRESH_SECONDS", 0.0)
    await verifier.verify(new)  # it starts the refresh
    async with asyncio.timeout(60):
        while verifier.verified_caller(f"Bearer {old}".encode()):  # noqa: ASYNC110 - the deadline ends it
            await asyncio.sleep(0.01)
    with pytest.raises(Unauthenticated):
        await verifier.verify(old)


class _Endless(QuietHandler):
    """Sends a set that does not end, in large parts or byte by byte."""

    part = b" "
    pause = 0.0
    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(self.part)
                type(self).sent += len(self.part)
                time.sleep(self.pause)


@pytest.mark.parametrize(("part", "pause"), [(b" " * 2**16, 0.0), (b" ", 0.05)], ids=["large", "slow"])
async def test_a_set_without_an_end_is_no_set(monkeypatch: pytest.MonkeyPatch, part: bytes, pause: float) -> None:
    """The read ends at its limit of bytes, or of time in total."""
    monkeypatch.setattr(issuer_keys, "_TIMEOUT_SECONDS", 0.5 if pause else 30.0)
    _Endless.part, _Endless.pause, _Endless.sent = part, pause, 0
    with serving(_Endless) as url:
        keys = IssuerKeys(f"{url}/keys")
        with pytest.raises(KeysUnavailable):
            await keys.get()
    assert _Endless.sent < 64 * 2**20


class _Moved(QuietHandler):
    """Redirects to the JWK set."""

    content = b""

    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/keys" else 200)
        self.send_header("Location", "/others")
        self.end_headers()
        self.wfile.write(self.content)


async def test_a_redirect_of_the_provider_leads_to_no_keys(issuer: Issuer) -> None:
    """Only the operator says whose keys sign tokens."""
    _Moved.content = issuer.file.read_bytes()
    with serving(_Moved) as url, pytest.raises(KeysUnavailable):
        await IssuerKeys(f"{url}/keys").get()


class _Provider(QuietHandler):
    """Serves the JWK set, unless it is down."""

    content = b""
    is_down = False
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(503 if self.is_down else 200)
        self.end_headers()
        self.wfile.write(b"" if self.is_down else self.content)


async def test_an_outage_of_the_provider_is_survived(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last keys stay in use. Requests with unknown keys do not all ask the provider. Without keys the response is
    503.
    """
    with serving(_Provider) as provider:
        url = f"{provider}/keys"
        _Provider.content, _Provider.is_down, _Provider.asked = issuer.file.read_bytes(), True, 0
        verifier = TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(url))
        with pytest.raises(KeysUnavailable):
            await verifier.verify(issuer.token())
        verifier = TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(url))
        _Provider.is_down = False
        await verifier.verify(issuer.token())
        _Provider.is_down = True
        monkeypatch.setattr(issuer_keys, "REFRESH_SECONDS", 0.0)
        asked = _Provider.asked
        for number in range(20):
            assert await verifier.verify(issuer.token(sub=f"caller {number}"))
        issuer.rotate()
        for _ in range(20):
            with pytest.raises(Unauthenticated):
                await verifier.verify(issuer.token())
        assert _Provider.asked <= asked + 1
