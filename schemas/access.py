"""The rights of all services on topics and groups. Kafka denies everything else.

``loyalty access apply`` writes them to Kafka. The right to read or write a topic includes the right to describe it.
"""

from dataclasses import dataclass

from schemas.topics import (
    ALL,
    API_KEYS,
    AUDIT_RUNS,
    AUDIT_TRAIL,
    DEAD_LETTERS,
    HADOOP,
    LOYALTY,
    LOYALTY_BALANCES,
    LOYALTY_COMMANDS,
    LOYALTY_DECISIONS,
    LOYALTY_PROGRAMMES,
    POS_INVOICES,
    SHIPMENT,
    STORE_SALES,
    STORES,
    Topic,
)

ADMIN = "admin"
"""The super user. It creates topics, users and rights. No service runs as this user."""

READERS = "loyalty-readers"
"""The group id of all consumers that choose their partitions themselves. Nobody joins this group.

Kafka's client asks for the coordinator of its group even if it never joins, so it needs a right on a group. Every
service that reads topics has the right on this one.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """One user of the brokers and its rights.

    Attributes:
        user: its SASL user.
        reads, writes: topics.
        reads_settings_of: topics whose configuration it reads.
        counts: topics whose offsets it reads, but not their records.
        groups: the consumer groups that it joins, without the prefix of the deployment. A ``*`` at the end matches any
            ending.
        transactional_ids: ids of its transactional producers, without the prefix.
    """

    user: str
    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    reads_settings_of: tuple[Topic, ...] = ()
    counts: tuple[Topic, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()


SERVICES = (
    Service("till", writes=(POS_INVOICES,)),
    Service(
        "pipeline",
        # It reads loyalty in `loyalty rebuild` only, loyalty-balances also at its start, and dead letters to send
        # notifications again.
        reads=(POS_INVOICES, LOYALTY_COMMANDS, LOYALTY_PROGRAMMES, HADOOP, LOYALTY, LOYALTY_BALANCES, DEAD_LETTERS),
        writes=(
            SHIPMENT,
            HADOOP,
            LOYALTY,
            LOYALTY_BALANCES,
            LOYALTY_COMMANDS,
            LOYALTY_DECISIONS,
            STORE_SALES,
            DEAD_LETTERS,
            AUDIT_TRAIL,  # in `loyalty rebuild`, `export`, `archive` and `dead-letters replay`
        ),
        reads_settings_of=(POS_INVOICES, LOYALTY_COMMANDS, HADOOP),
    ),
    Service(
        "api",
        reads=(
            LOYALTY_BALANCES,
            LOYALTY_DECISIONS,
            LOYALTY_PROGRAMMES,
            STORE_SALES,
            STORES,
            API_KEYS,
            AUDIT_RUNS,
            DEAD_LETTERS,
        ),
        writes=(
            LOYALTY_COMMANDS,
            LOYALTY_DECISIONS,
            LOYALTY_PROGRAMMES,
            AUDIT_TRAIL,
            POS_INVOICES,  # in replays of dead letters, as hadoop and loyalty-commands
            HADOOP,
        ),
        reads_settings_of=(LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_PROGRAMMES, STORE_SALES, STORES, API_KEYS),
        counts=ALL,
        groups=("loyalty-api",),
        transactional_ids=("loyalty-programmes-publisher",),
    ),
    # `loyalty ledger reread` writes to the audit trail.
    Service("ledger", reads=(LOYALTY,), writes=(AUDIT_TRAIL,)),
    Service("webhooks", reads=(LOYALTY,), writes=(DEAD_LETTERS,), groups=("loyalty-webhooks*",)),
    Service(
        "operator",
        reads=(DEAD_LETTERS, LOYALTY_PROGRAMMES, API_KEYS),
        writes=(POS_INVOICES, LOYALTY_COMMANDS, LOYALTY_PROGRAMMES, HADOOP, STORES, API_KEYS, AUDIT_TRAIL),
        transactional_ids=("loyalty-programmes-publisher",),
    ),
    Service(
        "auditor",
        reads=ALL,
        writes=(AUDIT_RUNS, AUDIT_TRAIL),  # in `loyalty audit` and `loyalty sql`
    ),
    Service(
        "analyst",
        reads=(HADOOP, STORE_SALES),  # the topics without names, cards and address lines
        writes=(AUDIT_TRAIL,),  # in `loyalty sql`
    ),
)

USERS = (ADMIN, *(service.user for service in SERVICES))
"""All users with a password."""
