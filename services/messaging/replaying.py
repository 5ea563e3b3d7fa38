"""Publishes the records of dead letters to their topics again."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import NamedTuple

from schemas import topics
from services.clock import now
from services.domain.validation import INVOICE_TOO_LARGE
from services.messaging import headers
from services.messaging.dead_letters import CLIENT_ID, DeadLetter, DeadLettersError, RecordPosition, deduplicated
from services.messaging.publishing import Publisher, PublishError, connected_producer
from services.settings import Settings
from services.yaml_files.scalars import in_iso

_SOURCES = (topics.POS_INVOICES, topics.LOYALTY_COMMANDS, topics.HADOOP, topics.LOYALTY)
"""The topics whose records can become dead letters."""


def replayed_since(settings: Settings, *, older: bool) -> int:
    """Replays leave out records that first became dead letters before this time, in milliseconds since the epoch.

    The record may already count: by an earlier replay, or because the till has sent the corrected invoice. Every query
    drops duplicates of invoices and commands for at least twice the repeat horizon. The first horizon is for the age
    of the dead letter. The second one is for the time that a record may wait in its topic.

    Args:
        older: leave out nothing.
    """
    return 0 if older else now() - settings.repeat_horizon // timedelta(milliseconds=1)


class Selection(NamedTuple):
    """What a replay would publish.

    Attributes:
        topics: the number of dead letters for each original topic.
        positions: the positions of these dead letters.
        missing: the wanted positions that have no dead letter, sorted.
        left_out: the number of dead letters that are too old.
    """

    topics: Counter[str]
    positions: list[RecordPosition]
    missing: list[RecordPosition]
    left_out: int


def select(
    settings: Settings, letters: Iterable[DeadLetter], wanted: Collection[RecordPosition], since: int
) -> Selection:
    """What a replay of these dead letters would publish.

    Raises PublishError if the record of a dead letter cannot be published.

    Args:
        wanted: the positions that must have a dead letter.
        since: leave out records that first became dead letters before this time (see ``replayed_since``).
    """
    found, positions, missing, left_out = Counter[str](), list[RecordPosition](), set(wanted), 0
    for letter in letters:
        missing.discard(letter.position)
        if letter.first_time < since:
            left_out += 1
        else:
            found[_destination(settings, letter)] += 1
            positions.append(letter.position)
    return Selection(found, positions, sorted(missing), left_out)


def replay(settings: Settings, letters: Iterable[DeadLetter], destinations: Iterable[str], since: int) -> int:
    """Publish each original record once, with its headers, to the topic it came from. Returns the number of records.

    The dead letters stay in their topic. Raises PublishError if a record cannot be delivered, and DeadLettersError if
    the dead letters cannot be read. Before both errors, some records may have been published.

    Args:
        destinations: the topics of the dead letters (see ``select``).
        since: leave out records that first became dead letters before this time (see ``replayed_since``).
    """
    published = 0
    # A till may compress better than lz4, and its topic limits the size after compression.
    producer = connected_producer(settings, CLIENT_ID, sorted(destinations), **{"compression.type": "zstd"})
    with Publisher(producer) as publisher:
        try:
            # Leave out the old letters first, as select does: a young letter may have the same origin as an old one.
            for letter in deduplicated(letter for letter in letters if letter.first_time >= since):
                # An earlier replay has added this header too.
                others = (each for each in letter.headers if each[0] != headers.DEAD_LETTER_FIRST_TIME)
                first_time = headers.DEAD_LETTER_FIRST_TIME, str(letter.first_time)
                pairs, name = [*others, first_time], f"dead letter {letter.position}"
                publisher.publish(_destination(settings, letter), letter.key, letter.value, pairs, name)
                published += 1
        except DeadLettersError as error:
            raise DeadLettersError(
                f"{error}. {published:,} records were published before. Replay the same dead letters again within "
                f"{in_iso(settings.repeat_horizon)}: for this time the pipeline does not count these records again"
            ) from error
    return published


def _destination(settings: Settings, letter: DeadLetter) -> str:
    """The topic to which the original record belongs. Raises PublishError if the record cannot be published."""
    if letter.topic is None:
        raise PublishError(
            f"dead letter {letter.position} has no header {headers.DEAD_LETTER_TOPIC}, so its topic is not known; "
            "nothing was published: select other dead letters"
        )
    # Another program can write any topic into the header, for example the one with the API keys.
    if letter.topic not in map(settings.name_of, _SOURCES):
        raise PublishError(
            f"dead letter {letter.position} names {letter.topic}, which is no topic of this deployment whose records "
            "become dead letters; nothing was published: select other dead letters"
        )
    if any(text in letter.reason for text in (headers.TOO_LARGE, INVOICE_TOO_LARGE)):
        raise PublishError(
            f"dead letter {letter.position} has no value, because the value of the record at {letter.origin} of topic "
            f"{letter.topic} is too large; nothing was published: select other dead letters"
        )
    return letter.topic
