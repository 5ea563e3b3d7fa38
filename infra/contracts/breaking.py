"""Finds changes of a contract that break programs that were written for an older version.

An older client sends requests of the older document, and must understand responses of the newer document. So a newer
request may only accept more values, and a newer response may only have fewer possible values. Topics follow the rules
of Avro (``schemas.compatibility``). No maintained Python package compares OpenAPI documents.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from schemas.compatibility import obstacles

Document = Mapping[str, Any]

# Programs also read these fields by name, in webhooks and in files. An alias of Avro does not help them.
_READ_BY_NAME = ("Notification", "HadoopRecord")


def allows_breaking_changes(version: str, released: str) -> bool:
    """Whether semantic versioning allows a breaking change from the released version to this one.

    Such a change raises the second number below 1.0, and the first number later (https://semver.org/#spec-item-4).
    """
    new, old = ([int(part) for part in text.split(".")[:2]] for text in (version, released))
    return new > old if old[0] == 0 else new[0] > old[0]


def topic_changes(new: Document, old: Document) -> Iterator[str]:
    """The breaking changes between two AsyncAPI documents, one line for each."""
    for name, before in old["channels"].items():
        after = new["channels"].get(name)
        changes = ["the topic is gone"] if after is None else _channel_changes(after, before)
        yield from (f"{name}: {each}" for each in changes)
    for name, before in old["components"]["messages"].items():
        if after := new["components"]["messages"].get(name):
            yield from (f"{name}: {each}" for each in _Comparison(new, old).message(after, before))


def _channel_changes(new: Document, old: Document) -> Iterator[str]:
    if new["description"] != old["description"]:
        yield f"the key was {old['description']!r} and is {new['description']!r}"
    after, before = (each["bindings"]["kafka"] for each in (new, old))
    if after["partitions"] != before["partitions"]:
        yield f"the topic had {before['partitions']} partitions and has {after['partitions']}"
    for name, value in after["topicConfiguration"].items():
        former = before["topicConfiguration"].get(name)
        # A limit may be higher. The cleanup policy is a list.
        if value != former and (former is None or isinstance(value, list) or value < former):
            yield f"{name} was {former} and is {value}"
    yield from (f"the message {each} is gone" for each in old["messages"] if each not in new["messages"])


def http_changes(new: Document, old: Document) -> Iterator[str]:
    """The breaking changes between two OpenAPI documents, one line for each. A line can come several times."""
    for path, item in old["paths"].items():
        for method, before in item.items():
            after = new["paths"].get(path, {}).get(method)
            place = f"{method.upper()} {path}"
            if after is None:
                yield f"{place}: the request is gone"
            else:
                yield from (f"{place}: {each}" for each in _Comparison(new, old).request(after, before))


class _Comparison:
    """One request or message in two documents."""

    def __init__(self, new: Document, old: Document) -> None:
        self._new, self._old = new, old
        self._visited: set[tuple[str, str, bool]] = set()

    def message(self, new: Document, old: Document) -> Iterator[str]:
        if new["contentType"] != old["contentType"]:
            yield f"the content type was {old['contentType']} and is {new['contentType']}"
        yield from self._narrowed(old.get("headers", {}), new.get("headers", {}), "headers", sent=False)
        after, before = (each.get("payload", {}) for each in (new, old))
        if "schemaFormat" not in before or "schemaFormat" not in after:
            yield from self._narrowed(after, before, "value", sent=True)
            return
        schemas = before["schema"], after["schema"]
        # A reader with the older schema must read new records, and a reader with the newer schema old records.
        yield from (f"for a reader of the released schema, {each}" for each in obstacles(*schemas))
        yield from (f"in a released record, {each}" for each in obstacles(*reversed(schemas)))
        if old["name"] in _READ_BY_NAME:
            named, kept = ([field["name"] for field in each["fields"]] for each in schemas)
            yield from (f"the name {each} is gone" for each in named if each not in kept)

    def request(self, new: Document, old: Document) -> Iterator[str]:
        yield from self._parameters(new, old)
        body, former = new.get("requestBody", {}), old.get("requestBody", {})
        yield from self._bodies(body, former, "body", sent=True)
        if body.get("required") and not former.get("required"):
            yield "the body is now required"
        for status, before in old["responses"].items():
            if status < "400":
                after = new["responses"].get(status)
                if after is None:
                    yield f"no response {status} any more"
                else:
                    yield from self._bodies(after, before, f"response {status}", sent=False)
                    yield from self._headers(after, before, f"response {status}")

    def _bodies(self, new: Document, old: Document, place: str, *, sent: bool) -> Iterator[str]:
        for kind, before in old.get("content", {}).items():
            after = new.get("content", {}).get(kind)
            if after is None:
                yield f"{place} cannot be {kind} any more"
            else:
                reader, writer = (after, before) if sent else (before, after)
                yield from self._narrowed(reader.get("schema", {}), writer.get("schema", {}), place, sent=sent)

    def _headers(self, new: Document, old: Document, place: str) -> Iterator[str]:
        found, known = (
            {name.lower(): each.get("schema", {}) for name, each in response.get("headers", {}).items()}
            for response in (new, old)
        )
        for name, before in known.items():
            if name not in found:
                yield f"{place} has no header {name} any more"
            else:
                yield from self._narrowed(before, found[name], f"{place} header {name}", sent=False)

    def _parameters(self, new: Document, old: Document) -> Iterator[str]:
        found, known = (
            {(each["in"], each["name"].lower()): each for each in operation.get("parameters", ())}
            for operation in (new, old)
        )
        for (where, name), parameter in known.items():
            if (where, name) not in found:
                yield f"the {where} parameter {name} is gone"
            else:
                after = found[where, name].get("schema", {})
                yield from self._narrowed(after, parameter.get("schema", {}), f"{where} parameter {name}", sent=True)
        for (where, name), parameter in found.items():
            if parameter.get("required") and not known.get((where, name), {}).get("required"):
                yield f"the {where} parameter {name} is now required"

    def _narrowed(self, reader: Document, writer: Document, place: str, *, sent: bool) -> Iterator[str]:
        """Find values that the writer can send and the reader does not expect.

        ``sent`` is true for a request, whose reader is the newer service. The reader of a response is the older client.
        """
        reader_document, writer_document = (self._new, self._old) if sent else (self._old, self._new)
        pair = (str(reader.get("$ref")), str(writer.get("$ref")), sent)
        if pair[0] != "None" and pair in self._visited:
            return  # a recursive schema, or a pair that was compared before
        self._visited.add(pair)
        wanted, given = _resolved(reader, reader_document), _resolved(writer, writer_document)
        types = [{*_types(each)} for each in (wanted, given)]
        if types[0] and types[1] - types[0]:
            yield f"{place} can be {', '.join(sorted(types[1] - types[0]))}"
        if not types[1] and types[0]:
            yield f"{place} can be of any type"
        yield from (f"{place} can {each}" for each in _unexpected(wanted, given))
        if sent:
            limits, former = _limits(wanted), _limits(given)
            for name in limits:
                if name not in former or former[name] < limits[name]:
                    yield f"{place} has a new or narrower {name}"
        yield from self._members(wanted, given, place, sent=sent)
        if "items" in wanted and "items" in given:
            yield from self._narrowed(wanted["items"], given["items"], f"{place}[]", sent=sent)

    def _members(self, wanted: Document, given: Document, place: str, *, sent: bool) -> Iterator[str]:
        known, written = wanted.get("properties", {}), given.get("properties", {})
        for name in wanted.get("required", ()):
            if name not in given.get("required", ()):
                yield f"{place}.{name} is required, and can be absent"
        for name, schema in written.items():
            if name in known:
                yield from self._narrowed(known[name], schema, f"{place}.{name}", sent=sent)
            elif sent and wanted.get("additionalProperties") is False:
                yield f"{place}.{name} is refused"
        for name in () if sent else known:
            if name not in written:
                yield f"{place}.{name} is gone"


def _resolved(schema: Document, document: Document) -> Document:
    """The schema without references. The branches of a union are merged into one schema."""
    if "$ref" in schema:
        found: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return _resolved(found, document)
    options = schema.get("anyOf", schema.get("oneOf"))
    if not options:
        return schema
    branches = [_resolved(option, document) for option in options]
    merged: dict[str, Any] = {"type": [name for branch in branches for name in _types(branch)]}
    for branch in branches:
        if "const" not in branch:
            merged |= {name: value for name, value in branch.items() if name != "type"}
    return merged


def _unexpected(wanted: Document, given: Document) -> Iterator[str]:
    expected, possible = _values(wanted), _values(given)
    if expected and not possible:
        yield f"be another value than {', '.join(sorted(expected))}"
    elif expected and possible - expected:
        yield f"be {', '.join(sorted(possible - expected))}"
    for name in ("format", "pattern"):
        if wanted.get(name) not in (None, given.get(name)):
            yield f"differ from the {name} {wanted[name]}"


def _values(schema: Document) -> set[str]:
    """The possible values (``enum`` or ``const``). Empty if the schema does not list them."""
    return set(map(str, schema.get("enum", [schema["const"]] if "const" in schema else [])))


def _limits(schema: Document) -> dict[str, tuple[float, bool]]:
    """The limits of a schema, in a form in which a narrower limit compares as greater."""
    limits = {}
    for name in ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"):
        sign = -1 if name.startswith("max") else 1
        exclusive = f"exclusive{name.capitalize()}"
        found = [(sign * schema[each], each == exclusive) for each in (name, exclusive) if each in schema]
        if found:
            limits[name] = max(found)
    return limits


def _types(schema: Document) -> list[str]:
    names = schema.get("type", [])
    return [names] if isinstance(names, str) else list(names)
