"""Creates users and access rights on the brokers, as ``schemas.access`` defines them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from schemas.access import ADMIN, READERS, SERVICES, Service
from services.messaging.clients import admin
from services.settings import Settings

_BROKER_SECONDS = 30.0
SCRAM_MECHANISMS = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}
# Twice Kafka's minimum. This is enough for generated passwords. More would cost time at each new connection.
_ITERATIONS = 8192
_ALL = "*"
"""The name of a right on all topics, groups or transactional ids."""
_EVERY_RIGHT = AclBindingFilter(
    ResourceType.ANY,
    None,  # type: ignore[arg-type]  # the documentation allows None for any name; the types do not
    ResourcePatternType.ANY,
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    AclOperation.ANY,
    AclPermissionType.ANY,
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The rights that were granted and withdrawn."""

    granted: list[AclBinding]
    withdrawn: list[AclBinding]


def user_of(user: str, settings: Settings) -> str:
    """The name of a user of ``schemas.access`` on the brokers. Only admin is the same user for all deployments."""
    return user if user == ADMIN else settings.topic_prefix + user


def rights(settings: Settings) -> set[AclBinding]:
    """All rights of ``schemas.access``, with the names that users, topics and groups have on the brokers."""
    return {binding for service in SERVICES for binding in _rights_of(service, settings)}


def _rights_of(service: Service, settings: Settings) -> Iterator[AclBinding]:
    user = user_of(service.user, settings)
    by_operation = (
        (AclOperation.READ, service.reads),
        (AclOperation.WRITE, service.writes),
        (AclOperation.DESCRIBE_CONFIGS, service.reads_settings_of),
        (AclOperation.DESCRIBE, service.counts),
    )
    for operation, topics in by_operation:
        for topic in topics:
            yield _right(user, operation, ResourceType.TOPIC, settings.name_of(topic))
    for name in service.transactional_ids:
        yield _right(user, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, settings.topic_prefix + name)
    for group in (*service.groups, READERS) if service.reads else service.groups:
        yield _right(user, AclOperation.READ, ResourceType.GROUP, settings.topic_prefix + group)


def _right(user: str, operation: AclOperation, kind: ResourceType, name: str) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
    return AclBinding(kind, name.removesuffix("*"), pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def apply_rights(settings: Settings) -> Changes:
    """Grant the missing rights, then withdraw surplus rights of the users of ``schemas.access``.

    Surplus are rights on names that this deployment uses, and rights on all names. The rights of other users stay.
    Rights on names that this deployment does not use stay too, because processes of an earlier version or another
    deployment on the same brokers can use them. The prefix of a name does not show its deployment: every name begins
    with an empty prefix, and ``eu-test-`` begins with ``eu-``.

    Raises KafkaException. It withdraws nothing unless it has granted all missing rights.
    """
    client = admin(settings)
    found = set(client.describe_acls(_EVERY_RIGHT, request_timeout=_BROKER_SECONDS).result())
    wanted = rights(settings)
    users = {f"User:{user_of(service.user, settings)}" for service in SERVICES}
    names = {(each.restype, each.name) for each in wanted}
    names |= {(kind, _ALL) for kind, _ in names}
    surplus = {each for each in found - wanted if each.principal in users and (each.restype, each.name) in names}
    changes = Changes(sorted(wanted - found, key=str), sorted(surplus, key=str))
    if changes.granted:
        for granted in client.create_acls(changes.granted, request_timeout=_BROKER_SECONDS).values():
            granted.result()
    if changes.withdrawn:
        filters = [AclBindingFilter(*each._to_tuple()) for each in changes.withdrawn]  # noqa: SLF001  # the only way to convert it
        for withdrawn in client.delete_acls(filters, request_timeout=_BROKER_SECONDS).values():
            withdrawn.result()
    return changes


def set_passwords(settings: Settings, passwords: Mapping[str, str]) -> None:
    """Create these users, or change their passwords. ``passwords`` maps names to passwords. Raises KafkaException."""
    client = admin(settings)
    credential = ScramCredentialInfo(SCRAM_MECHANISMS[settings.kafka_sasl_mechanism], _ITERATIONS)
    upsertions: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, credential, password.encode()) for user, password in passwords.items()
    ]
    for future in client.alter_user_scram_credentials(upsertions, request_timeout=_BROKER_SECONDS).values():
        future.result()
