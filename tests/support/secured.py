"""The security of a group of instances: API keys, an issuer of tokens, and the secret of the instances."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from api.security.audit import RequestAudit
from api.security.gate import Security
from api.security.hops import Hops, InstanceSecrets
from api.security.issuer_keys import IssuerKeys
from api.security.known_keys import KnownKeys
from api.security.limits import CallerLimits, FailedLogins
from api.security.tokens import TokenVerifier
from schemas.topics import API_KEYS, LOYALTY_DECISIONS, Topic
from services.api_keys.keys import ApiKey, NewKey, Scope, new_key
from services.audit_trail import AuditTrail
from services.codecs.records import mark_of
from services.messaging.avro import Record, encoder
from services.pseudonyms import KEY_BYTES, Pseudonyms
from services.state_stores import catalogue
from services.state_stores.memory import MemoryStorePartition
from services.state_stores.store import StateStore
from services.state_stores.task import ChangelogRecord, StoreTask, TaskProgress
from tests.support.builders import IDS, balance
from tests.support.clusters import Callers, Group, Instance
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

PSEUDONYMS = Pseudonyms(b"k" * KEY_BYTES)
EVERYTHING = " ".join(Scope)
BALANCE = "/v1/customers/A/balance"


class RecordedTrail(AuditTrail):
    """Keeps the audit records of all instances."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None: ...


class SecuredGroup:
    """The security of all instances of a group. It plays the topics of keys and audit, and the issuer of tokens."""

    def __init__(self, folder: Path) -> None:
        self.issuer = Issuer(folder / "issuer.json")
        self.secret_file = folder / "instance.secret"
        self.trail = RecordedTrail()
        self.keys = StateStore(catalogue.api_keys(IDS))
        self._task = StoreTask(self.keys.definition, 0, MemoryStorePartition(), "test", TaskProgress(None, 0, 0, 0, 0))
        self.keys.add(self._task)

    def security(
        self,
        url: str,
        *,
        rate: str = "100000/second",
        at_once: int = 100,
        failures: str = "100000/second",
        unsigned: bool = False,
        origins: tuple[str, ...] = (),
    ) -> Security:
        """The security of the instance at a URL."""
        return Security(
            KnownKeys(self.keys),
            TokenVerifier(ISSUER, AUDIENCE, IssuerKeys(str(self.issuer.file))),
            Hops(url, InstanceSecrets(self.secret_file)),
            CallerLimits(rate, at_once),
            FailedLogins(failures),
            RequestAudit(url, PSEUDONYMS, self.trail),
            unsigned,
            origins,
        )

    def instance(self, **changes: Any) -> Instance:
        """An instance that owns all partitions. The arguments are those of ``security``."""
        url = "http://one:8080"
        instance = Instance(url, self.security(url, **changes), {catalogue.API_KEYS: self.keys})
        instance.own_everything()
        return instance

    def publish(self, key: ApiKey) -> None:
        value = encoder(API_KEYS, IDS)(key.to_record())
        self._task.apply([ChangelogRecord(self._task.progress.position, 1, key.key_id.encode(), value)])

    def key(self, *scopes: Scope, stores: Collection[str] = ()) -> NewKey:
        """A new key that all instances know. It is valid for an hour."""
        made = new_key("test", scopes, stores, int(time.time() * 1000), 3_600_000)
        self.publish(made.key)
        return made

    def expired_key(self) -> str:
        made = self.key(*Scope)
        self.publish(replace(made.key, expires_time=1))
        return made.text


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def decision(command_id: str, card: str) -> tuple[Topic, str, dict[str, Any]]:
    record = {**mark_of(command_id, "reserve", "hash"), "Sequence": 2, "Status": "done", "CustomerCardNo": card}
    return LOYALTY_DECISIONS, command_id, {**record, "RedemptionID": command_id}


def run_pair(secured: SecuredGroup, steps: Callable[[Callers], Awaitable[None]], **changes: Any) -> None:
    """Run the steps with two instances. Each of them owns about half of the partitions."""

    async def go() -> None:
        group = Group.of(2, lambda url: secured.security(url, **changes))
        group.share(lambda place: place[1] % 2)
        balances = [balance(card, "1.00") for card in "ABC"]
        group.write([*balances, decision("of-A", "A"), decision("of-B", "B")])
        async with group.running() as callers:
            await steps(callers)

    asyncio.run(go())
