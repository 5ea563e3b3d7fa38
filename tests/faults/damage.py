"""Damaged files: the system must detect them, never use them, and recover as documented."""

import random
from dataclasses import replace
from pathlib import Path

import httpx

from infra.local.stack import Service
from schemas import topics
from tests.faults.environment import Environment
from tests.faults.load import Tills
from tests.faults.report import Row
from tests.faults.scenario import Scenario, in_turn
from tests.faults.under_load import RATE, audited_row, load
from tests.support.failing_disk import flip
from tests.support.kafka import read_all
from tests.support.processes import delete_newest_commit
from tests.support.programs import loyalty, run_pipeline

_KINDS = ("offsets/[0-9]*", "commits/[0-9]*", "state/**/*")
"""The kinds of files in the checkpoint of the loyalty query. Each injection damages one kind, in turn."""

_IN_FIRST_BLOCK = 32
"""A position in the first data block of an SST file."""

_DAMAGE_WORDS = ("Checksum", "CHECKSUM", "orrupt", "CORRUPT", "EOFException", "Malformed", "MALFORMED", "Incomplete")
"""The words with which Spark and Hadoop report a damaged file. Other messages mean other failures."""


def damaged_checkpoint(name: str, environment: Environment, seed: int) -> Row:
    """Damage all files of one kind in the checkpoint of the loyalty query. The query must refuse to start.

    Then `loyalty rebuild` creates a new checkpoint. `loyalty audit` also checks the result: it computes all accounts
    again with the rules of the domain.
    """
    rng, kind = random.Random(seed), in_turn(_KINDS, seed)
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    environment.halt(environment.stack.pipeline)
    with Tills(environment.stack, seed + 1_000, RATE):
        environment.until_written(topics.POS_INVOICES, 40)
    _damage_all(Path(environment.settings.checkpoint_dir, "loyalty"), kind, rng)
    start = run_pipeline(environment.settings, "--query=loyalty", "--available-now")
    is_detected = start.returncode != 0 and any(word in start.stdout for word in _DAMAGE_WORDS)
    rebuilt = loyalty(environment.settings, "rebuild").returncode
    environment.resume(environment.stack.pipeline)
    recovery = environment.recovered()
    row = audited_row(environment, name, observations, recovery)
    audited = loyalty(environment.settings, "audit").returncode
    found = "detected" if is_detected else f"not detected, exit status {start.returncode}: {start.stdout[-1000:]}"
    seen = f"{row.evidence}; {kind} {found}; rebuild and loyalty audit: exit status {rebuilt}, {audited}"
    wrong = (not is_detected) + bool(rebuilt) + bool(audited)
    return replace(row, wrong_answers=row.wrong_answers + wrong, evidence=seen)


def _damage_all(checkpoint: Path, kind: str, rng: random.Random) -> None:
    for file in sorted(checkpoint.glob(kind)):
        # Do not damage the files of checksums, because they reveal the damage.
        if file.is_file() and not file.name.endswith(".crc"):
            damage(file, rng)


def damaged_local_store(name: str, environment: Environment, seed: int) -> Row:
    """Damage all RocksDB files of each API instance. The instance must detect this at its start, and restore."""
    rng = random.Random(seed)
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    damaged = 0
    for api in environment.stack.apis:
        environment.halt(api)
        for pattern in ("*.sst", "*.log", "MANIFEST*"):
            for file in sorted(api.settings.state_dir.rglob(pattern)):
                damage(file, rng)
                damaged += 1
        environment.resume(api)
    row = audited_row(environment, name, observations, environment.recovered(), f"{damaged} files damaged")
    return replace(row, wrong_answers=row.wrong_answers + (not damaged))


def damaged_sst_block(name: str, environment: Environment, seed: int) -> Row:
    """Flip 64 bytes in the first data block of each SST file of an API instance.

    RocksDB opens the files without an error, so only reads can detect the damage. No read may get status 500, and the
    instance must restore the store.
    """
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    api = in_turn(environment.stack.apis, seed)
    environment.halt(api)
    files = sorted(api.settings.state_dir.rglob("*.sst"))
    for file in files:
        flip(file, _IN_FIRST_BLOCK)
    environment.resume(api)
    failures = _server_errors(environment, api)
    recovery = environment.recovered()
    row = audited_row(environment, name, observations, recovery, f"{len(files)} SST files, statuses 500: {failures}")
    return replace(row, wrong_answers=row.wrong_answers + len(failures) + (not files))


def _server_errors(environment: Environment, api: Service) -> list[str]:
    """Read each balance through one instance. Returns the cards whose read ended with status 500."""
    urls = {card: f"{api.url}/v1/customers/{card}/balance" for card in _cards(environment)}
    statuses = {card: environment.http.get(url, timeout=30).status_code for card, url in urls.items()}
    return [card for card, status in statuses.items() if status == httpx.codes.INTERNAL_SERVER_ERROR]


def _cards(environment: Environment) -> list[str]:
    records = read_all(environment.settings, topics.LOYALTY_BALANCES)
    return sorted({bytes(each.key() or b"").decode() for each in records})


def damage(file: Path, rng: random.Random) -> None:
    """Flip a byte, or truncate the file."""
    content = bytearray(file.read_bytes())
    if not content:
        return
    if rng.random() < 0.5:
        del content[rng.randrange(len(content)) :]
    else:
        place = rng.randrange(len(content))
        content[place] ^= 0xFF
    file.write_bytes(content)


def half_written_parquet(name: str, environment: Environment, seed: int) -> Row:
    """Simulate a crash while Spark writes Parquet: truncate the newest files, and delete the commit of their batch."""
    with load(environment, seed) as observations:
        environment.until_written(topics.HADOOP, 60)
    environment.settle()
    environment.halt(environment.stack.pipeline)
    export = Path(environment.settings.export_dir)
    newest = delete_newest_commit(export / "_checkpoint")
    files = [*export.glob(f"date=*/batch={newest}/*.parquet")]
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    environment.resume(environment.stack.pipeline)
    row = audited_row(environment, name, observations, environment.recovered(), f"{len(files)} files cut")
    return replace(row, wrong_answers=row.wrong_answers + (not files))


SCENARIOS: dict[str, Scenario[Environment]] = {
    "bytes flipped, files cut in checkpoint and state store": Scenario(damaged_checkpoint),
    "bytes flipped, files cut in local RocksDB": Scenario(damaged_local_store),
    "SST block of local RocksDB flipped": Scenario(damaged_sst_block),
    "Parquet file cut while it was written": Scenario(half_written_parquet),
}
