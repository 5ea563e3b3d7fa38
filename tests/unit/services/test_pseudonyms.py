"""Pseudonyms and their key: services.pseudonyms."""

import hashlib
import hmac
import stat
from base64 import b32decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.domain.validation import is_pseudonym
from services.errors import SettingsError
from services.pseudonyms import Pseudonyms, pseudonyms

KEY = bytes(range(32))


def test_a_pseudonym_is_the_keyed_hash_of_the_card() -> None:
    """After the version it is HMAC-SHA256 of the card in UTF-8 with the key, in lower-case base 32."""
    assert is_pseudonym(Pseudonyms(KEY).of("9265846829ü"))
    version, _, text = Pseudonyms(KEY).of("9265846829ü").partition("-")
    assert ("p1", hmac.new(KEY, "9265846829ü".encode(), hashlib.sha256).digest()) == (
        version,
        b32decode(f"{text.upper()}===="),
    )


def test_pseudonyms_depend_on_card_and_key_alone() -> None:
    """All processes with one key give a card the same pseudonym. Other cards and keys give other pseudonyms."""
    assert Pseudonyms(KEY).of("1") == Pseudonyms(KEY).of("1")
    assert 4 == len({Pseudonyms(key).of(card) for key in (KEY, KEY[::-1]) for card in ("1", "2")})
    assert 2 == len({Pseudonyms(key).key_id for key in (KEY, KEY[::-1])})


def test_a_missing_key_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """Only the owner can read the 32 bytes and the folder. The next process uses this key. No other file is left."""
    file = tmp_path / "keys" / "pseudonym.key"
    first = pseudonyms(file)
    assert (32, 0o600) == (file.stat().st_size, stat.S_IMODE(file.stat().st_mode))
    assert first.key_id == pseudonyms(file).key_id
    assert [file] == list(file.parent.iterdir())
    assert first.key_id != pseudonyms(tmp_path / "other").key_id


def test_processes_that_start_together_create_one_key(tmp_path: Path) -> None:
    """On a new machine each of them finds no key."""
    for number in range(20):
        file = tmp_path / str(number) / "key"
        with ThreadPoolExecutor(8) as pool:
            assert 1 == len(set(pool.map(lambda file: pseudonyms(file).key_id, [file] * 8)))


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_key_of_another_length_is_refused(tmp_path: Path, content: bytes) -> None:
    """The error has the name of the file and the reason."""
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=f"key is not a key: it has {len(content)} bytes"):
        pseudonyms(file)


def test_a_file_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    """The error has the name of the file, the reason and the setting."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"file/key: Not a directory\. Set LOYALTY_PSEUDONYM_KEY_FILE"):
        pseudonyms(tmp_path / "file" / "key")
