"""A state store in RocksDB: one directory a store partition, data and checkpoint in one atomic write."""

import shutil
import struct
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from services.state_stores.contract import (
    Checkpoint,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StorePartition,
)

# Data and checkpoint share one column family, so that one write-ahead log entry and one flush hold both.
_DATA = b"k"
_END_OF_DATA = b"l"
_CHECKPOINT = b"c"
_CHECKPOINT_HEADER = struct.Struct(">qqq")  # offset, caught-up time, count; the origin follows

_CLOSE_DEADLINE_SECONDS = 5.0


@dataclass(frozen=True)
class RocksDbTuning:
    """Every number that RocksDB is tuned with. One instance serves all partitions of a process.

    Attributes:
        write_buffer_bytes: memory a partition fills before it writes a file. 32 MiB holds about 100,000 balances, so
            that a restore makes few small files and never stalls on level 0 (Kafka Streams' guide advises 32 to 64 MiB
            for restores); up to two per partition exist at a time.
        block_cache_bytes: shared by all partitions. Blocks of 4 KiB hold some 20 balances each; 64 MiB keep the
            customers of a busy hour in memory, and the operating system's page cache stands behind it.
        bloom_bits_per_key: 10 bits give about 1 % false positives (RocksDB wiki): an unknown card reads no block.
        level0_files_before_compaction: the default is 4; 8 halves the rewriting while a restore floods in.
        background_jobs: one flush and one compaction at a time leave the other cores to requests.
        kept_log_files: RocksDB's own LOG files; the default of 1,000 fills a directory over years of restarts.
        open_files: bounds file handles a partition; a table of 1,000,000 balances has well under 100 files.
    """

    write_buffer_bytes: int = 32 * 1024 * 1024
    block_cache_bytes: int = 64 * 1024 * 1024
    bloom_bits_per_key: int = 10
    level0_files_before_compaction: int = 8
    background_jobs: int = 2
    kept_log_files: int = 2
    open_files: int = 256

    @cached_property
    def _block_cache(self) -> Cache:
        return Cache(self.block_cache_bytes)

    def options(self) -> Options:
        """The options in rocksdict's form; values are bytes, never pickled objects."""
        tables = BlockBasedOptions()
        tables.set_block_cache(self._block_cache)
        tables.set_bloom_filter(self.bloom_bits_per_key, block_based=False)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(tables)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_size(self.write_buffer_bytes)
        options.set_level_zero_file_num_compaction_trigger(self.level0_files_before_compaction)
        options.set_max_background_jobs(self.background_jobs)
        options.set_keep_log_file_num(self.kept_log_files)
        options.set_max_open_files(self.open_files)
        return options


class RocksDbStorePartition(StorePartition):
    """One RocksDB in one directory.

    The write-ahead log is on and not synced: the death of the process loses nothing, the death of the machine at most
    the newest writes together with their checkpoint, and the changelog gives them again.
    """

    def __init__(self, directory: Path, tuning: RocksDbTuning) -> None:
        self._directory = directory
        self._closing = threading.Event()
        directory.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._db = Rdict(str(directory), tuning.options())
            self._checkpoint, self._count = _parse_checkpoint(self._db.get(_CHECKPOINT))

    @property
    def checkpoint(self) -> Checkpoint | None:
        self._check_open()
        return self._checkpoint

    def get(self, key: bytes) -> bytes | None:
        # The one operation that is quicker than to enter and leave a context.
        try:
            value: bytes | None = self._db.get(_DATA + key)
        except Exception as error:
            raise self._translated(error) from error
        return value

    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        with self._errors():
            values: list[bytes | None] = self._db.get([_DATA + key for key in keys])  # type: ignore[assignment]
            return dict(zip(keys, values, strict=True))

    def apply(
        self,
        writes: Mapping[bytes, bytes | None],
        checkpoint: Checkpoint,
        known: Mapping[bytes, bytes | None] | None = None,
    ) -> None:
        if known is None:
            known = self.get_many(writes.keys())
        with self._errors():
            batch = WriteBatch(raw_mode=True)
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
            self._db.write(batch)
            self._checkpoint, self._count = checkpoint, count

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        upper_bound = _END_OF_DATA if end is None else _DATA + end
        if limit <= 0 or upper_bound <= _DATA + start:
            return []
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper_bound)
        with self._errors():
            found: list[tuple[bytes, bytes]] = []
            # An iterator left open would keep the directory locked after close.
            for key, value in self._db.items(from_key=_DATA + start, read_opt=bounds):
                found.append((bytes(key)[len(_DATA) :], value))  # type: ignore[arg-type]
                if len(found) == limit:
                    break
            return found

    def count(self) -> int:
        self._check_open()
        return self._count

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        deadline = time.monotonic() + _CLOSE_DEADLINE_SECONDS
        while True:
            try:
                self._db.close()
            except RuntimeError:
                # rocksdict refuses to close during a read of another thread; such a read takes microseconds.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
            else:
                return

    def destroy(self) -> None:
        self.close()
        destroy_directory(self._directory)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise StoreClosedError(_closed(self._directory))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Rocksdict's errors, most of them bare ``Exception``, in the words of the contract."""
        self._check_open()
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> StoreError:
        if not isinstance(error, (DbClosedError, RuntimeError)):
            return _kind_of(error)(f"{self._directory}: {error}")
        return StoreClosedError(_closed(self._directory)) if self._closing.is_set() else StoreError(str(error))


def _closed(directory: Path) -> str:
    return f"the store {directory.name} is closed"


def destroy_directory(directory: Path) -> None:
    """Delete what a store that cannot be opened has left."""
    shutil.rmtree(directory, ignore_errors=False)


def _kind_of(error: Exception) -> type[StoreError]:
    # A full disk or a missing permission is an "IO error" too, and no reason to throw data away.
    damaged = ("Corruption", "Invalid argument", "IO error: No such file or directory")
    return StoreCorruptError if str(error).startswith(damaged) else StoreError


def _parse_checkpoint(stored: bytes | None) -> tuple[Checkpoint | None, int]:
    if stored is None:
        return None, 0
    offset, caught_up_time, count = _CHECKPOINT_HEADER.unpack_from(stored)
    return Checkpoint(stored[_CHECKPOINT_HEADER.size :].decode(), offset, caught_up_time), count
