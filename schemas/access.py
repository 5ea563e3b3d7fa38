"""Who may do what with which topic: everything else is denied. One table; ``loyalty access apply`` brings it to Kafka.

A right to read or write a topic brings the right to describe it; no other right is implied.
"""

from dataclasses import dataclass

from schemas.topics import (
    ALL,
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
"""The super user: creates topics, users and rights. No service runs as this one."""


@dataclass(frozen=True, slots=True)
class Service:
    """One user of the brokers and its rights.

    Attributes:
        user: the name under which it proves who it is.
        reads, writes: topics.
        reads_settings_of: topics whose retention and the like it asks for.
        groups: consumer groups it may be in, without a deployment's prefix; a last ``*`` stands for any ending.
        transactional_ids: under which it writes in transactions, without the prefix too.
    """

    user: str
    reads: tuple[Topic, ...] = ()
    writes: tuple[Topic, ...] = ()
    reads_settings_of: tuple[Topic, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()


SERVICES = (
    Service("till", writes=(POS_INVOICES,)),
    Service(
        "pipeline",
        # It reads loyalty and loyalty-balances in `loyalty rebuild` only.
        reads=(POS_INVOICES, LOYALTY_COMMANDS, LOYALTY_PROGRAMMES, HADOOP, LOYALTY, LOYALTY_BALANCES),
        writes=(
            SHIPMENT,
            HADOOP,
            LOYALTY,
            LOYALTY_BALANCES,
            LOYALTY_COMMANDS,
            LOYALTY_DECISIONS,
            STORE_SALES,
            DEAD_LETTERS,
        ),
        reads_settings_of=(POS_INVOICES, LOYALTY_COMMANDS, HADOOP),
        groups=("loyalty-pipeline", "loyalty-programmes", "loyalty-audit"),
    ),
    Service(
        "api",
        reads=(LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_PROGRAMMES, STORE_SALES, STORES),
        writes=(LOYALTY_COMMANDS, LOYALTY_DECISIONS),
        reads_settings_of=(LOYALTY_BALANCES, LOYALTY_DECISIONS, LOYALTY_PROGRAMMES, STORE_SALES, STORES),
        groups=("loyalty-api", "loyalty-api-stores"),
    ),
    Service("ledger", reads=(LOYALTY,), groups=("loyalty-ledger",)),
    Service("webhooks", reads=(LOYALTY,), writes=(DEAD_LETTERS,), groups=("loyalty-webhooks*",)),
    Service(
        "operator",
        reads=(DEAD_LETTERS, LOYALTY_PROGRAMMES),
        writes=(POS_INVOICES, LOYALTY_COMMANDS, LOYALTY_PROGRAMMES, HADOOP, STORES),
        groups=("loyalty-dead-letters", "loyalty-programmes"),
        transactional_ids=("loyalty-programmes-publisher",),
    ),
    # Reads what everybody has written, to compare it.
    Service("auditor", reads=ALL, groups=("loyalty-audit", "loyalty-demo", "loyalty-programmes")),
)

USERS = (ADMIN, *(service.user for service in SERVICES))
"""Everybody who has a password."""
