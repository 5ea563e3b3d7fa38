"""Verdicts on the values of topics: the record that a value contains, or the reason why it becomes a dead letter.

The pipeline and ``loyalty conformance`` call the same functions.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import schemas
from schemas.topics import LOYALTY_COMMANDS, POS_INVOICES, Topic
from services.domain import command_rules, json_rules, validation
from services.messaging import avro
from services.messaging.headers import LARGEST_VALUE, TOO_LARGE

FAULT = "a fault of the pipeline: report it, and replay the record after it is fixed"
"""The reason of a value for which the rules raise an error."""

LARGEST_TEXT_BYTES = 2 * 2**20
"""The largest number of bytes of a text. Spark refuses to read a longer text (pipelines.runtime.session)."""

KnownSchemas = Mapping[int, str]
"""The schemas that can have written a value, as JSON by their ids."""

_SCHEMA = schemas.current("PosInvoice")


class Verdict(NamedTuple):
    """The decision of the pipeline about one value.

    Attributes:
        reason: why it becomes a dead letter; None if it is valid.
        record: the value in the newest schema, without other changes; None if it is not readable.
        schema_id: the id of the schema that wrote it; None for JSON and for bytes without a known schema.
        body: the Avro body of the valid record in the newest schema; None if the judge gives no bodies.
    """

    reason: str | None
    record: Any = None
    schema_id: int | None = None
    body: bytes | None = None

    @property
    def invoice_number(self) -> str | None:
        """The invoice number in a valid record, if its schema has one."""
        return self.record.get("InvoiceNumber") if self.reason is None else None


class Judge(Protocol):
    """Decides about the value and the key of a record."""

    def __call__(self, value: bytes | None, key: bytes | None, read: Any = None, /) -> Verdict:
        """
        Args:
            read: the decoded value, if the newest schema wrote it and the caller has decoded a whole batch already.
        """


def judge_of(topic: Topic, known: KnownSchemas) -> Judge:
    """A judge of the values of a topic, with all rules of the topic."""
    judges = {POS_INVOICES: judge_of_invoices, LOYALTY_COMMANDS: _judge_of_commands}
    judge = judges[topic](known) if topic in judges else _judge_of_avro(topic.value, known)
    return _complete(judge, topic.value)


def judge_with_body(topic: Topic, known: KnownSchemas) -> Judge:
    """Like ``judge_of``, with the body of each valid record for readers in Java. It costs twice as much."""
    prepare = validation.in_milliseconds if topic == POS_INVOICES else None
    return _with_body(judge_of(topic, known), topic.value, prepare)


def judge_of_plain(name: str, known: KnownSchemas) -> Judge:
    """A judge of Avro records of this name, without further rules. Its verdicts have bodies."""
    return _with_body(_complete(_judge_of_avro(name, known), name), name)


def judge_of_invoices(known: KnownSchemas) -> Judge:
    """A judge of values of pos-invoices. Its records are of the type PosInvoice, as the till sent them."""
    judge_avro = _judge_of_avro("PosInvoice", known)

    def judge(value: bytes | None, key: bytes | None = None, read: Any = None) -> Verdict:
        if value is not None and len(value) > validation.LARGEST_INVOICE:
            return Verdict(validation.INVOICE_TOO_LARGE)
        if value is not None and json_rules.BEGINS_AS_OBJECT.match(value):
            try:
                verdict = Verdict(None, json_rules.read_object(value, _SCHEMA))
            except json_rules.NotReadableError as error:
                verdict = Verdict(str(error))
        else:
            verdict = judge_avro(value, key, read)
        if verdict.record is not None:
            return verdict._replace(reason=validation.first_violation(verdict.record))
        if value is None or verdict.schema_id is not None:
            return verdict
        # A text in UTF-16 or UTF-32 can begin like a JSON object in UTF-8, or like Avro of an unknown schema.
        if encoding := json_rules.other_encoding(value):
            return Verdict(encoding)
        return Verdict(_other_bytes(value)) if verdict.reason == avro.NOT_FRAMED else verdict

    return judge


def _other_bytes(value: bytes) -> str:
    """Returns the reason of a value that is neither a JSON object nor framed Avro."""
    if not value:
        return json_rules.EMPTY
    if value.startswith(json_rules.BYTE_ORDER_MARK):
        return json_rules.HAS_BYTE_ORDER_MARK
    kind = json_rules.kind_of_other(value)
    return f"{kind} in JSON, and must be one JSON object" if kind else json_rules.NO_INVOICE


def _judge_of_commands(known: KnownSchemas) -> Judge:
    """A judge of values of loyalty-commands. The key of a command must be its card."""
    judge_avro = _judge_of_avro("LoyaltyCommand", known)

    def judge(value: bytes | None, key: bytes | None = None, read: Any = None) -> Verdict:
        verdict = judge_avro(value, key, read)
        if verdict.record is None:
            return verdict
        return verdict._replace(reason=command_rules.first_violation(verdict.record, key))

    return judge


def _judge_of_avro(name: str, known: KnownSchemas) -> Judge:
    """A judge of values that are Avro records of this name."""
    decode = avro.record_decoder(name, known.__getitem__)

    def judge(value: bytes | None, _key: bytes | None = None, read: Any = None) -> Verdict:
        if value is None:
            return Verdict(json_rules.NO_VALUE)
        if (schema_id := avro.schema_id_of(value)) is None:
            return Verdict(avro.NOT_FRAMED)
        if schema_id not in known:
            return Verdict(f"unknown schema id {schema_id}")
        try:
            return Verdict(None, decode(value) if read is None else read, schema_id)
        except avro.UndecodableError as error:
            return Verdict(error.reason, schema_id=schema_id)

    return judge


def _complete(judge: Judge, name: str) -> Judge:
    """A judge that also refuses values that Spark cannot read, and values for which the rules raise an error."""

    def complete(value: bytes | None, key: bytes | None, read: Any = None) -> Verdict:
        if value is not None and len(value) > LARGEST_VALUE:
            return Verdict(TOO_LARGE)
        try:
            verdict = judge(value, key, read)
            is_long = value is not None and len(value) > LARGEST_TEXT_BYTES
            if is_long and verdict.reason is None and _has_longer_text(verdict.record):
                return verdict._replace(reason=avro.not_of_its_schema(name))
        except MemoryError:
            # The record is not the cause. The query fails, and after the restart a new worker decides.
            raise
        except Exception as error:  # noqa: BLE001 - an error in the rules must not stop all other records
            return Verdict(f"{FAULT} ({type(error).__name__})")
        return verdict

    return complete


def _has_longer_text(value: Any) -> bool:
    """Whether a record contains text or bytes longer than LARGEST_TEXT_BYTES."""
    if isinstance(value, dict | list):
        return any(map(_has_longer_text, value.values() if isinstance(value, dict) else value))
    in_bytes = value.encode() if isinstance(value, str) else value
    return isinstance(in_bytes, bytes) and len(in_bytes) > LARGEST_TEXT_BYTES


def _with_body(judge: Judge, name: str, prepare: Callable[[Any], Any] | None = None) -> Judge:
    """A judge that adds the body of each valid record.

    It encodes the record again, because fastavro also reads values that Java refuses, for example a number in more
    bytes than it needs. It keeps the body of a value that the caller has decoded, because the caller has already
    checked its bytes.

    A record without its first field is not valid, because Spark returns a struct of nulls for a body that it cannot
    read.
    """
    encode = avro.body_encoder(name)
    first, *_ = schemas.field_names(name)

    def with_body(value: bytes | None, key: bytes | None, read: Any = None) -> Verdict:
        verdict = judge(value, key, read)
        if verdict.reason is not None:
            return verdict
        if verdict.record[first] is None:
            return verdict._replace(reason=f"{first} is missing")
        record = prepare(verdict.record) if prepare else verdict.record
        if value is not None and record is read:
            return verdict._replace(body=value[avro.HEADER_BYTES :])
        try:
            return verdict._replace(body=encode(record))
        except avro.AVRO_ERRORS:
            return verdict._replace(reason=avro.not_of_its_schema(name))

    return with_body
