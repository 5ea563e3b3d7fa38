"""Opening balances in files: the meaning of a row, and its errors."""

import json
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.topics import LOYALTY_COMMANDS
from services.cli import app, opening_balances
from services.cli.opening_balances import import_commands
from services.codecs.events import command_record, decode_event
from services.domain.account.lots import Terms
from services.domain.account.model import LARGEST_TOTAL, Account
from services.domain.account.processor import process
from services.domain.command_rules import first_violation
from services.domain.entries import Kind
from services.domain.events import Erase, Purchase, Replace, SentLot
from services.domain.programme import DAY, Programme, Programmes
from services.domain.validation import MOST_LINE_ITEMS
from services.messaging.avro import encoder
from services.opening_balances.file import read_files
from services.pseudonyms import KEY_BYTES, Pseudonyms
from tests.support.builders import IDS
from tests.support.examples import examples

NOW = 1_790_000_000_000
END_OF_2027 = 1_830_294_000_000
"""2028-01-01 00:00 in Berlin."""
END_OF_2099 = 4_102_441_200_000
"""2100-01-01 00:00 in Berlin."""
encode = encoder(LOYALTY_COMMANDS, IDS)
NAMES = Pseudonyms(bytes(KEY_BYTES))


def read(tmp_path: Path, text: str, name: str = "balances.csv"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return read_files([file], "Europe/Berlin", NOW)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "b.csv",
            "card,points,expires\n4711,12.50,2027-12-31\n4711,1,\n4711,2.50,2027-12-31\n4712,3,2027-12-31T23:00:00Z\n",
        ),
        (
            "b.CSV",
            "\ufeffexpires, points,card\r\n2027-12-31,15,4711\r\n,1.0,4711\r\n2028-01-01T00:00:00+01:00,3.00,4712\r\n",
        ),
        (
            "b.jsonl",
            """{"card":"4711","points":15.00,"expires":"2027-12-31"}\n\n{"card":"4711","points":"1"}
{"card":"4712","points":3,"expires":"2027-12-31T23:00:00Z"}""",
        ),
    ],
)
def test_rows_of_a_card_add_up(tmp_path, name, text):
    """CSV in any order of columns, and JSON Lines. A date is the end of that day. Without one, points never expire."""
    found = read(tmp_path, text, name)

    assert [] == found.errors
    assert {"4711": {END_OF_2027: 15_00, 0: 1_00}, "4712": {END_OF_2027: 3_00}} == dict(found.cards)
    assert (SentLot(1_00, 0), SentLot(15_00, END_OF_2027)) == found.lots_of("4711")
    assert 19_00 == found.points


def test_the_limits_of_a_card(tmp_path):
    """Points that expire now have expired. The points of all rows, and their times of expiry, have a limit."""
    most = read(tmp_path, "card,points,expires\n4711,9999999999.99,2026-09-21T14:13:20.001Z\n4711,.01,\n")
    (error,) = most.errors
    assert "line 3: the card gets more than 9999999999.99 points" in error
    assert {"4711": {NOW + 1: 999_999_999_999}} == dict(most.cards)
    assert ["4711"] == [*read(tmp_path, "card,points\n4711,9999999999.98\n4711,.01\n").cards]
    assert "have expired already" in read(tmp_path, "card,points,expires\n4711,1,2026-09-21T14:13:20Z\n").errors[0]

    times = (datetime.fromtimestamp(END_OF_2027 // 1000 + number, UTC) for number in range(MOST_LINE_ITEMS + 1))
    rows = "".join(f"4711,1,{time.isoformat()}\n" for time in times)
    (error,) = read(tmp_path, f"card,points,expires\n{rows}").errors
    assert f"line {MOST_LINE_ITEMS + 2}: the card has more than {MOST_LINE_ITEMS} times of expiry" in error


def test_a_file_that_is_named_twice_counts_once(tmp_path):
    """This includes another name of the same file. A different file with the same rows counts, too."""
    file, link, copy = (tmp_path / name for name in ("b.csv", "link.csv", "copy.csv"))
    for each in (file, copy):
        each.write_text("card,points\n4711,12.50\n")
    link.symlink_to(file)

    found = read_files([file, copy, file, link], "UTC", NOW)

    assert ([], 2, 25_00) == (found.errors, found.rows, found.points)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (",1,", "card is missing"),
        (" 4711,1,", "card has blanks around it"),
        (f"p1-{'a2' * 26},1,", "is a pseudonym: write the card of the customer"),
        ("x" * 129 + ",1,", "card is longer than 128 characters"),
        *(
            (f"4711,{points},", "not a number above 0 with at most two decimals")
            for points in ("", "x", "0", "-1", "1.234", "nan", "1e11", "1_000", "\uff11")
        ),
        pytest.param("4711,1," + "9" * 140_000, "is not CSV: field larger than field limit", id="a huge field"),
        ("4711,1,31.12.2027", "is not a date such as 2027-12-31"),
        ("4711,1,2027-12-31T00:00:00", "is not a date such as 2027-12-31"),
        ("4711,1,2026-01-01", "the points have expired already. Remove the row"),
        ("4711,1,0001-01-01", "the points have expired already"),
        ("4711,1,9999-12-31", "cannot expire after the year 9999. Leave it empty if they never expire"),
        ("4711,1,9999-12-31T23:59:59-12:00", "cannot expire after the year 9999. Leave it empty if they never expire"),
        ("4711,1,,more", "has more fields than the header"),
        ("4711,1", "has fewer fields than the header: is the file complete?"),
    ],
)
def test_a_wrong_row_is_named_and_the_others_are_read(tmp_path, row, says):
    """The error has the file, the number of the line and what is wrong."""
    found = read(tmp_path, f"card,points,expires\n4711,1,\n{row}\n4712,2,\n")

    (error,) = found.errors
    assert error.startswith(f"{tmp_path}/balances.csv, line 3: ")
    assert says in error
    assert (3, {"4711", "4712"}) == (found.rows, set(found.cards))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("b.csv", "card,points\n7301558824,9999999999\n7301558824,1\n", "gets more than 9999999999.99 points"),
        ("b.csv", "card,points\n 7301558824,1\n", "has blanks around it"),
        ("b.csv", "card,points\n4711,730155882499\n", "points are not a number"),
        ("b.csv", "card,points,expires\n4711,1,7301558824\n", "expires is not a date"),
        ("b.csv", "7301558824,7301558824,points\n", "names a column more than once"),
        ("b.csv", "card,points,7301558824\n4711,1,\n", "has 1 unknown columns"),
        ("b.jsonl", '{"7301558824":1}\n', "has 1 unknown columns"),
        ("b.jsonl", '{"card":7301558824,"points":"1"}\n', "card is missing"),
        ("b.jsonl", "7301558824\n", "is not a JSON object"),
    ],
)
def test_no_error_has_a_card(tmp_path, name, text, says):
    """The number of the line shows the row. A text in a wrong place can be a card, too."""
    (error,) = read(tmp_path, text, name).errors

    assert says in error
    assert "73015588" not in error


@pytest.mark.parametrize("cut", range(1, len('4712,417.04,"2027-12-31"') + 1))
def test_a_csv_that_was_cut_off_in_its_last_row_is_refused(tmp_path, cut):
    """The last row can look complete, with fewer points or with points that never expire."""
    row = '4712,417.04,"2027-12-31"'[:cut]
    found = read(tmp_path, f"card,points,expires\n4711,1,\n{row}")

    assert [f"{tmp_path}/balances.csv, line 3: does not end with a line break: is the file complete?"] == found.errors
    assert (2, ["4711"]) == (found.rows, list(found.cards))


def test_wrong_quotes_are_errors_of_their_lines(tmp_path):
    """A quote without its end takes the rest of the file."""
    found = read(tmp_path, 'card,points,expires\n"4711"7,1,\n"4711"8,1,\n4712,2,\n"4713,1,\n4714,1,\n')

    places = [error.removeprefix(f"{tmp_path}/balances.csv, ").partition(" is not CSV: ")[0] for error in found.errors]
    assert ["line 2:", "line 3:", "line 5:"] == places
    assert ["4712"] == list(found.cards)


@pytest.mark.parametrize("expires", ["9999-12-30", "9999-12-31T23:59:59.999Z"])
def test_the_last_times_of_expiry_are_valid_commands(tmp_path, expires):
    """The pipeline accepts every command that the import sends."""
    found = read(tmp_path, f"card,points,expires\n4711,1,{expires}\n")
    ((card, command),) = import_commands(found, "opening", "why", "me", NAMES)

    assert first_violation(command_record(card, command), card.encode()) is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("b.csv", "", "line 1: is not CSV: the header does not name card, points: write card,points,expires"),
        (
            "b.csv",
            "card;points\n",
            "line 1: is not CSV: the header does not name card, points: write card,points,expires",
        ),
        ("b.csv", "A,10,2027-12-31\n", "line 1: is not CSV: the header does not name card, points"),
        ("b.csv", "card,points", "line 1: does not end with a line break: is the file complete?"),
        ("b.csv", "card,points\n", "has no rows"),
        ("b.jsonl", "\n", "has no rows"),
        ("b.jsonl", '{"card":"A","points":5,"points":7}\n', "has a name more than once"),
    ],
)
def test_a_file_without_rows_or_with_an_ambiguous_row_is_refused(tmp_path, name, text, says):
    (error,) = read(tmp_path, text, name).errors
    assert says in error


@pytest.mark.parametrize(
    "line", ["{", "[]", "7", '{"card":7,"points":"1"}', '{"card":"A","points":true}', '{"card":"A","points":[1]}']
)
def test_a_wrong_line_of_json_is_named(tmp_path, line):
    (error,) = read(tmp_path, f"{line}\n", "b.jsonl").errors
    assert "line 1: " in error


def commands_of(found, name="opening"):
    return [
        (card, decode_event(7, encode(command_record(card, each))))
        for card, each in import_commands(found, name, "why", "me", NAMES)
    ]


def test_many_rows_count_once(tmp_path):
    """The file is imported twice, the second time a year later. An import of another name counts again."""
    count, cards = examples(20_000), examples(4_000)
    rows = "".join(f"card-{number % cards},{number % 97 + 1}.25,2027-12-31\n" for number in range(count))
    found = read(tmp_path, f"card,points,expires\n{rows}")
    states, entries = {}, 0
    for time, name in ((0, "opening"), (365 * DAY, "opening"), (366 * DAY, "second")):
        for card, command in import_commands(found, name, "why", "me", NAMES):
            event = command.__class__(append_time=time + 7, command_id=command.command_id, lots=command.lots)
            outcome = process(states.get(card), [event], Programmes(), card)
            states[card] = outcome.state
            entries += len(outcome.entries)
        if name == "opening":
            assert (cards, found.points) == (entries, sum(account.total for account in states.values()))
    assert 2 * found.points == sum(account.total for account in states.values())


def test_an_import_is_an_entry_for_each_expiry_with_reason_and_actor(tmp_path):
    found = read(tmp_path, "card,points,expires\n4711,12.50,2027-12-31\n4711,1,\n")
    ((_, event),) = commands_of(found)
    outcome = process(None, [event], Programmes(), "4711")

    assert [
        (Kind.IMPORTED, 12_50, 12_50, END_OF_2027, "why", "me"),
        (Kind.IMPORTED, 1_00, 13_50, 0, "why", "me"),
    ] == [
        (entry.kind, entry.points, entry.total, entry.expires_time, entry.reason, entry.actor)
        for entry in outcome.entries
    ]
    assert {Terms(END_OF_2027, 0, 0): 12_50, Terms(): 1_00} == outcome.account.lots
    full = process(Account(1, lots={Terms(): LARGEST_TOTAL}), [event], Programmes(), "4711")
    assert (Kind.REFUSED, "too-many-points", ()) == (
        *(full.entries[-1].kind, full.entries[-1].reason, full.account.imports),
    )


def test_the_import_of_a_replaced_card_follows_and_still_counts_once(tmp_path):
    """The import runs before or after the replacement, and again a year later. The new card has the points once."""
    ((_, event),) = commands_of(read(tmp_path, "card,points\nold,12.50\n"))
    for events in ([event, "move"], ["move", event], [event, "move", event]):
        states = {}
        waiting = [("old", Purchase(1, "I", 0, customer_type="PRIME"))]
        waiting += [
            ("old", Replace(append_time=8, command_id="m", counterparty="new") if each == "move" else each)
            for each in events
        ]
        waiting.append(("old", event.__class__(append_time=365 * DAY, command_id=event.command_id, lots=event.lots)))
        while waiting:
            card, each = waiting.pop(0)
            outcome = process(states.get(card), [each], Programmes(), card)
            states[card] = outcome.state
            follow = [
                (to, decode_event(each.append_time, encode(command_record(to, sent)))) for to, sent in outcome.commands
            ]
            waiting = follow + waiting
        assert (0, 12_50) == (states["old"].total, states["new"].total)


def test_an_erasure_forgets_the_import(tmp_path):
    ((_, event),) = commands_of(read(tmp_path, "card,points\n4711,12.50\n"))
    outcome = process(None, [event, Erase(append_time=8, command_id="e")], Programmes(), "4711")
    assert [Kind.IMPORTED, Kind.ERASED] == [entry.kind for entry in outcome.entries]
    assert outcome.account is None


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        pytest.param(
            "b.csv",
            "card,points,expires,points\n4711,1,,2\n",
            "line 1: is not CSV: the header names a column more than once",
            id="a repeated column",
        ),
        pytest.param(
            "b.csv", f"card,points,{'x' * 140_000}\n4711,1,\n", "line 1: is not CSV: field larger", id="a huge header"
        ),
        pytest.param("b.jsonl", "[" * 200_000, "line 1: is not a JSON object", id="nested deeply"),
        ("b.jsonl", '{"card":"A","points":1e99999999999999999999}', "line 1: has a number whose exponent is too large"),
        ("b.jsonl", r'{"card":"47\ud800","points":1}', "line 1: card is longer than 128 characters, or is not UTF-8"),
    ],
)
def test_a_header_or_row_that_cannot_be_read_is_an_error(tmp_path, name, text, says):
    (error,) = read(tmp_path, text, name).errors
    assert says in error


@given(st.binary(max_size=60), st.sampled_from(["b.csv", "b.jsonl"]))
def test_any_bytes_give_rows_or_errors(tmp_path_factory, content, name):
    """A damaged file never ends in a traceback."""
    file = tmp_path_factory.mktemp("bytes") / name
    file.write_bytes(b"card,points,expires\n" + content)
    found = read_files([file], "UTC", NOW)
    assert len(found.errors) <= found.rows


def test_the_id_of_an_import_does_not_reveal_the_card(tmp_path):
    """The ledger keeps it after an erasure. A person without the key cannot try all cards."""
    found = read(tmp_path, "card,points\n4711,12.50\n")
    other = Pseudonyms(b"k" * KEY_BYTES)
    of_key, again, of_other = (
        next(import_commands(found, "opening", "why", "me", names))[1].command_id for names in (NAMES, NAMES, other)
    )
    assert of_key == again != of_other


@pytest.fixture
def broker(monkeypatch, tmp_path):
    """The records that the command sends. There is no broker."""
    sent = []

    class Publisher:
        def __init__(self, _):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def publish(self, topic, key, value, headers):
            sent.append((topic, key, value, headers["ce_id"]))

    monkeypatch.setattr(opening_balances, "Publisher", Publisher)
    monkeypatch.setattr(opening_balances, "connected_producer", lambda *_: None)
    monkeypatch.setattr(opening_balances, "load_programmes", lambda _: Programmes())
    monkeypatch.setattr(opening_balances, "audited", lambda *_, **__: nullcontext({}))
    key_file = tmp_path / "pseudonym.key"
    key_file.write_bytes(bytes(KEY_BYTES))
    monkeypatch.setenv("LOYALTY_PSEUDONYM_KEY_FILE", str(key_file))
    return sent


def run(*arguments):
    return CliRunner().invoke(app, ["import", "--name", "opening", *map(str, arguments)])


@pytest.mark.parametrize(("key", "says"), [(None, "does not exist"), (b"short", "is not a key")])
def test_an_import_needs_the_key_of_the_pipeline(tmp_path, broker, monkeypatch, key, says):
    """With another key the ids would differ, and the same import would count again. The import makes no new key."""
    file, key_file = tmp_path / "balances.csv", tmp_path / "other.key"
    file.write_text("card,points\n4711,1\n")
    if key:
        key_file.write_bytes(key)
    monkeypatch.setenv("LOYALTY_PSEUDONYM_KEY_FILE", str(key_file))

    refused = run(file)

    assert (2, []) == (refused.exit_code, broker)
    assert f"{key_file} {says}" in refused.stderr.replace("\n", " ")
    assert (key is not None) == key_file.exists()


def test_the_command_sends_nothing_in_a_dry_run_or_with_errors(tmp_path, broker):
    """Wrong rows are listed, with the exit status 2. The same import twice sends the same ids."""
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("card,points,expires\n4711,1,2099-12-31\n4712,2,\n4711,3,\n")
    bad.write_text("card,points\n4711,1\n,2\n")
    wrong = run(good, bad)
    assert (2, []) == (wrong.exit_code, broker)
    assert f"{bad}, line 3: card is missing" in wrong.stderr
    assert "1 of 5 rows are wrong, and nothing was sent" in wrong.stderr.replace("\n", " ")
    dry = run(good, "--dry-run", "--json")
    assert (0, []) == (dry.exit_code, broker)
    assert {"rows": 3, "cards": 2, "points": "6.00", "sent": 0}.items() <= json.loads(dry.stdout).items()
    assert 2 == json.loads(run(good, "--json").stdout)["sent"] == len(broker)
    run(good)
    assert [each[:2] + each[3:] for each in broker[:2]] == [each[:2] + each[3:] for each in broker[2:]]
    assert {"loyalty-commands"} == {topic.rpartition(".")[2] for topic, *_ in broker}


def test_a_date_ends_in_the_time_zone_of_the_newest_version(tmp_path, broker, monkeypatch):
    """An import directly after the first publication comes before this version takes effect."""
    berlin = Programme(version=1, effective_time=END_OF_2099, time_zone="Europe/Berlin")
    monkeypatch.setattr(opening_balances, "load_programmes", lambda _: Programmes.of([Programme(), berlin]))
    file = tmp_path / "balances.csv"
    file.write_text("card,points,expires\n4711,1,2099-12-31\n")

    done = run(file, "--json")

    ((_, _, value, _),) = broker
    assert (SentLot(1_00, END_OF_2099),) == decode_event(7, value).lots
    assert "Europe/Berlin" == json.loads(done.stdout)["time_zone"]
    assert "Europe/Berlin" in run(file, "--dry-run").stdout
