"""The facts of an account, and what the audit finds in them."""

import orjson

from services.audit.comparison import Coverage, compare
from services.audit.facts import Facts, Source
from services.codecs.records import balance_record
from services.domain.entries import Kind
from services.domain.programme import DAY, Programmes
from services.state_stores.catalogue import balance_body
from tests.support.account_histories import CARD, START

EVERYTHING = Coverage(frozenset(Source), 0, 0, 0, START + 200 * DAY)
PROGRAMMES = Programmes()


def balance(entry):
    return orjson.loads(balance_body(balance_record(CARD, entry)))


def facts_of(history):
    """The facts of an account without differences."""
    last = history.entries[-1] if history.entries else None
    return Facts(
        events=list(history.events),
        recorded={Source.LOYALTY: list(history.entries), Source.LEDGER: list(history.entries)},
        balance=balance(last) if last and last.kind is not Kind.ERASED else None,
        state=history.account,
    )


def found(facts, programmes=PROGRAMMES, coverage=EVERYTHING):
    return compare(CARD, facts, programmes, coverage, pseudonymize)[0].differences


def judged(facts, programmes, coverage):
    result, _ = compare(CARD, facts, programmes, coverage, pseudonymize)
    return result.recomputed, result.lacks_entries, result.differences


def pseudonymize(card):
    return card if card.startswith("p-") else f"p-{card}"
