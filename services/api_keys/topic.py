"""Reads and publishes API keys in the compacted topic api-keys, and writes the texts of keys into files."""

import errno
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from schemas import topics
from services.api_keys.keys import ApiKey, NewKey, key_id_of
from services.messaging import publishing
from services.messaging.avro import encoder
from services.messaging.publishing import connected_producer
from services.messaging.schema_ids import schema_ids
from services.messaging.topic_reader import decoded
from services.secret_files import create
from services.settings import Settings

CLIENT_ID = "loyalty-keys"

REST_DAYS = 30
"""``keep_key`` replaces a key that is valid for fewer days."""


def publish_keys(keys: Sequence[ApiKey], settings: Settings) -> None:
    """Publish the current states of keys. Raises PublishError if the broker does not acknowledge all of them."""
    topic = settings.name_of(topics.API_KEYS)
    encode = encoder(topics.API_KEYS, schema_ids(settings))
    records = [(key.key_id.encode(), encode(key.to_record())) for key in keys]
    publishing.publish(records, connected_producer(settings, CLIENT_ID, [topic]), topic)


def read_keys(settings: Settings) -> dict[str, ApiKey]:
    """All keys by id, in the order in which they were made.

    Raises the errors of ``decoded``.
    """
    keys = map(ApiKey.from_record, decoded(settings, topics.API_KEYS, CLIENT_ID))
    latest = {key.key_id: key for key in keys}
    return dict(sorted(latest.items(), key=lambda each: each[1].created_time))


def write_key(made: NewKey, file: Path, settings: Settings) -> None:
    """Write a key into a new file that only its owner can read, and publish it.

    Raises FileExistsError, other OSErrors and PublishError.
    """
    # Write the file first. If the write failed after the publication, the topic would have a key that nobody knows.
    if not create(file, f"{made.text}\n".encode()):
        raise FileExistsError(errno.EEXIST, "exists already: delete it or choose another file", str(file))
    publish_keys([made.key], settings)


def keep_key(made: NewKey, file: Path, settings: Settings) -> ApiKey:
    """The key in the file, if it has the same scopes and shops as the new key and stays valid for 30 days.

    Otherwise it writes the new key into the file, publishes it and returns it. The old key stays valid until it expires
    or is revoked.

    Raises FileExistsError for a file without a key, and does not change this file. Raises other OSErrors, and the
    errors of ``read_keys`` and ``publish_keys``.
    """
    if file.exists():
        text = file.read_text(encoding="ascii", errors="replace").strip()
        key_id = key_id_of(text)
        if key_id is None:
            raise FileExistsError(errno.EEXIST, "has no API key: delete it or choose another file", str(file))
        known = read_keys(settings).get(key_id)
        until = made.key.created_time + timedelta(days=REST_DAYS) // timedelta(milliseconds=1)
        if known and known.matches(text) and known.allows_the_same(made.key) and known.is_valid_at(until):
            return known
        # The old key stays in the file until the topic has the new one.
        new_file = file.with_name(f"{file.name}.new")
        new_file.unlink(missing_ok=True)
        write_key(made, new_file, settings)
        new_file.replace(file)
    else:
        write_key(made, file, settings)
    return made.key
