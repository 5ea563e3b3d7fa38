"""Reads the integers of an Avro body as Java does. fastavro accepts some that Java refuses.

Spark reads Avro with Java: a number has at most five or ten bytes, more bits than the type has are dropped, and the
index of a union is never negative. Writers do not produce such numbers, but damaged bytes have them.
"""

from collections.abc import Iterator
from typing import Any

_INT, _LONG = (5, 32), (10, 64)
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class NotReadableByJavaError(ValueError):
    """Java cannot read the bytes."""


def canonical(body: bytes, schema: dict[str, Any]) -> bytes:
    """The body with each integer in its shortest form and with the value that Java reads.

    Raises NotReadableByJavaError. Bytes behind the record stay.
    """
    reader = _Reader(body)
    parts = [*reader.value(schema)]
    return b"".join([*parts, body[reader.at :]])


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._names: dict[str, Any] = {}
        self.at = 0

    def value(self, of: Any) -> Iterator[bytes]:
        if isinstance(of, list):
            index = self._integer(*_INT)
            if not 0 <= index < len(of):
                raise NotReadableByJavaError(f"a union has no branch {index}")
            yield _zigzag(index)
            yield from self.value(of[index])
        elif isinstance(of, dict):
            if "name" in of:
                self._names[_short(of["name"])] = of
            yield from self._value_of(of)
        else:
            yield from self._simple(of)

    def _value_of(self, of: dict[str, Any]) -> Iterator[bytes]:
        match of["type"]:
            case "record":
                for field in of["fields"]:
                    yield from self.value(field["type"])
            case "array":
                yield from self._blocks(of["items"], is_map=False)
            case "map":
                yield from self._blocks(of["values"], is_map=True)
            case "fixed":
                yield self._bytes(of["size"])
            case "enum":
                yield from self._simple("int")
            case inner:
                yield from self.value(inner)

    def _simple(self, of: str) -> Iterator[bytes]:
        match of:
            case "int":
                yield _zigzag(self._integer(*_INT))
            case "long":
                yield _zigzag(self._integer(*_LONG))
            case "string" | "bytes":
                yield from self._text()
            case _ if of in _SIZES:
                yield self._bytes(_SIZES[of])
            case _:
                yield from self._value_of(self._names[_short(of)])

    def _blocks(self, items: Any, *, is_map: bool) -> Iterator[bytes]:
        while count := self._integer(*_LONG):
            if count < 0:
                self._integer(*_LONG)  # the size of the block
            if abs(count) > len(self._body):
                raise NotReadableByJavaError("a block has more values than the body has bytes")
            yield _zigzag(abs(count))
            for _ in range(abs(count)):
                if is_map:
                    yield from self._text()
                yield from self.value(items)
        yield _zigzag(0)

    def _text(self) -> Iterator[bytes]:
        size = self._integer(*_LONG)
        yield _zigzag(size)
        yield self._bytes(size)

    def _bytes(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if not start <= self.at <= len(self._body):
            raise NotReadableByJavaError("the body ends within a value")
        return self._body[start : self.at]

    def _integer(self, most_bytes: int, bits: int) -> int:
        number = 0
        for place in range(most_bytes):
            (byte,) = self._bytes(1)
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:  # noqa: PLR2004 - the highest bit says that another byte follows
                number &= (1 << bits) - 1
                return number >> 1 ^ -(number & 1)
        raise NotReadableByJavaError(f"an integer has more than {most_bytes} bytes")


def _short(name: str) -> str:
    """The name without its namespace."""
    return name.rpartition(".")[2]


def _zigzag(number: int) -> bytes:
    """A number as Avro's writers write it."""
    coded, found = number << 1 if number >= 0 else ~number << 1 | 1, bytearray()
    while coded > 0x7F:  # noqa: PLR2004
        found.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes([*found, coded])
