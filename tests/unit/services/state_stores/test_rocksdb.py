"""RocksDB stores: restarts, crashes, damaged files and locks."""

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from rocksdict import Options

from services import clock
from services.errors import UserError
from services.messaging.schema_ids import FolderSchemaIds
from services.state_stores import catalogue
from services.state_stores.changelog import Changelog
from services.state_stores.contract import Checkpoint, StoreClosedError, StoreCorruptError, StoreError, StoreFullError
from services.state_stores.definition import FORMAT
from services.state_stores.rocksdb import (
    RocksDbStorePartition,
    StateDirectory,
    rocksdb_options,
)
from services.state_stores.store import StateStore
from tests.support.failing_disk import fill, small_disk
from tests.support.waiting import wait_for

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from services.state_stores.contract import Checkpoint
from services.state_stores.rocksdb import RocksDbStorePartition, rocksdb_options

store = RocksDbStorePartition(Path(sys.argv[1]), rocksdb_options())
for number in range(1, 1_000_000_000):
    value = str(number).encode()
    store.apply({b"first": value, b"last": value, b"only %d" % number: b""}, Checkpoint("test", number, 0))
    if number == 500:
        print("going", flush=True)
"""


def test_a_store_keeps_its_data_after_a_restart(tmp_path: Path) -> None:
    """Values, count and checkpoint are equal after close and open."""
    store = RocksDbStorePartition(tmp_path / "0", rocksdb_options())
    store.apply({b"a": b"1", b"b": b"2"}, Checkpoint("café", 2, 99))
    store.close()

    again = RocksDbStorePartition(tmp_path / "0", rocksdb_options())

    assert again.checkpoint == Checkpoint("café", 2, 99)
    assert again.scan(b"", None, 9) == [(b"a", b"1"), (b"b", b"2")]
    assert again.count() == 2
    again.close()


@pytest.mark.program
def test_a_crash_leaves_data_and_checkpoint_consistent(tmp_path: Path) -> None:
    """After SIGKILL during writes, all keys, the count and the offset come from the same batch."""
    writer = subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path / "0")], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"going\n"
    os.kill(writer.pid, signal.SIGKILL)
    assert writer.wait(60) == -signal.SIGKILL
    writer.stdout.close()

    store = RocksDbStorePartition(tmp_path / "0", rocksdb_options())
    checkpoint = store.checkpoint

    assert checkpoint is not None
    assert checkpoint.offset >= 500
    assert store.get(b"first") == store.get(b"last") == str(checkpoint.offset).encode()
    assert store.count() == checkpoint.offset + 2
    assert len(store.scan(b"only ", b"only!", 10_000_000)) == checkpoint.offset
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB. A container often may not mount one, even as root."""
    with ExitStack() as mounted:
        try:
            mounted.enter_context(small_disk(tmp_path / "disk", "64m"))
        except subprocess.CalledProcessError:
            pytest.skip("this process may not mount a small disk: run the test as root, outside of a container")
        yield tmp_path / "disk"


@pytest.mark.program
def test_a_store_on_a_full_disk_serves_reads_and_continues_after_space_is_free(disk: Path) -> None:
    """A write fails and changes nothing. After space is free, writes of the open store succeed again."""
    filler = disk / "filler"
    store = RocksDbStorePartition(disk / "0", rocksdb_options())
    store.apply({b"a": b"1"}, Checkpoint("x", 1, 0))
    fill(filler)

    with pytest.raises(StoreFullError, match="free space"):
        store.apply({b"a": b"2", b"b": bytes(100_000)}, Checkpoint("x", 2, 0))
    assert ([(b"a", b"1")], 1, None) == (store.scan(b"", None, 9), store.count(), store.damage)
    assert store.checkpoint == Checkpoint("x", 1, 0)

    filler.unlink()
    wait_for("a write", lambda: _is_written(store))
    store.close()
    again = RocksDbStorePartition(disk / "0", rocksdb_options())
    assert (again.checkpoint, again.scan(b"", None, 9)) == (Checkpoint("x", 3, 0), [(b"a", b"3")])
    again.close()


@pytest.mark.program
def test_a_store_closes_on_a_full_disk_and_keeps_its_data(disk: Path) -> None:
    """RocksDB cannot flush its memory to a file. The write-ahead log has the data."""
    values = {b"%d" % number: os.urandom(1_000) for number in range(10_000)}
    store = RocksDbStorePartition(disk / "0", rocksdb_options())
    store.apply(values, Checkpoint("x", 1, 0))
    fill(disk / "filler")

    store.close()
    with pytest.raises(StoreClosedError):
        store.get(b"1")
    with pytest.raises(StoreFullError):
        RocksDbStorePartition(disk / "1", rocksdb_options())

    (disk / "filler").unlink()
    again = RocksDbStorePartition(disk / "0", rocksdb_options())
    assert (again.checkpoint, dict(again.scan(b"", None, 10_001))) == (Checkpoint("x", 1, 0), values)
    again.close()


def _is_written(store: RocksDbStorePartition) -> bool:
    try:
        store.apply({b"a": b"3"}, Checkpoint("x", 3, 0))
    except StoreFullError:
        return False
    return True


class _PausedLimit(int):
    """The limit of a scan that stops after its first row until ``go`` is set."""

    def __init__(self, _: int) -> None:
        self.paused, self.go = threading.Event(), threading.Event()

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        self.paused.set()
        return self.go.wait(30) and int(self) == other


def test_close_waits_for_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The iterator of a scan keeps the directory locked. An error of the next open would end the materialiser."""
    store = RocksDbStorePartition(tmp_path / "0", rocksdb_options())
    store.apply({b"a": b"1", b"b": b"2"}, Checkpoint("x", 1, 0))
    limit, found = _PausedLimit(2), list[tuple[bytes, bytes]]()
    # The scan continues when ``close`` waits for it.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: limit.go.set())
    monkeypatch.setattr("services.state_stores.rocksdb.time", clock)
    scan = threading.Thread(target=lambda: found.extend(store.scan(b"", None, limit)))
    scan.start()
    assert limit.paused.wait(30)
    try:
        store.close()
        RocksDbStorePartition(tmp_path / "0", rocksdb_options()).close()
    finally:
        limit.go.set()
        scan.join(30)
    assert [(b"a", b"1"), (b"b", b"2")] == found


def slow_disk(bytes_per_second: int) -> Options:
    """Options of stores with small write buffers, whose files RocksDB writes with this rate."""
    options = rocksdb_options()
    options.set_write_buffer_size(2**16)
    options.set_ratelimiter(bytes_per_second, 100_000, 10)
    return options


def test_other_threads_run_while_a_write_waits_for_a_slow_disk(tmp_path: Path) -> None:
    """Python's lock is free during the wait. All values, the count and the checkpoint are written."""
    store = RocksDbStorePartition(tmp_path, slow_disk(2**16))
    ended, ticks = threading.Event(), list[float]()

    def tick() -> None:
        while not ended.wait(0.005):
            ticks.append(time.monotonic())

    ticker = threading.Thread(target=tick)
    ticker.start()
    values: dict[bytes, bytes | None] = {}
    start = end = 0.0
    try:
        while end - start < 0.5 and len(values) < 100:
            key, value = b"%d" % len(values), os.urandom(20_000)
            values[key] = value
            start = time.monotonic()
            store.apply({key: value}, Checkpoint("x", len(values), 0))
            end = time.monotonic()
    finally:
        ended.set()
        ticker.join(30)

    assert end - start >= 0.5
    during = [start, *(each for each in ticks if start < each < end), end]
    assert max(after - before for before, after in pairwise(during)) < (end - start) / 2
    assert (len(values), Checkpoint("x", len(values), 0)) == (store.count(), store.checkpoint)
    assert values == store.get_many(values)
    store.close()


def test_a_write_that_waits_for_a_slow_disk_ends_when_the_store_closes(tmp_path: Path) -> None:
    """It raises StoreClosedError, and has written nothing. The values before it are not lost."""
    store = RocksDbStorePartition(tmp_path, slow_disk(2**15))
    applied, met = list[int](), list[Exception]()

    def write() -> None:
        try:
            for number in range(9):
                store.apply({b"%d" % number: os.urandom(20_000)}, Checkpoint("x", number + 1, 0))
                applied.append(number)
        except Exception as error:  # noqa: BLE001  # the test compares its type
            met.append(error)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    wait_for("a stall", lambda: store._db.property_int_value("rocksdb.is-write-stopped"), 30)
    store.close()
    writer.join(30)
    assert [StoreClosedError] == [type(error) for error in met]

    again = RocksDbStorePartition(tmp_path, rocksdb_options())
    assert (Checkpoint("x", len(applied), 0), len(applied)) == (again.checkpoint, again.count())
    again.close()


def test_a_write_does_not_wait_for_a_compaction(tmp_path: Path) -> None:
    """If the disk had no space for the compaction, the write would wait for ever and report no full disk."""
    options = rocksdb_options()
    options.set_disable_auto_compactions(True)
    store = RocksDbStorePartition(tmp_path, options)
    for number in range(40):
        store.apply({b"%d" % number: os.urandom(1_000)}, Checkpoint("x", number, 0))
        store._db.flush()
    store.close()
    store = RocksDbStorePartition(tmp_path, slow_disk(2**14))
    store._db.set_options({"disable_auto_compactions": "false"})  # RocksDB has kept the option

    store.apply({b"a": b"1"}, Checkpoint("x", 41, 0))

    assert "40" == store._db.property_value("rocksdb.num-files-at-level0")  # the compaction has not ended
    store.close()


def test_close_does_not_wait_for_scans_that_come_after_it(tmp_path: Path) -> None:
    """While many clients try again, some refused scan is always on its way. ``close`` would take five seconds."""
    store = RocksDbStorePartition(tmp_path, rocksdb_options())
    store.close()
    store._scanning = frozenset()  # type: ignore[assignment]  # no scan can add itself
    with pytest.raises(StoreClosedError):
        store.scan(b"", None, 1)


def test_destroy_deletes_all_data(tmp_path: Path) -> None:
    """A store that is opened in the same directory is empty. The directory may be gone already."""
    store = RocksDbStorePartition(tmp_path / "0", rocksdb_options())
    store.apply({b"a": b"1"}, Checkpoint("test", 1, 0))
    store.destroy()
    store.destroy()
    assert not (tmp_path / "0").exists()

    again = RocksDbStorePartition(tmp_path / "0", rocksdb_options())

    assert again.checkpoint is None
    assert again.count() == 0
    again.close()


def test_a_damaged_store_is_reported_and_deleted(tmp_path: Path) -> None:
    """The first open raises StoreCorruptError, and the next open returns an empty store."""
    state = StateDirectory(tmp_path)
    open_partition = state.open_rocksdb(rocksdb_options())
    store = open_partition("balances", 0)
    store.apply({b"a": b"1"}, Checkpoint("test", 1, 0))
    store.close()
    (tmp_path / "balances" / "0" / "CURRENT").write_bytes(b"damaged\n")

    with pytest.raises(StoreCorruptError):
        open_partition("balances", 0)
    again = open_partition("balances", 0)

    assert again.checkpoint is None
    again.close()
    state.release()


def test_a_store_with_a_damaged_checkpoint_block_is_created_anew(tmp_path: Path) -> None:
    """RocksDB opens, and the checkpoint cannot be read. The next open must not meet the lock of the first."""
    state = StateDirectory(tmp_path)
    open_partition = state.open_rocksdb(rocksdb_options())
    store = RocksDbStorePartition(tmp_path / "balances" / "0", rocksdb_options())
    store.apply({b"a": b"1"}, Checkpoint("test", 1, 0))
    store._db.flush()
    store.close()
    (file,) = (tmp_path / "balances" / "0").glob("*.sst")
    content = bytearray(file.read_bytes())
    content[:8] = bytes(byte ^ 0xFF for byte in content[:8])
    file.write_bytes(content)

    with pytest.raises(StoreCorruptError) as raised:
        open_partition("balances", 0)
    again = open_partition("balances", 0)

    assert "block checksum" in str(raised.value)
    assert again.checkpoint is None
    again.close()
    state.release()


def test_the_logs_of_rocksdb_do_not_grow(tmp_path: Path) -> None:
    """A partition keeps two files of 1 MiB. An instance can run for months, and RocksDB writes statistics all the time.

    700 flushes write about 3.5 MB into these files.
    """
    store = RocksDbStorePartition(tmp_path, rocksdb_options())
    for number in range(700):
        store.apply({}, Checkpoint("x", number, 0))
        store._db.flush()

    assert sum(file.stat().st_size for file in tmp_path.glob("LOG*")) < 2.5 * 2**20
    store.close()


def test_a_second_open_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    """A partition that is already open raises StoreError, not StoreCorruptError, because its data are intact."""
    store = RocksDbStorePartition(tmp_path / "0", rocksdb_options())
    store.apply({b"a": b"1"}, Checkpoint("test", 1, 0))

    with pytest.raises(StoreError) as raised:
        RocksDbStorePartition(tmp_path / "0", rocksdb_options())

    assert not isinstance(raised.value, StoreCorruptError)
    assert store.get(b"a") == b"1"
    store.close()


@pytest.mark.parametrize("attempt", range(10))
def test_a_read_during_a_close_raises(tmp_path: Path, attempt: int) -> None:
    """It raises StoreClosedError and no other error, and the close succeeds."""
    store = RocksDbStorePartition(tmp_path / str(attempt), rocksdb_options())
    store.apply({str(key).encode(): b"v" for key in range(500)}, Checkpoint("test", 1, 0))
    reading = threading.Barrier(4)
    met: list[Exception] = []

    def read() -> None:
        reading.wait()
        try:
            while True:
                store.get(b"7")
                store.scan(b"1", None, 100)
        except Exception as error:  # noqa: BLE001  # the test compares its type
            met.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    reading.wait()
    store.close()
    for reader in readers:
        reader.join(60)

    assert [StoreClosedError] * 3 == [type(error) for error in met]


@pytest.mark.program
def test_one_process_uses_a_state_directory(tmp_path: Path) -> None:
    """A second process gets an error with the directory and the process id. After the release it succeeds."""
    enter = (
        "import sys; from pathlib import Path; from services.state_stores.rocksdb import StateDirectory\n"
        "try: StateDirectory(Path(sys.argv[1]))\n"
        "except RuntimeError as error: print(error)\n"
    )

    def second() -> str:
        return subprocess.run(
            [sys.executable, "-c", enter, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout

    state = StateDirectory(tmp_path)

    told = second()
    assert str(tmp_path) in told
    assert f"pid {os.getpid()}" in told
    with pytest.raises(UserError, match=f"pid {os.getpid()}"):
        StateDirectory(tmp_path)
    state.release()
    assert second() == ""


def test_a_store_of_an_older_format_is_rebuilt(tmp_path: Path) -> None:
    """Values had a header of 24 bytes in format 1. Such a store is deleted and not misread."""
    directory = StateDirectory(tmp_path)
    store = StateStore(catalogue.stores(FolderSchemaIds())[0])
    old = RocksDbStorePartition(tmp_path / store.definition.name / "0", rocksdb_options())
    now = clock.now()
    entry = struct.pack(">qqq", 3, 5, now) + b'{"CustomerCardNo":"A"}'
    old.apply({b"A": entry}, Checkpoint("format 1 of topic x", 6, now))
    old.close()

    changelog = Changelog(f"format {FORMAT} of topic x", 3, timedelta(days=1))
    task = store.open_task(0, changelog, (0, 9), directory.open_rocksdb(rocksdb_options()))

    assert (0, 0, None) == (task.store.count(), task.progress.position, task.progress.resumed_from)
    assert "format 1 of topic x" in str(task.progress.rebuilt_because)
    task.store.close()
    directory.release()


def test_the_identity_of_a_directory_stays_with_its_data(tmp_path):
    """A process that restarts is the same group member. A deleted or damaged identity is a new one."""
    identities = []
    for damage in (None, None, b"damaged", b"\xff"):
        if damage:
            (tmp_path / "IDENTITY").write_bytes(damage)
        directory = StateDirectory(tmp_path)
        identities.append(directory.identity)
        directory.release()
    other = StateDirectory(tmp_path / "other")
    identities.append(other.identity)
    other.release()

    assert identities[0] == identities[1]
    assert 4 == len({*identities})


def test_a_directory_on_a_full_disk_has_an_identity(tmp_path):
    """An instance starts on a full disk, and joins the group later."""
    (tmp_path / "IDENTITY").mkdir()
    directory = StateDirectory(tmp_path)
    assert directory.identity
    directory.release()


def test_the_lock_of_a_directory_names_only_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process before it had a longer number. On a full disk the lock works without a number."""
    (tmp_path / "LOCK").write_text("1234567890\n")
    directory = StateDirectory(tmp_path)
    assert f"{os.getpid()}\n" == (tmp_path / "LOCK").read_text()
    directory.release()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    directory = StateDirectory(tmp_path)
    with pytest.raises(UserError, match="in use by another process"):
        StateDirectory(tmp_path)
    directory.release()


def test_a_directory_knows_the_partitions_of_each_store(tmp_path: Path) -> None:
    """Other stores and other files do not count. A new directory has no partition."""
    directory = StateDirectory(tmp_path / "var" / "state")
    assert frozenset() == directory.partitions_of("balances")
    for name in ("balances/0", "balances/11", "balances/tmp", "other/2"):
        (directory.path / name).mkdir(parents=True)
    assert {0, 11} == directory.partitions_of("balances")
    directory.release()


def test_the_data_of_unused_stores_are_deleted(tmp_path: Path) -> None:
    """A process with stores in memory would never delete an erased customer from them. Other files stay."""
    directory = StateDirectory(tmp_path)
    for name in ("balances/0/sst", "balances/11", "balances/tmp", "other/2"):
        (tmp_path / name).mkdir(parents=True)
    directory.delete(["balances", "unknown"])
    assert ["balances", "balances/tmp", "other", "other/2"] == sorted(
        str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_dir()
    )
    directory.release()


def test_an_open_partition_is_not_deleted_as_damaged(tmp_path: Path) -> None:
    """The lock of its owner is an error, and its data are intact."""
    directory = StateDirectory(tmp_path)
    open_partition = directory.open_rocksdb(rocksdb_options())
    store = open_partition("balances", 0)
    with pytest.raises(StoreError):
        open_partition("balances", 0)
    assert (tmp_path / "balances" / "0" / "CURRENT").exists()
    store.close()
    directory.release()
