"""Keys and secrets change while programs read balances, and while API instances are killed."""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import httpx

from api.security.issuer_keys import RETRY_SECONDS
from services.settings import Settings
from tests.faults.environment import Environment
from tests.faults.report import Row
from tests.faults.scenario import Scenario, in_turn
from tests.support.builders import invoice
from tests.support.kafka import publish_invoices
from tests.support.programs import loyalty
from tests.support.threads import BackgroundThreads
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

_CARDS = [f"ROTATED-{number}" for number in range(12)]
_PAUSE_SECONDS = 0.05
_RELOAD_SECONDS = 2.5
"""After this time, each instance has read the file of the secrets again. It checks the file once a second."""

_REFUSED = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.TOO_MANY_REQUESTS}


class Readers(BackgroundThreads):
    """Reads balances from all instances in turn. Each reader has its own kind of credential.

    Every instance owns some of the cards, so about half of the requests are forwarded.

    Attributes:
        kinds: the kinds of credentials.
        statuses: number of responses by kind of credential and status.
        wrong: descriptions of refused valid credentials, and of wrong balances.
    """

    def __init__(self, http: httpx.Client, urls: Sequence[str], credentials: dict[str, Callable[[], str]]) -> None:
        self._http, self._urls = http, urls
        self._credentials, self.kinds = credentials, tuple(credentials)
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()
        super().__init__(*(partial(self._read, kind) for kind in credentials))

    def _read(self, kind: str) -> None:
        turn = 0
        while not self.stopping.wait(_PAUSE_SECONDS):
            url, card = self._urls[turn % len(self._urls)], _CARDS[turn // len(self._urls) % len(_CARDS)]
            turn += 1
            try:
                answer = read(self._http, url, card, self._credentials[kind]())
            except httpx.HTTPError:
                continue
            with self._lock:
                self.statuses[kind, answer.status_code] += 1
                is_wrong = answer.status_code == httpx.codes.OK and answer.json()["TotalLoyaltyPoints"] != "2.00"
                if is_wrong or answer.status_code in _REFUSED:
                    self.wrong.append(f"{kind}, {url}: {answer.status_code} {answer.text[:200]}")

    @property
    def served(self) -> Counter[str]:
        """The number of balances that were served, by kind of credential."""
        with self._lock:
            return Counter({kind: count for (kind, status), count in self.statuses.items() if status == httpx.codes.OK})


def read(http: httpx.Client, url: str, card: str, credential: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {credential}"}
    return http.get(f"{url}/v1/customers/{card}/balance", headers=headers, timeout=10)


class ApiKeys:
    """The current key of a caller. ``loyalty keys`` creates and revokes keys.

    Args:
        directory: a new directory for the files of the keys.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings, self._directory = settings, directory
        directory.mkdir()
        self._made = 0
        self.current = self.create()

    def create(self) -> str:
        """Create a key. The caller does not use it yet."""
        self._made += 1
        file = self._directory / f"key-{self._made}"
        loyalty(
            self._settings, "keys", "create", "reader", "--scope", "balance:read", "--file", file
        ).check_returncode()
        return file.read_text(encoding="ascii").strip()

    def revoke(self, text: str) -> None:
        loyalty(self._settings, "keys", "revoke", text.split("_")[1]).check_returncode()


class Secured(Environment):
    """A stack whose API requires credentials."""

    def __init__(self, directory: Path) -> None:
        self.issuer, self.secret_file = Issuer(directory / "jwks.json"), directory / "instance.secret"
        self.secret_file.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
        super().__init__(
            directory,
            api_access="authenticated",
            token_issuer=ISSUER,
            token_audience=AUDIENCE,
            token_keys=str(self.issuer.file),
            instance_secret_file=self.secret_file,
            failed_login_rate="100000/minute",
        )


def keys_rotated(name: str, environment: Secured, seed: int) -> Row:
    """Change an API key, the key of the issuer and the secret of the instances, as docs/how-to/secure-the-api.md says.

    Then kill an instance. The API must never refuse a valid credential, and never accept a revoked key.
    """
    urls, issuer, http = [api.url for api in environment.stack.apis], environment.issuer, environment.http
    keys = ApiKeys(environment.settings, environment.directory / f"keys-{seed}")
    environment.key = keys.current
    publish_invoices(environment.settings, *(invoice(card, card) for card in _CARDS))
    environment.until("all balances", lambda: all(environment.balance(card) == "2.00" for card in _CARDS))
    environment.until("the first key", lambda: _statuses(http, urls, keys.current) == {httpx.codes.OK})
    with Readers(http, urls, {"API key": lambda: keys.current, "token": issuer.token}) as readers:
        old, new = keys.current, keys.create()
        # An instance fetches the keys of the issuer at most once in this time.
        _wait(environment, RETRY_SECONDS)
        environment.until("the new key", lambda: _statuses(http, urls, new) == {httpx.codes.OK})
        keys.current = environment.key = new
        issuer.rotate()
        _rotate_secret(environment, environment.secret_file)
        _until_served(environment, readers)
        keys.revoke(old)
        environment.until(
            "the refusal of the old key", lambda: _statuses(http, urls, old) == {httpx.codes.UNAUTHORIZED}
        )
        environment.restart(in_turn(environment.stack.apis, seed))
        recovery = environment.recovered()
        _until_served(environment, readers)
        accepted = _statuses(http, urls, old) != {httpx.codes.UNAUTHORIZED}
    seen = ", ".join(f"{kind} {status}: {count:,}" for (kind, status), count in sorted(readers.statuses.items()))
    evidence = f"{seen}; " + (readers.wrong[0] if readers.wrong else "none refused")
    wrong = len(readers.wrong) + accepted
    return Row(name, 1, None, None, wrong, recovery_seconds=round(recovery, 1), evidence=evidence)


def _statuses(http: httpx.Client, urls: Sequence[str], credential: str) -> set[int]:
    """The statuses of all instances. Empty while one does not answer."""
    try:
        return {read(http, url, card, credential).status_code for url in urls for card in _CARDS}
    except httpx.HTTPError:
        return set()


def _until_served(environment: Environment, readers: Readers) -> None:
    """Wait until each reader has received all balances from all instances again, or until a reader was refused."""
    before, enough = readers.served, 2 * len(_CARDS)
    environment.until(
        "balances for all readers",
        lambda: bool(readers.wrong) or all(readers.served[kind] >= before[kind] + enough for kind in readers.kinds),
    )


def _rotate_secret(environment: Environment, file: Path) -> None:
    old, new = file.read_text(encoding="ascii").strip(), secrets.token_urlsafe(32)
    for lines in ([old, new], [new, old], [new]):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        _wait(environment, _RELOAD_SECONDS)


def _wait(environment: Environment, seconds: float) -> None:
    end = time.monotonic() + seconds
    environment.until(f"the end of {seconds:g} s", lambda: time.monotonic() > end)


SCENARIOS: dict[str, Scenario[Secured]] = {
    "keys and secrets rotated while API instances are killed": Scenario(keys_rotated, Secured)
}
