"""The catalogue of topics. It is the only place with their names and configurations."""

from dataclasses import dataclass
from datetime import timedelta

_SEGMENT = timedelta(days=1)
_MILLISECOND = timedelta(milliseconds=1)
# The records of an erased customer leave a compacted topic within this time, as they leave the topics with events.
_ERASURE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Topic:
    """One Kafka topic.

    Attributes:
        name: without the prefix of the deployment (see ``Settings.name_of``).
        key: the field whose UTF-8 bytes are the key of a record.
        value: the Avro record of the values, a file of this folder. Empty: the values of other topics, unchanged.
        partitions: the number of partitions. None: the deployment chooses it (see ``Settings.partitions_of``).
        retention: how long Kafka keeps a record. None: it keeps the latest record of each key for ever.
        largest_batch: the largest compressed batch of records, in bytes.
        compacted: whether Kafka deletes older records of a key before the retention ends.
        compaction_lag: within this time Kafka compacts a record of a partition that gets new records. None: it can wait
            until half of the log is new.
    """

    name: str
    key: str
    value: str
    partitions: int | None = None
    retention: timedelta | None = timedelta(days=7)
    compacted: bool = False
    compaction_lag: timedelta | None = None
    largest_batch: int = 16 * 2**20

    @property
    def cleanup_policy(self) -> str:
        if not self.retention:
            return "compact"
        return "compact,delete" if self.compacted else "delete"

    @property
    def config(self) -> dict[str, str]:
        """The topic configuration of Kafka.

        The broker sets the time of each record (LogAppendTime), because the clock of a till may be wrong by years.
        """
        config = {
            "cleanup.policy": self.cleanup_policy,
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self.largest_batch),
        }
        if self.retention:
            config["retention.ms"] = str(self.retention // _MILLISECOND)
            # Kafka deletes whole segments, so a record can stay one segment longer than its retention.
            config["segment.ms"] = str(_SEGMENT // _MILLISECOND)
        if self.compaction_lag:
            config["max.compaction.lag.ms"] = str(self.compaction_lag // _MILLISECOND)
        return config


# Topics that only tills write have Kafka's default of 1 MiB after compression. Output topics have more, because a till
# may compress better than the pipeline does. So has loyalty-commands, because the loyalty query also writes whole
# invoices to it.
POS_INVOICES = Topic("pos-invoices", key="StoreID", value="PosInvoice", largest_batch=2**20)
SHIPMENT = Topic("shipment", key="StoreID", value="PosInvoice")
HADOOP = Topic("hadoop", key="StoreID", value="HadoopRecord")
LOYALTY = Topic("loyalty", key="CustomerCardNo", value="Notification")
LOYALTY_BALANCES = Topic(
    "loyalty-balances", key="CustomerCardNo", value="Balance", retention=None, compaction_lag=_ERASURE
)
LOYALTY_COMMANDS = Topic("loyalty-commands", key="CustomerCardNo", value="LoyaltyCommand")
# Longer than the loyalty query remembers the id of a command (two repeat horizons). Otherwise it would drop a repeated
# command whose decision nobody can find any more.
LOYALTY_DECISIONS = Topic(
    "loyalty-decisions",
    key="CommandID",
    value="Decision",
    retention=timedelta(days=20),
    compacted=True,
    compaction_lag=_ERASURE,
)
LOYALTY_PROGRAMMES = Topic("loyalty-programmes", key="Version", value="ProgrammeVersion", partitions=1, retention=None)
# Each window keeps its latest record until the retention ends. The key contains the shop and the minute, so the
# windows of one shop are in all partitions.
STORE_SALES = Topic("store-sales", key="StoreID@WindowStart", value="StoreSales", compacted=True)
STORES = Topic("stores", key="StoreID", value="Store", partitions=1, retention=None)
API_KEYS = Topic("api-keys", key="KeyID", value="ApiKey", partitions=1, retention=None)
AUDIT_TRAIL = Topic("audit-trail", key="Actor", value="AuditRecord", retention=timedelta(days=400))
AUDIT_RUNS = Topic("audit-runs", key="RunID", value="AuditRun", partitions=1, retention=timedelta(days=400))
DEAD_LETTERS = Topic("dead-letters", key="the original key", value="", retention=timedelta(days=30))

ALL = (
    POS_INVOICES,
    SHIPMENT,
    HADOOP,
    LOYALTY,
    LOYALTY_BALANCES,
    LOYALTY_COMMANDS,
    LOYALTY_DECISIONS,
    LOYALTY_PROGRAMMES,
    STORE_SALES,
    STORES,
    API_KEYS,
    AUDIT_TRAIL,
    AUDIT_RUNS,
    DEAD_LETTERS,
)
