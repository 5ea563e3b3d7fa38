"""Which dead letters are the same message, set aside twice. The broker's part is in the integration tests."""

from dataclasses import replace

from services.messaging.dead_letters import DeadLetter, each_once

LETTER = DeadLetter((0, 4), 1, "pos-invoices", (1, 7), "StoreID is missing", b"STR1", b"{}")


def test_a_letter_set_aside_again_counts_once() -> None:
    """The first of two with one origin, wherever the second lies and whatever its time and reason."""
    again = replace(LETTER, place=(2, 9), time=2, reason="another")

    assert [LETTER] == list(each_once([LETTER, again, again]))


def test_other_messages_are_all_kept() -> None:
    """Another topic, partition, offset, key or value: another message."""
    others = [
        replace(LETTER, topic="till-invoices"),
        replace(LETTER, origin=(2, 7)),
        replace(LETTER, origin=(1, 8)),
        replace(LETTER, key=None),
        replace(LETTER, value=None),  # the topic was made anew, and counts from 0 again
    ]

    assert [LETTER, *others] == list(each_once([LETTER, *others]))


def test_letters_that_do_not_say_where_they_came_from_are_kept() -> None:
    """Nothing tells whether two of them are one."""
    unknown = [replace(LETTER, origin=None), replace(LETTER, topic=None)]

    assert [*unknown, *unknown] == list(each_once([*unknown, *unknown]))
