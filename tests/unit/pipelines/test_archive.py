"""What the archive keeps of an event."""

from pipelines.queries.archive import _without_cards
from services.codecs.events import ARCHIVED, command_record
from services.domain.events import Transfer
from services.messaging.avro import record_decoder, record_encoder
from tests.support.builders import CARD, IDS
from tests.support.ledger import PSEUDONYMS


def test_an_archived_command_has_pseudonyms_and_no_free_texts() -> None:
    """An erasure does not change the files of the archive."""
    gift = Transfer(append_time=0, command_id="C", points=50, counterparty="4712", reason="for Mrs Smith", actor=CARD)
    encode = record_encoder("LoyaltyCommand", IDS.id_of("LoyaltyCommand"))
    decode = record_decoder("LoyaltyCommand", IDS.writer_schema)

    archived = decode(_without_cards(PSEUDONYMS)(encode(command_record(CARD, gift))))

    assert (PSEUDONYMS.of(CARD), PSEUDONYMS.of("4712")) == (archived["CustomerCardNo"], archived["Counterparty"])
    assert ("", ARCHIVED) == (archived["Reason"], archived["Actor"])
    assert archived["Points"] == command_record(CARD, gift)["Points"]
