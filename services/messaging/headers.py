"""Record headers: CloudEvents in Kafka's binary content mode, and the origin of dead letters.

The CloudEvents headers follow the Kafka protocol binding 1.0.2 (prefix ``ce_``, values in UTF-8). The values of dead
letters are texts, as in Kafka Connect's dead letter queue, so that every tool can show them.
"""

CONTENT_TYPE = "application/avro"

DEAD_LETTER_TOPIC = "dead_letter_topic"
DEAD_LETTER_PARTITION = "dead_letter_partition"
DEAD_LETTER_OFFSET = "dead_letter_offset"
DEAD_LETTER_REASON = "dead_letter_reason"
OF_DEAD_LETTERS = (DEAD_LETTER_TOPIC, DEAD_LETTER_PARTITION, DEAD_LETTER_OFFSET, DEAD_LETTER_REASON)
"""The headers that a dead letter has in addition to those of its original record."""

DEAD_LETTER_FIRST_TIME = "dead_letter_first_time"
"""A replay adds this header to the record: when the record first became a dead letter, milliseconds since the epoch."""

LARGEST_VALUE = 15 * 2**20
"""Bytes of a value before compression. A dead letter with a larger value may not fit into its topic (16 MiB)."""

TOO_LARGE = f"larger than {LARGEST_VALUE // 2**20} MiB before compression, so its dead letter has no value"
"""The reason of a dead letter without the value of its record."""

LARGEST_HEADERS = 2**19
"""Bytes of the key and all headers together, with six for each header. With more, a dead letter has neither."""

WITHOUT_HEADERS = f"; key and headers are larger than {LARGEST_HEADERS // 2**10} KiB, so its dead letter has neither"
"""The end of the reason of a dead letter without the key and the headers of its record."""


def cloud_event(identity: str, record: str) -> dict[str, str]:
    """The headers of a record. A reader recognises duplicates by ``ce_id``."""
    return {
        "ce_specversion": "1.0",
        "ce_id": identity,
        "ce_type": f"retail.loyalty.{record}",
        "ce_source": "/retail-loyalty",
        "content-type": CONTENT_TYPE,
    }
