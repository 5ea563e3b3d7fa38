"""Damaged files: the system detects them, never uses them, and recovers as documented."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

from schemas import topics
from tests.faults.environment import Environment
from tests.faults.load import Tills
from tests.faults.programs import run_module
from tests.faults.report import Row
from tests.faults.under_load import RATE, OnAStack, audited_row, load
from tests.support.processes import delete_newest_commit

_KINDS = {"offsets": "offsets/[0-9]*", "commits": "commits/[0-9]*", "state": "state/**/*"}
"""The kinds of files in the loyalty query's checkpoint that are damaged in turn."""

_DAMAGE_WORDS = ("Checksum", "CHECKSUM", "orrupt", "CORRUPT", "EOFException", "Malformed", "MALFORMED")
"""The words with which Spark and Hadoop report a damaged file. Other messages are other failures."""


def damaged_checkpoint(name: str, environment: Environment, seed: int) -> Row:
    """Damage all files of one kind in the loyalty query's checkpoint. The query must refuse to start.

    A good copy is restored between the kinds. At the end all kinds are damaged, and `loyalty rebuild` makes a new
    checkpoint. `loyalty audit` also checks the result, because it recomputes all accounts with the rules of the domain.
    """
    chance = random.Random(seed)
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    environment.halt(environment.stack.pipeline)
    with Tills(environment.stack, seed + 1_000, RATE):
        environment.until_written(topics.POS_INVOICES, 40)
    checkpoint = Path(environment.settings.checkpoint_dir, "loyalty")
    good = checkpoint.with_name("loyalty-good")
    shutil.copytree(checkpoint, good)
    detected: list[str] = []
    for kind in _KINDS:
        _damage_all(checkpoint, kind, chance)
        run = run_module("pipelines", environment.settings, "--query=loyalty", "--available-now")
        if run.returncode and any(word in run.stdout for word in _DAMAGE_WORDS):
            detected.append(kind)
        shutil.rmtree(checkpoint)
        shutil.copytree(good, checkpoint)
    for kind in _KINDS:
        _damage_all(checkpoint, kind, chance)
    shutil.rmtree(good)
    rebuilt = run_module("pipelines.reconciliation.run_rebuild", environment.settings)
    environment.resume(environment.stack.pipeline)
    recovery = environment.recovered()
    row = audited_row(environment, name, observations, [recovery] * len(_KINDS))
    audited = run_module("pipelines.reconciliation.run_audit", environment.settings).returncode
    statuses = f"{rebuilt.returncode}, {audited}"
    seen = f"{row.evidence}; detected: {', '.join(detected)}; rebuild and loyalty audit: exit status {statuses}"
    undetected = len(_KINDS) - len(detected) + bool(rebuilt.returncode) + bool(audited)
    return replace(row, wrong_answers=row.wrong_answers + undetected, evidence=seen)


def _damage_all(checkpoint: Path, kind: str, chance: random.Random) -> None:
    for file in sorted(checkpoint.glob(_KINDS[kind])):
        # Keep the checksums, because they reveal the damage.
        if file.is_file() and not file.name.endswith(".crc"):
            damage(file, chance)


def damaged_local_store(name: str, environment: Environment, seed: int) -> Row:
    """Damage all files of the RocksDB of each API instance. It must detect this at its start and restore."""
    chance = random.Random(seed)
    with load(environment, seed) as observations:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    for api in environment.stack.apis:
        environment.halt(api)
        for pattern in ("*.sst", "*.log", "MANIFEST*"):
            for file in sorted(api.settings.state_dir.rglob(pattern)):
                damage(file, chance)
        environment.resume(api)
    return audited_row(environment, name, observations, [environment.recovered()])


def damage(file: Path, chance: random.Random) -> None:
    """Flip a byte, or truncate the file."""
    content = bytearray(file.read_bytes())
    if not content:
        return
    if chance.random() < 0.5:
        del content[chance.randrange(len(content)) :]
    else:
        place = chance.randrange(len(content))
        content[place] ^= 0xFF
    file.write_bytes(content)


def half_written_parquet(name: str, environment: Environment, seed: int) -> Row:
    """A crash during a write of Parquet: the newest file is truncated and its batch has no commit."""
    with load(environment, seed) as observations:
        environment.until_written(topics.HADOOP, 60)
    environment.settle()
    environment.halt(environment.stack.pipeline)
    export = Path(environment.settings.export_dir)
    newest = delete_newest_commit(export / "_checkpoint")
    for file in export.glob(f"date=*/batch={newest}/*.parquet"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    environment.resume(environment.stack.pipeline)
    return audited_row(environment, name, observations, [environment.recovered()])


SCENARIOS: dict[str, OnAStack] = {
    "bytes flipped, files cut in checkpoint and state store": damaged_checkpoint,
    "bytes flipped, files cut in local RocksDB": damaged_local_store,
    "Parquet file cut while it was written": half_written_parquet,
}
