"""The committed contracts equal the code, and a change that breaks a client is found."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from infra.contracts.__main__ import COMPARISONS, broken, committed, documents, text
from infra.contracts.breaking import allows_breaking_changes, http_changes, topic_changes

NAMES = sorted(COMPARISONS)


@pytest.fixture(scope="module")
def current() -> dict[str, dict[str, Any]]:
    return documents()


@pytest.mark.parametrize("name", NAMES)
def test_committed_contract_equals_the_code(name: str, current: dict[str, dict[str, Any]]) -> None:
    assert text(committed(name)) == text(current[name]), "run `python -m infra.contracts` and commit the result"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_breaks_the_users_of_the_last_release(name: str, current: dict[str, dict[str, Any]]) -> None:
    assert [] == broken(name, current[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_contract_does_not_break_itself(name: str, current: dict[str, dict[str, Any]]) -> None:
    assert [] == [*COMPARISONS[name](current[name], current[name])]


def test_the_null_tier_since_release_0_1_is_found(current: dict[str, dict[str, Any]]) -> None:
    """A real change of 0.2: clients of 0.1 do not expect null."""
    changes = [*http_changes(current["openapi.json"], committed("released/openapi.json"))]
    assert "GET /v1/customers/{card}/entries: response 200.entries[].Tier can be null" in changes


@pytest.mark.parametrize(
    ("version", "released", "allowed"),
    [
        ("0.1.0", "0.1.0", False),
        ("0.1.1", "0.1.0", False),
        ("0.2.0", "0.1.9", True),
        ("1.0.0", "0.9.0", True),
        ("1.1.0", "1.0.0", False),
        ("2.0.0", "1.4.2", True),
    ],
)
def test_versions_that_allow_breaking_changes(version: str, released: str, *, allowed: bool) -> None:
    assert allowed == allows_breaking_changes(version, released)


OLD: dict[str, Any] = {
    "paths": {
        "/a": {
            "post": {
                "parameters": [{"in": "query", "name": "n", "schema": {"type": "integer", "exclusiveMinimum": 0}}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/s/In"}}}},
                "responses": {
                    "200": {
                        "content": {"application/json": {"schema": {"$ref": "#/s/Out"}}},
                        "headers": {"ETag": {"schema": {"type": "string"}}},
                    },
                    "404": {},
                },
            }
        }
    },
    "s": {
        "In": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "x": {"type": "string"},
                "y": {"type": "string", "maxLength": 9},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "n": {"type": "string", "pattern": "^[0-9]+$"},
            },
            "required": ["x"],
        },
        "Out": {
            "type": "object",
            "properties": {
                "y": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "list": {"type": "array", "items": {"$ref": "#/s/Out"}},
                "n": {"type": "string", "pattern": "^[0-9]+$"},
            },
            "required": ["y"],
        },
    },
}


def _post(document: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = document["paths"]["/a"]["post"]
    return operation


BREAKING: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a path is gone": (lambda d: d["paths"].clear(), "the request is gone"),
    "a parameter is gone": (lambda d: _post(d)["parameters"].clear(), "the query parameter n is gone"),
    "a parameter has another type": (
        lambda d: _post(d)["parameters"][0].update(schema={"type": "boolean"}),
        "query parameter n can be integer",
    ),
    "a parameter becomes required": (
        lambda d: _post(d)["parameters"][0].update(required=True),
        "the query parameter n is now required",
    ),
    "a new required parameter": (
        lambda d: _post(d)["parameters"].append({"in": "header", "name": "H", "required": True}),
        "the header parameter h is now required",
    ),
    "the body becomes required": (
        lambda d: _post(d)["requestBody"].update(required=True),
        "the body is now required",
    ),
    "a member of the body becomes required": (
        lambda d: d["s"]["In"].update(required=["x", "mode"]),
        "body.mode is required, and can be absent",
    ),
    "a member of the body is gone": (lambda d: d["s"]["In"]["properties"].pop("mode"), "body.mode is refused"),
    "a value of the body is refused": (
        lambda d: d["s"]["In"]["properties"]["mode"].update(enum=["a"]),
        "body.mode can be b",
    ),
    "a member of the body gets a list of values": (
        lambda d: d["s"]["In"]["properties"]["x"].update(enum=["u", "v"]),
        "body.x can be another value than u, v",
    ),
    "a member of the body has only one value": (
        lambda d: d["s"]["In"]["properties"].update(mode={"const": "b"}),
        "body.mode can be a",
    ),
    "a member of the body must be shorter": (
        lambda d: d["s"]["In"]["properties"]["x"].update(maxLength=9),
        "body.x has a new or narrower maxLength",
    ),
    "a member of the body has a new pattern": (
        lambda d: d["s"]["In"]["properties"]["x"].update(pattern="^a"),
        "body.x can differ from the pattern ^a",
    ),
    "a member of the body has another pattern": (
        lambda d: d["s"]["In"]["properties"]["n"].update(pattern="^[1-9]$"),
        "body.n can differ from the pattern ^[1-9]$",
    ),
    "the body has another media type": (
        lambda d: _post(d)["requestBody"].update(content={"text/csv": {}}),
        "body cannot be application/json any more",
    ),
    "a parameter must be greater": (
        lambda d: _post(d)["parameters"][0]["schema"].update(exclusiveMinimum=1),
        "query parameter n has a new or narrower minimum",
    ),
    "a status is gone": (lambda d: _post(d)["responses"].pop("200"), "no response 200 any more"),
    "a response has another media type": (
        lambda d: _post(d)["responses"]["200"].update(content={"text/csv": {}}),
        "response 200 cannot be application/json any more",
    ),
    "a header of the response is gone": (
        lambda d: _post(d)["responses"]["200"].update(headers={}),
        "response 200 has no header etag any more",
    ),
    "a header of the response has another type": (
        lambda d: _post(d)["responses"]["200"]["headers"]["ETag"].update(schema={"type": "integer"}),
        "response 200 header etag can be integer",
    ),
    "a member of the response has no pattern": (
        lambda d: d["s"]["Out"]["properties"]["n"].pop("pattern"),
        "response 200.n can differ from the pattern ^[0-9]+$",
    ),
    "a member of the response is gone": (
        lambda d: d["s"]["Out"]["properties"].pop("list"),
        "response 200.list is gone",
    ),
    "a member of the response becomes optional": (
        lambda d: d["s"]["Out"].update(required=[]),
        "response 200.y is required, and can be absent",
    ),
    "a member of the response has another type": (
        lambda d: d["s"]["Out"]["properties"].update(y={"type": "integer"}),
        "response 200.y can be integer",
    ),
}


@pytest.mark.parametrize("change", BREAKING)
def test_breaking_change_of_http_is_found(change: str) -> None:
    new = deepcopy(OLD)
    alter, expected = BREAKING[change]
    alter(new)
    assert f"POST /a: {expected}" in http_changes(new, OLD)


COMPATIBLE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a new path": lambda d: d["paths"].update({"/b": {"get": {"responses": {}}}}),
    "a new optional parameter": lambda d: _post(d)["parameters"].append({"in": "query", "name": "m"}),
    "a new optional member of the body": lambda d: d["s"]["In"]["properties"].update(z={"type": "string"}),
    "a member of the body becomes optional": lambda d: d["s"]["In"].update(required=[]),
    "a new member of the response": lambda d: d["s"]["Out"]["properties"].update(z={"type": "string"}),
    "a member of the response is never null": lambda d: d["s"]["Out"]["properties"].update(y={"type": "string"}),
    "a parameter may be less": lambda d: _post(d)["parameters"][0].update(schema={"type": "integer", "minimum": 0}),
    "a member of the body may be longer": lambda d: d["s"]["In"]["properties"]["y"].update(maxLength=10),
    "a member of the body has no pattern": lambda d: d["s"]["In"]["properties"]["n"].pop("pattern"),
    "a member of the response has a pattern": lambda d: d["s"]["Out"]["properties"]["y"].update(pattern="^a"),
    "another media type of the response": lambda d: _post(d)["responses"]["200"]["content"].update({"text/csv": {}}),
    "a header in small letters": lambda d: _post(d)["responses"]["200"].update(
        headers={"etag": {"schema": {"type": "string"}}}
    ),
    "a member of the response has a limit": lambda d: d["s"]["Out"]["properties"]["y"].update(maxLength=1),
    "another problem": lambda d: _post(d)["responses"].update({"409": {}}),
}


@pytest.mark.parametrize("change", COMPATIBLE)
def test_compatible_change_of_http_is_allowed(change: str) -> None:
    new = deepcopy(OLD)
    COMPATIBLE[change](new)
    assert [] == [*http_changes(new, OLD)]


def _configuration(document: dict[str, Any], topic: str) -> dict[str, Any]:
    found: dict[str, Any] = document["channels"][topic]["bindings"]["kafka"]["topicConfiguration"]
    return found


def _renamed(schema: dict[str, Any], name: str) -> None:
    """Give a field another name, with an alias. Avro allows it."""
    (field,) = (each for each in schema["fields"] if each["name"] == name)
    field.update(name="New", aliases=[name])


TOPIC_CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a topic is gone": (lambda d: d["channels"].pop("hadoop"), "hadoop: the topic is gone"),
    "another key": (
        lambda d: d["channels"]["hadoop"].update(description="The key of a record is X, in UTF-8."),
        "hadoop: the key was 'The key of a record is StoreID, in UTF-8.' and is 'The key of a record is X, in UTF-8.'",
    ),
    "more partitions": (
        lambda d: d["channels"]["hadoop"]["bindings"]["kafka"].update(partitions=4),
        "hadoop: the topic had 3 partitions and has 4",
    ),
    "smaller records": (
        lambda d: _configuration(d, "hadoop").update({"max.message.bytes": 1}),
        "hadoop: max.message.bytes was 16777216 and is 1",
    ),
    "a shorter retention": (
        lambda d: _configuration(d, "hadoop").update({"retention.ms": 1}),
        "hadoop: retention.ms was 604800000 and is 1",
    ),
    "a retention": (
        lambda d: _configuration(d, "stores").update({"retention.ms": 1}),
        "stores: retention.ms was None and is 1",
    ),
    "another cleanup policy": (
        lambda d: _configuration(d, "stores").update({"cleanup.policy": ["delete"]}),
        "stores: cleanup.policy was ['compact'] and is ['delete']",
    ),
    "a header is gone": (
        lambda d: d["components"]["messages"]["Balance"]["headers"]["properties"].pop("ce_id"),
        "Balance: headers.ce_id is gone",
    ),
    "another content type": (
        lambda d: d["components"]["messages"]["Balance"].update(contentType="application/json"),
        "Balance: the content type was application/avro and is application/json",
    ),
    "a field of JSON invoices becomes required": (
        lambda d: d["components"]["messages"]["PosInvoiceJson"]["payload"].update(required=["PosID"]),
        "PosInvoiceJson: value.PosID is required, and can be absent",
    ),
    "a message is gone": (
        lambda d: d["channels"]["pos-invoices"]["messages"].pop("PosInvoiceJson"),
        "pos-invoices: the message PosInvoiceJson is gone",
    ),
    "a field without a default": (
        lambda d: d["components"]["messages"]["Store"]["payload"]["schema"]["fields"].append(
            {"name": "New", "type": "string"}
        ),
        "Store: in a released record, New is missing, and the reader has no default",
    ),
    "another name for a member of webhooks": (
        lambda d: _renamed(d["components"]["messages"]["Notification"]["payload"]["schema"], "Tier"),
        "Notification: the name Tier is gone",
    ),
    "another name for a column of files": (
        lambda d: _renamed(d["components"]["messages"]["HadoopRecord"]["payload"]["schema"], "TotalValue"),
        "HadoopRecord: the name TotalValue is gone",
    ),
}


@pytest.mark.parametrize("change", TOPIC_CHANGES)
def test_breaking_change_of_a_topic_is_found(change: str, current: dict[str, dict[str, Any]]) -> None:
    new = deepcopy(current["asyncapi.json"])
    alter, expected = TOPIC_CHANGES[change]
    alter(new)
    assert expected in topic_changes(new, current["asyncapi.json"])


def test_compatible_change_of_a_topic_is_allowed(current: dict[str, dict[str, Any]]) -> None:
    """A topic may keep more, and a record may have more headers."""
    new = deepcopy(current["asyncapi.json"])
    _configuration(new, "hadoop").update({"retention.ms": 2**40, "max.message.bytes": 2**30})
    new["components"]["messages"]["Store"]["headers"] = {"type": "object", "properties": {"x": {"type": "string"}}}
    assert [] == [*topic_changes(new, current["asyncapi.json"])]


def test_json_invoices_have_the_ranges_of_avro(current: dict[str, dict[str, Any]]) -> None:
    """A generator of tills must not make an invoice that the pipeline refuses."""
    fields = current["asyncapi.json"]["components"]["messages"]["PosInvoiceJson"]["payload"]["properties"]
    number, time = (
        next(each for each in fields[name]["anyOf"] if each["type"] == "integer")
        for name in ("NumberOfItems", "CreatedTime")
    )
    assert (-(2**31), 2**31 - 1) == (number["minimum"], number["maximum"])
    assert (-(2**63), 2**63 - 1) == (time["minimum"], time["maximum"])
