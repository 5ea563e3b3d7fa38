"""Reads the headers of records. Other programs can write headers with any bytes."""

from operator import methodcaller

from confluent_kafka import Message

# For a name that is not UTF-8, confluent_kafka returns a list and sets an error at the same time. A call from C code
# notices this and raises SystemError. After some calls, Python code no longer checks it: the list has a null pointer,
# which crashes the process, or a later statement raises the error.
_read = methodcaller("headers")


def headers_of(message: Message) -> list[tuple[str, str | bytes | None]]:
    """The headers of a record that was read; none if the name of one of them is not UTF-8."""
    try:
        return _read(message) or []
    except SystemError:
        # The next call would return that list without an error.
        message.set_headers([])
        return []
