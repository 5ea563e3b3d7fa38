"""Store partitions in RocksDB, in ``state_dir/<store>/<partition>/``. One process uses a state directory at a time."""

import fcntl
import os
import shutil
import struct
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

import structlog
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from services.errors import UserError
from services.state_stores.contract import (
    Checkpoint,
    StoreClosedError,
    StoreCorruptError,
    StoredValues,
    StoreError,
    StoreFullError,
    StorePartition,
)
from services.state_stores.store import Opener

log = structlog.get_logger(__name__)

# Data and checkpoint share one column family, so that one write-ahead log entry and one flush contain both.
_DATA = b"k"
_END_OF_DATA = b"l"
_CHECKPOINT = b"c"
_CHECKPOINT_HEADER = struct.Struct(">qqq")  # offset, caught-up time, count; the origin follows

_CLOSE_DEADLINE_SECONDS = 5.0
_NO_SPACE = "No space left on device"

# A write waits while both write buffers of a partition are full. rocksdict holds Python's lock (GIL) during this wait,
# so all threads of the process would stop. With this option the write fails at once, and ``apply`` waits.
_WITHOUT_WAITING = WriteOptions()
_WITHOUT_WAITING.no_slowdown = True
_STALL = "Result incomplete: Write stall"
_STALL_SECONDS = 0.05
_UNLIMITED = 2**30


def rocksdb_options() -> Options:
    """The options of all partitions of a process, with values as bytes instead of pickled objects."""
    tables = BlockBasedOptions()
    # All partitions share this cache. A block of 4 KiB has about 20 balances. 64 MiB are enough for the customers of a
    # busy hour. The operating system's page cache has more.
    tables.set_block_cache(Cache(64 * 2**20))
    # 10 bits give about 1 % false positives (RocksDB wiki). So the read of an unknown card rarely reads a block.
    tables.set_bloom_filter(10, block_based=False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.lz4())
    # A partition fills this memory before it writes a file. It has up to two such buffers. 32 MiB hold about 100,000
    # balances. So a restore writes few small files and does not stall on level 0. Kafka Streams' guide recommends 32 to
    # 64 MiB for restores.
    options.set_write_buffer_size(32 * 2**20)
    # The default is 4. With 8 a restore rewrites half as much data.
    options.set_level_zero_file_num_compaction_trigger(8)
    # RocksDB delays and stops writes while level 0 has many files. Our writes do not wait inside RocksDB, so a delay
    # would last until a compaction ends: for ever if the disk has no space for the compaction. With these values only
    # full write buffers stop writes (and 64 GiB that wait for a compaction). Then a flush succeeds, or its error ends
    # the stop.
    options.set_level_zero_slowdown_writes_trigger(_UNLIMITED)
    options.set_level_zero_stop_writes_trigger(_UNLIMITED)
    # One flush and one compaction at a time leave the other cores to requests.
    options.set_max_background_jobs(2)
    # RocksDB's own LOG files. The default is 1,000 files without a limit of their size. RocksDB writes statistics into
    # them every ten minutes.
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(2**20)
    # The file handles of a partition. 1,000,000 balances have far fewer than 100 files.
    options.set_max_open_files(256)
    return options


class RocksDbStorePartition(StorePartition):
    """A store partition in one RocksDB database.

    The write-ahead log is not synced. A crash of the process loses nothing. A crash of the machine can lose the newest
    writes together with their checkpoint, and the changelog contains them.
    """

    def __init__(self, directory: Path, options: Options) -> None:
        self._directory = directory
        self._closing = threading.Event()
        self._scanning: set[int] = set()
        with self._translate_errors():
            directory.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(directory), options)
            try:
                self._checkpoint, self._count = _parse_checkpoint(self._db.get(_CHECKPOINT))
            except Exception:
                # An open database keeps its lock, so the caller could not create the store again.
                self._db.close()
                raise

    @property
    def checkpoint(self) -> Checkpoint | None:
        self._check_open()
        return self._checkpoint

    def get(self, key: bytes) -> bytes | None:
        # A context manager would take longer than the read itself.
        try:
            value: bytes | None = self._db.get(_DATA + key)
        except Exception as error:
            raise self._translated(error) from error
        return value

    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        with self._translate_errors():
            values: list[bytes | None] = self._db.get([_DATA + key for key in keys])  # type: ignore[assignment]
            return dict(zip(keys, values, strict=True))

    def apply(self, writes: StoredValues, checkpoint: Checkpoint, known: StoredValues | None = None) -> None:
        if known is None:
            known = self.get_many(writes.keys())
        with self._translate_errors():
            while not self._try_to_write(writes, checkpoint, known):
                self._closing.wait(_STALL_SECONDS)
                self._check_open()

    def _try_to_write(self, writes: StoredValues, checkpoint: Checkpoint, known: StoredValues) -> bool:
        """Do what ``apply`` does. Returns False, and has written nothing, while both write buffers are full."""
        batch = WriteBatch(raw_mode=True)  # a write consumes it, even if it fails
        count = self._count
        for key, value in writes.items():
            existed = known[key] is not None
            if value is not None:
                batch.put(_DATA + key, value)
            elif existed:
                batch.delete(_DATA + key)
            count += (value is not None) - existed
        header = _CHECKPOINT_HEADER.pack(checkpoint.offset, checkpoint.caught_up_time, count)
        batch.put(_CHECKPOINT, header + checkpoint.origin.encode())
        try:
            self._db.write(batch, _WITHOUT_WAITING)
        except Exception as error:
            if str(error) == _STALL:
                return False
            raise
        self._checkpoint, self._count = checkpoint, count
        return True

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        upper_bound = _END_OF_DATA if end is None else _DATA + end
        if limit <= 0 or upper_bound <= _DATA + start:
            return []
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper_bound)
        with self._iterating(), self._translate_errors():
            rows: list[tuple[bytes, bytes]] = []
            for key, value in self._db.items(from_key=_DATA + start, read_opt=bounds):
                rows.append((bytes(key)[len(_DATA) :], value))  # type: ignore[arg-type]
                if len(rows) == limit:
                    return rows
            # rocksdict ends an iteration without an error at a damaged block. Only the status shows the error.
            rest = self._db.iter(bounds)
            try:
                rest.seek(_DATA + (rows[-1][0] + b"\0" if rows else start))
                rest.status()
            finally:
                del rest  # the traceback of an error would keep it
            return rows

    def count(self) -> int:
        self._check_open()
        return self._count

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        deadline = time.monotonic() + _CLOSE_DEADLINE_SECONDS
        # An iterator keeps the directory locked, and the store could not be opened again. A scan takes milliseconds.
        while self._scanning and time.monotonic() < deadline:
            time.sleep(0.001)
        while True:
            try:
                self._db.close()
            except RuntimeError:
                # rocksdict refuses to close during a read of another thread. Such a read takes microseconds.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain exceptions
                # The database is closed, but it could not write its memory to a file. The write-ahead log has the data.
                log.warning("a store could not be flushed", store=str(self._directory), reason=str(error))
                return
            else:
                return

    def destroy(self) -> None:
        self.close()
        with suppress(FileNotFoundError):
            shutil.rmtree(self._directory)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosedError(f"the store {self._directory.name} is closed")

    @contextmanager
    def _iterating(self) -> Iterator[None]:
        """Make ``close`` wait for the end of this block. The block must delete its iterators."""
        self._check_open()  # a scan after ``close`` must not extend the wait
        thread = threading.get_ident()
        self._scanning.add(thread)
        try:
            yield
        finally:
            self._scanning.discard(thread)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        self._check_open()
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> StoreError:
        """The StoreError for an error of rocksdict, which raises a plain ``Exception`` in most cases."""
        if isinstance(error, (DbClosedError, RuntimeError)):
            self._check_open()
            return StoreError(str(error))
        if _NO_SPACE in str(error):
            # RocksDB continues by itself a few seconds after the disk has space for one write buffer. After any other
            # error, for example of a quota, the store must be opened again before it can write.
            return StoreFullError(f"the disk of the store {self._directory} is full: free space on it")
        # Other "IO error"s, for example a missing permission, do not mean that the data are damaged.
        damaged = ("Corruption", "Invalid argument", "IO error: No such file or directory")
        message = f"{self._directory}: {error}"
        if not str(error).startswith(damaged):
            return StoreError(message)
        self.damage = message
        return StoreCorruptError(message)


def _parse_checkpoint(stored: bytes | None) -> tuple[Checkpoint | None, int]:
    if stored is None:
        return None, 0
    offset, caught_up_time, count = _CHECKPOINT_HEADER.unpack_from(stored)
    return Checkpoint(stored[_CHECKPOINT_HEADER.size :].decode(), offset, caught_up_time), count


class StateDirectory:
    """The directory of all local stores. It is locked for this process until ``release`` or the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._lock, 32).decode(errors="replace").strip()
            os.close(self._lock)
            raise UserError(
                f"the state directory {path} is in use by another process (pid {owner}): "
                "start each process with its own --state-dir"
            ) from error
        with suppress(OSError):  # the lock also works without the pid, for example on a full disk
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def identity(self) -> UUID:
        """Identifies the data. It stays until the directory is deleted. On a full disk it is new each time."""
        file = self.path / "IDENTITY"
        with suppress(OSError, ValueError):
            return UUID(file.read_text().strip())
        identity = uuid4()
        with suppress(OSError):
            file.write_text(f"{identity}\n")
        return identity

    def release(self) -> None:
        os.close(self._lock)

    def partitions_of(self, store: str) -> frozenset[int]:
        """The partitions of a store that have data on disk."""
        return frozenset(int(each.name) for each in self.path.glob(f"{store}/*") if each.name.isdigit())

    def delete(self, stores: Collection[str]) -> None:
        """Delete the data of these stores. None of their partitions may be open."""
        for store in stores:
            for number in self.partitions_of(store):
                shutil.rmtree(self.path / store / str(number))

    def open_rocksdb(self, options: Options) -> Opener:
        """An opener of store partitions. It deletes damaged data before it raises StoreCorruptError."""

        def open_partition(store: str, partition: int) -> StorePartition:
            directory = self.path / store / str(partition)
            try:
                return RocksDbStorePartition(directory, options)
            except StoreCorruptError:
                shutil.rmtree(directory)
                raise

        return open_partition
