"""What a store is made of, as data; the table of stores is in ``catalogue``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from schemas.topics import Topic


class View(NamedTuple):
    """What a store shows of one changelog value.

    Attributes:
        sequence: a store keeps the view with the highest.
        updated_time: when the fact behind it was appended by the broker, milliseconds since the epoch.
        body: JSON, ready to send.
    """

    sequence: int
    updated_time: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """A keyed store: the latest view of each key of a compacted topic.

    Attributes:
        name: as in URLs and directories.
        changelog: the topic that it follows; a null value deletes the key.
        view: (key, value) of a changelog record to what is shown; raises UndecodableError or UnknownSchemaIdError.
    """

    name: str
    changelog: Topic
    view: Callable[[bytes, bytes], View]
