"""Encoding and decoding change no fact."""

import orjson
import pytest
from hypothesis import given

from schemas.topics import LOYALTY, LOYALTY_BALANCES
from services.audit.facts import FactsReader, Source
from services.codecs.events import command_record
from services.codecs.records import balance_record, entry_from_notification, notification_record
from services.codecs.state import encode_account
from services.domain.events import Replace, Transfer
from services.messaging.avro import encoder, record_encoder
from services.state_stores.catalogue import balance_body
from tests.support.account_histories import CARD, HISTORIES, START
from tests.support.builders import IDS, entry

OWN = "the customer's pseudonym"


@given(HISTORIES)
def test_entries_are_read_as_they_were_written(history):
    """A Notification has all fields of an entry."""
    assert history.entries == [entry_from_notification(notification_record(CARD, entry)) for entry in history.entries]


@given(HISTORIES)
def test_the_state_is_read_as_spark_keeps_it(history):
    """The reader decodes the account of the loyalty query, and the balance of the changelog and of the API."""
    if history.account is None:
        return
    last = history.entries[-1]
    balance = balance_record(CARD, last)
    reader = FactsReader(IDS)
    state = (Source.STATE, 0, encode_account(history.account))

    from_changelog = reader.read([state, (Source.BALANCE, 0, encoder(LOYALTY_BALANCES, IDS)(balance))], CARD, OWN)
    from_api = reader.read([(Source.BALANCE, 0, balance_body(balance))], CARD, OWN)

    assert history.account == from_changelog.state
    assert orjson.loads(balance_body(balance)) == from_changelog.balance == from_api.balance


@pytest.mark.parametrize(("receiver", "expected"), [(OWN, CARD), ("other", "other")])
def test_a_transfer_or_a_move_to_oneself_is_one_in_the_archive_too(receiver, expected):
    """The archive has the customer's pseudonym in place of both cards. The pseudonym of another receiver stays."""
    transfer = Transfer(append_time=START, command_id="C1", points=1, counterparty=receiver)
    replacement = Replace(append_time=START, command_id="C2", counterparty=receiver)
    encode = record_encoder("LoyaltyCommand", IDS.id_of("LoyaltyCommand"))
    rows = [(Source.EVENT, START, encode(command_record(OWN, each))) for each in (transfer, replacement)]

    facts = FactsReader(IDS).read(rows, CARD, OWN)

    assert [expected] * 2 == [each.counterparty for each in facts.events]


def test_the_ledger_adds_entries_that_the_topic_has_deleted():
    """If both have an entry, the copy of the topic counts."""
    encode = encoder(LOYALTY, IDS)
    first, second = entry(1), entry(2)
    rows = [(Source.LEDGER, 0, encode(notification_record(CARD, each))) for each in (first, entry(2, reason="hidden"))]

    facts = FactsReader(IDS).read([*rows, (Source.LOYALTY, 0, encode(notification_record(CARD, second)))], CARD, OWN)

    assert [second, first] == facts.record
