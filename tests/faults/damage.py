"""Bytes flipped and files cut, in everything that is kept: noticed, never taken for true, and mended as documented."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

from schemas import topics
from tests.faults.environment import Environment
from tests.faults.load import Tills
from tests.faults.programs import run_module
from tests.faults.report import Row
from tests.faults.under_load import RATE, OnAStack, judged, load

_KEPT = {"offsets": "offsets/[0-9]*", "commits": "commits/[0-9]*", "state": "state/**/*"}
"""What is damaged of the loyalty query's checkpoint, each in its turn."""

_SAID = ("Checksum", "CHECKSUM", "orrupt", "CORRUPT", "EOFException", "Malformed", "MALFORMED")
"""How Spark and Hadoop say that a file is not as it was written; anything else would be another failure."""


def damaged_checkpoint(name: str, environment: Environment, seed: int) -> Row:
    """Every file of one kind in the loyalty query's checkpoint: it must not start; `loyalty rebuild` makes a new one.

    A sound copy is put back between the kinds; the last damage, of all kinds, is mended by the rebuild, and what that
    made is judged by `loyalty audit` too, which recomputes all accounts with the domain's own rules.
    """
    chance = random.Random(seed)
    with load(environment, seed) as told:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    environment.halt(environment.stack.pipeline)
    with Tills(environment.stack, seed + 1_000, RATE):
        environment.until_written(topics.POS_INVOICES, 40)
    checkpoint = Path(environment.settings.checkpoint_dir, "loyalty")
    sound = checkpoint.with_name("loyalty-sound")
    shutil.copytree(checkpoint, sound)
    noticed: list[str] = []
    for kind in _KEPT:
        _damage_all(checkpoint, kind, chance)
        run = run_module("pipelines", environment.settings, "--query=loyalty", "--available-now")
        if run.returncode and any(word in run.stdout for word in _SAID):
            noticed.append(kind)
        shutil.rmtree(checkpoint)
        shutil.copytree(sound, checkpoint)
    for kind in _KEPT:
        _damage_all(checkpoint, kind, chance)
    shutil.rmtree(sound)
    rebuilt = run_module("pipelines.reconciliation.rebuild", environment.settings)
    environment.resume(environment.stack.pipeline)
    recovery = environment.recovered()
    row = judged(environment, name, told, [recovery] * len(_KEPT))
    audited = run_module("pipelines.reconciliation.audit", environment.settings).returncode
    statuses = f"{rebuilt.returncode}, {audited}"
    seen = f"{row.evidence}; noticed: {', '.join(noticed)}; rebuild and loyalty audit: exit status {statuses}"
    unnoticed = len(_KEPT) - len(noticed) + bool(rebuilt.returncode) + bool(audited)
    return replace(row, wrong_answers=row.wrong_answers + unnoticed, evidence=seen)


def _damage_all(checkpoint: Path, kind: str, chance: random.Random) -> None:
    for file in sorted(checkpoint.glob(_KEPT[kind])):
        # Their checksums stay: they are what tells.
        if file.is_file() and not file.name.endswith(".crc"):
            damage(file, chance)


def damaged_local_store(name: str, environment: Environment, seed: int) -> Row:
    """Bytes flipped and a file cut in the RocksDB of an API instance: noticed at its start, and restored anew."""
    chance = random.Random(seed)
    with load(environment, seed) as told:
        environment.until_written(topics.LOYALTY, 40)
    environment.settle()
    for api in environment.stack.apis:
        environment.halt(api)
        for pattern in ("*.sst", "*.log", "MANIFEST*"):
            for file in sorted(api.settings.state_dir.rglob(pattern)):
                damage(file, chance)
        environment.resume(api)
    return judged(environment, name, told, [environment.recovered()])


def damage(file: Path, chance: random.Random) -> None:
    """Flip a byte, or cut the file."""
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
    """A crash within a write of Parquet: a cut file in the newest folder, and no commit of that batch."""
    with load(environment, seed) as told:
        environment.until_written(topics.HADOOP, 60)
    environment.settle()
    environment.halt(environment.stack.pipeline)
    export = Path(environment.settings.export_dir)
    commits = sorted((export / "_checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest = int(commits[-1].name)
    commits[-1].unlink()
    commits[-1].with_name(f".{newest}.crc").unlink(missing_ok=True)
    for file in export.glob(f"date=*/batch={newest}/*.parquet"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    environment.resume(environment.stack.pipeline)
    return judged(environment, name, told, [environment.recovered()])


SCENARIOS: dict[str, OnAStack] = {
    "bytes flipped, files cut in checkpoint and state store": damaged_checkpoint,
    "bytes flipped, files cut in local RocksDB": damaged_local_store,
    "Parquet file cut while it was written": half_written_parquet,
}
