"""The audit reads balances over HTTP and entries over SQL."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlparse

import pytest

from api.http.pagination import cursor_after, key_range
from schemas.topics import LOYALTY
from services.audit import sources
from services.audit.sources import UnreadableError, ledger_entries, served_balances
from services.codecs.records import entry_from_notification
from services.domain.entries import Kind
from services.messaging.avro import decoder
from services.pseudonyms import Pseudonyms
from services.settings import Settings
from services.state_stores.catalogue import BALANCES
from tests.support.builders import IDS, entry
from tests.support.http_server import QuietHandler, serving
from tests.support.ledger import PSEUDONYMS, Ledger


@contextmanager
def answering(pages, credentials=None, cursors=None) -> Iterator[str]:
    """A server that sends these answers (status, body) in turn and repeats the last one.

    It notes the credentials and the cursors of the requests.
    """
    left = list(pages)

    class Handler(QuietHandler):
        def do_GET(self):
            status, body = left.pop(0) if len(left) > 1 else left[0]
            if cursors is not None:
                cursors.append(parse_qs(urlparse(self.path).query).get("cursor"))
            if credentials is not None:
                credentials.append(self.headers["Authorization"])
            answer = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with serving(Handler) as url:
        yield url


def page(*cards, following=None, partial=False):
    entries = [{"key": card, "value": {"CustomerCardNo": card}} for card in cards]
    return 200, {"entries": entries, "next": following, "partial": partial, "missingPartitions": [2] if partial else []}


def test_all_pages_are_read():
    """The reader follows the pages to the last one. It repeats the request of a partial page, or after 503 or 429."""
    pages, cursors = [page("A", following="x"), page("nobody", partial=True), (503, {}), (429, {}), page("B")], []
    with answering(pages, cursors=cursors) as url:
        found = list(served_balances(url + "/"))

    assert [("A", {"CustomerCardNo": "A"}), ("B", {"CustomerCardNo": "B"})] == [
        (fact.card, json.loads(fact.value)) for fact in found
    ]
    assert [None, *[["x"]] * 4] == cursors


def test_the_api_key_is_sent_and_never_shown(tmp_path):
    """Each request has the key of the file, without its line break. The error of a wrong key does not show it."""
    file = tmp_path / "key"
    file.write_text("lk_secret\n")
    credentials = []
    with answering([page("A", following="x"), page("B"), (401, {})], credentials) as url:
        assert ["A", "B"] == [fact.card for fact in served_balances(url, file)]
        with pytest.raises(UnreadableError, match="401") as refused:
            list(served_balances(url, file))

    assert ["Bearer lk_secret"] * 3 == credentials
    assert "lk_secret" not in str(refused.value)


def test_a_file_that_has_no_key_is_not_sent(tmp_path):
    """The path can name a folder or a file in UTF-16. The API says that it needs a key, and the audit can say so."""
    file, credentials = tmp_path / "key", []
    file.write_text("lk_secret", encoding="utf-16")
    with answering([page("A")], credentials) as url:
        assert [["A"]] * 2 == [[fact.card for fact in served_balances(url, each)] for each in (file, tmp_path)]

    assert [None] * 2 == credentials


@pytest.mark.parametrize("answer", [(403, {}), page(partial=True)])
def test_no_error_shows_a_card(monkeypatch, answer):
    """The cursor of a page contains the last card of the page before it."""
    monkeypatch.setattr(sources, "_PAGE_SECONDS", 1.0)
    cursor = cursor_after(b"9265846829", BALANCES, key_range(None, None, ""))
    with answering([page("9265846829", following=cursor), answer]) as url, pytest.raises(UnreadableError) as refused:
        list(served_balances(url))

    assert "/all: " in str(refused.value)
    assert cursor not in str(refused.value)


@pytest.mark.parametrize(("answer", "reason"), [((404, {}), "404"), (page(partial=True), r"partitions \[2\]")])
def test_the_error_names_an_api_that_cannot_be_read(monkeypatch, answer, reason):
    """If the API does not know the store, or stays partial, the error names its URL."""
    monkeypatch.setattr(sources, "_PAGE_SECONDS", 1.0)
    with answering([answer]) as url, pytest.raises(UnreadableError, match=f"served balance: {url}.*{reason}"):
        list(served_balances(url))


def test_the_error_names_a_missing_api(monkeypatch):
    """The error has the address, at which no server listens."""
    monkeypatch.setattr(sources, "_PAGE_SECONDS", 1.0)
    with pytest.raises(UnreadableError, match=r"served balance: http://127\.0\.0\.1:9/"):
        list(served_balances("http://127.0.0.1:9"))


def test_entries_of_the_ledger_are_those_that_were_appended(database_url):
    """The reader returns every column. An erased customer has a pseudonym only."""
    kept, erased = entry(1, counterparty="4712", reason="why", actor="alice"), entry(1, kind=Kind.ERASED)
    ledger = Ledger(database_url)
    ledger.append(("A", kept), ("B", erased))
    ledger.close()

    found = list(ledger_entries(Settings(ledger_url=database_url), IDS, PSEUDONYMS.key_id))

    decode = decoder(LOYALTY, IDS)
    assert {("A", PSEUDONYMS.of("A"), kept), (None, PSEUDONYMS.of("B"), erased)} == {
        (fact.card, fact.pseudonym, entry_from_notification(decode(fact.value))) for fact in found
    }


def test_a_ledger_with_another_pseudonym_key_is_not_read(database_url):
    """The file of the key was not restored, so a process has made a new key. Each customer would be two customers."""
    Ledger(database_url).close()
    other = Pseudonyms(b"n" * 32)

    with pytest.raises(UnreadableError, match=f"another pseudonym key.*{other.key_id}.*LOYALTY_PSEUDONYM_KEY_FILE"):
        list(ledger_entries(Settings(ledger_url=database_url), IDS, other.key_id))


def test_the_ledger_of_another_deployment_is_not_read(database_url):
    """A rebuild would take the entries of other accounts."""
    Ledger(database_url).close()
    settings = Settings(ledger_url=database_url, topic_prefix="staging-")

    with pytest.raises(UnreadableError, match="another topic: loyalty, and the settings say staging-loyalty"):
        list(ledger_entries(settings, IDS, PSEUDONYMS.key_id))


def test_the_error_names_a_missing_ledger(tmp_path):
    """The reader does not create a missing file."""
    settings = Settings(ledger_url=f"sqlite:///{tmp_path / 'none.sqlite'}")
    with pytest.raises(UnreadableError, match=r"ledger: .*unable to open"):
        list(ledger_entries(settings, IDS, PSEUDONYMS.key_id))
    assert not list(tmp_path.iterdir())
