"""The catalogue of topics. Everything else refers to an entry here; nobody spells a topic's name or settings twice."""

from dataclasses import dataclass
from datetime import timedelta

_SEGMENT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Topic:
    """One Kafka topic.

    Attributes:
        name: without a deployment's prefix (see ``Settings.name_of``).
        key: the field whose UTF-8 bytes are the record's key.
        value: the Avro record of its values (a file of this folder); None where values are another topic's, untouched.
        partitions: fixed for the life of the topic; more would send a key elsewhere.
        retention: how long a record can be read; None keeps the latest record of each key for ever (compaction).
        largest_batch: bytes of a compressed batch of records, at most.
        compacted: keeps only the latest record of each key meanwhile; without a retention always so.
    """

    name: str
    key: str
    value: str | None
    partitions: int = 3
    retention: timedelta | None = timedelta(days=7)
    compacted: bool = False
    largest_batch: int = 16 * 2**20

    @property
    def cleanup_policy(self) -> str:
        if not self.retention:
            return "compact"
        return "compact,delete" if self.compacted else "delete"

    @property
    def config(self) -> dict[str, str]:
        """Topic settings in Kafka's own words.

        The broker stamps every record (LogAppendTime): repeats are recognised by how long ago the first came,
        and a till's clock may be years off.
        """
        config = {
            "cleanup.policy": self.cleanup_policy,
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": str(self.largest_batch),
        }
        if self.retention:
            config["retention.ms"] = str(int(self.retention.total_seconds() * 1000))
            # A record outlives its retention by up to one segment.
            config["segment.ms"] = str(int(_SEGMENT.total_seconds() * 1000))
        return config


# What comes in must fit into what goes out, headers and all: Kafka's usual mebibyte here, more everywhere else.
POS_INVOICES = Topic("pos-invoices", key="StoreID", value="PosInvoice", largest_batch=2**20)
SHIPMENT = Topic("shipment", key="StoreID", value="PosInvoice")
HADOOP = Topic("hadoop", key="StoreID", value="HadoopRecord")
LOYALTY = Topic("loyalty", key="CustomerCardNo", value="Notification")
LOYALTY_BALANCES = Topic("loyalty-balances", key="CustomerCardNo", value="Balance", retention=None)
LOYALTY_COMMANDS = Topic("loyalty-commands", key="CustomerCardNo", value="LoyaltyCommand", largest_batch=2**20)
# Kept for longer than a command's id is remembered, so that whoever asks again finds the answer.
LOYALTY_DECISIONS = Topic(
    "loyalty-decisions", key="CommandID", value="Decision", retention=timedelta(days=10), compacted=True
)
LOYALTY_PROGRAMMES = Topic("loyalty-programmes", key="Version", value="ProgrammeVersion", partitions=1, retention=None)
# A window ends with its retention as any other fact; until then only its latest figures matter. Its key names store and
# minute, as compaction keeps one record a key, so the windows of one store are spread over all partitions.
STORE_SALES = Topic("store-sales", key="StoreID@WindowStart", value="StoreSales", compacted=True)
STORES = Topic("stores", key="StoreID", value="Store", partitions=1, retention=None)
DEAD_LETTERS = Topic("dead-letters", key="the original key", value=None, retention=timedelta(days=30))

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
    DEAD_LETTERS,
)
