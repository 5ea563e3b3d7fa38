"""A customer's account as bytes: what the loyalty query keeps in Spark's state store.

It is an Avro ``LoyaltyAccount`` in the same framing as every value on the wire, so an account written by an older
version of this project is read like an old record: by its schema id.
"""

from services.domain.account import Account
from services.messaging.schema_ids import FolderSchemaIds
from services.messaging.wire import record_decoder, record_encoder

_RECORD = "LoyaltyAccount"
_encode = record_encoder(_RECORD, FolderSchemaIds().id_of(_RECORD))
_decode = record_decoder(_RECORD, FolderSchemaIds().writer_schema)


def dump(account: Account) -> bytes:
    return _encode(
        {
            "TotalLoyaltyPoints": account.total,
            "Sequence": account.sequence,
            "UpdatedTime": account.updated_time,
        }
    )


def load(state: bytes) -> Account:
    """Raises UndecodableError or UnknownSchemaIdError where the bytes are no account this version can read."""
    record = _decode(state)
    return Account(record["TotalLoyaltyPoints"], record["Sequence"], record["UpdatedTime"])
