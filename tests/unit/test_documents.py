"""Settings, topics, headers, metrics, commands, targets and links in the documents agree with the code."""

import ast
import importlib.util
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from schemas import topics
from schemas.topics import Topic
from services.cli import app
from services.messaging import headers
from services.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "schemas" / "README.md"])
EVERY_DOCUMENT = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
OWN_OPTIONS = {("pipeline",): "pipelines", ("api",): "api"}
"""Commands that forward their options, and the program that accepts them."""

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def table(document: str, mark: str) -> list[str]:
    """The rows of the table between two marks, without the header."""
    text = (ROOT / document).read_text(encoding="utf-8")
    rows = text.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- /{mark} -->")[0].splitlines()
    return [row for row in rows if row][2:]


def commands(document: Path) -> list[str]:
    """All code in a document: indented lines, fenced lines, and code in sentences."""
    text = document.read_text(encoding="utf-8")
    fenced = [line for block in _FENCED.findall(text) for line in block.splitlines()[1:-1]]
    joined = re.sub(r"\\\n\s*", " ", text)
    indented = [line for line in joined.splitlines() if line.startswith("    ")]
    return [line.strip() for line in [*indented, *fenced]] + _CODE.findall(text)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


@EVERY_DOCUMENT
def test_relative_links_have_targets(document: Path) -> None:
    """Every link within the project leads to a file or folder that exists, and to a heading that it has."""
    broken = []
    for link in _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8"))):
        path, _, heading = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if "://" in link:
            continue
        if not target.exists():
            broken.append(link)
        elif heading:
            text = _FENCED.sub("", target.read_text(encoding="utf-8"))
            broken += [link] * (heading not in map(anchor, re.findall(r"^#+ (.*)$", text, re.MULTILINE)))
    assert [] == broken


@EVERY_DOCUMENT
def test_make_targets_exist(document: Path) -> None:
    """The documents name only targets that the Makefile has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {name for line in commands(document) for name in re.findall(r"^make ([a-z-]+)", line)}
    assert set() == named - targets


@EVERY_DOCUMENT
def test_named_modules_and_files_exist(document: Path) -> None:
    """The modules behind `python -m` and the named files of the project exist."""
    code = "\n".join(commands(document))
    modules = re.findall(r"python -m ((?:api|infra|pipelines|services)[\w.]*)", code)
    named = re.findall(r"^(?:api|infra|pipelines|requirements|schemas|services|tests)/[\w./-]*\w", code, re.MULTILINE)
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    assert [] == missing + [name for name in named if not (ROOT / name).exists()]


@EVERY_DOCUMENT
def test_named_settings_exist(document: Path) -> None:
    """A LOYALTY_ variable in a document is a setting, or the prefix of settings (LOYALTY_SPARK_…)."""
    known = {f"LOYALTY_{name.upper()}" for name in Settings.model_fields}
    found = set(re.findall(r"LOYALTY_[A-Z_]*[A-Z](?![A-Z_]|_…)", document.read_text(encoding="utf-8")))
    assert set() == found - known


def test_every_setting_is_documented() -> None:
    """docs/configuration.md has exactly the settings, in their order, each with its default and what it is for."""
    assert [setting_row(name) for name in Settings.model_fields] == table("docs/configuration.md", "settings")


def setting_row(name: str) -> str:
    default = Settings().model_dump(mode="json")[name]
    shown = f"`{default}`" if default not in (None, "") else "not set"
    return f"| `LOYALTY_{name.upper()}` | {shown} | {Settings.model_fields[name].description} |"


def test_the_table_of_topics_is_the_catalogue() -> None:
    """docs/architecture.md has exactly the topics of the catalogue, in its order."""
    assert [topic_row(topic) for topic in topics.ALL] == table("docs/architecture.md", "topics")


def topic_row(topic: Topic) -> str:
    kept = f"{topic.retention.days} days" if topic.retention else "latest of each key"
    cells = (topic.name, topic.key, topic.value or "as it came", topic.partitions, topic.cleanup_policy, kept)
    return f"| {' | '.join(map(str, cells))} |"


def test_headers_are_documented() -> None:
    """schemas/README.md names every header that records carry, and no other."""
    named = {value for name, value in vars(headers).items() if name.startswith("DEAD_LETTER_")}
    source = (ROOT / "pipelines" / "columns" / "avro.py").read_text(encoding="utf-8")
    named |= set(re.findall(r'"(ce_\w+|content-type)":', source))
    documented = (ROOT / "schemas" / "README.md").read_text(encoding="utf-8")
    assert named == set(re.findall(r"^\| `([a-z_-]+)` \|", documented, re.MULTILINE))


def test_metrics_are_documented() -> None:
    """docs/operations.md names every metric of the pipeline, the API and the ledger, and no other."""
    metrics = ("pipelines/runtime/query_metrics.py", "api/http/metrics.py", "services/ledger/metrics.py")
    sources = [ROOT / path for path in metrics]
    in_code = {name for path in sources for name in re.findall(r'"(loyalty_\w+)"', path.read_text(encoding="utf-8"))}
    named = re.findall(r"`(loyalty_\w+)`", (ROOT / "docs" / "operations.md").read_text(encoding="utf-8"))
    # prometheus-client adds _total to a counter that does not have it.
    assert {name.removesuffix("_total") for name in in_code} == {name.removesuffix("_total") for name in named}


def uses(document: Path) -> dict[str, list[str]]:
    """Every `loyalty …` command line of a document, and the words behind `loyalty`."""
    found = {}
    for line in commands(document):
        # The command stands at the start, after variables, as .venv/bin/loyalty, or after a container.
        if match := re.match(r"(?:[A-Z_]+=\S+ +)*(?:\S+/|docker-compose .* (?:api|audit) )?loyalty ([^…|;#]+)", line):
            found[line] = shlex.split(match[1])
    return found


def test_commands_are_found() -> None:
    """The check finds these commands, so it does not pass because it finds none."""
    shown = {words[0] for words in uses(ROOT / "docs" / "operations.md").values()}
    assert {"simulate", "dead-letters", "topics"} <= shown


@EVERY_DOCUMENT
def test_commands_and_their_options_exist(document: Path) -> None:
    """Each `loyalty …` in the documents is a command that exists and has these options."""
    assert [] == [line for line, words in uses(document).items() if not is_command(words)]


def is_command(words: list[str]) -> bool:
    command = typer.main.get_command(app)
    path: tuple[str, ...] = ()
    while isinstance(command, TyperGroup):
        if not words or words[0] not in command.commands:
            return False
        command, path, words = command.commands[words[0]], (*path, words[0]), words[1:]
    known = {name for option in command.params for name in option.opts} | {"--help"}
    if path in OWN_OPTIONS:
        known |= options_of(OWN_OPTIONS[path])
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def options_of(package: str) -> set[str]:
    """The options of a program's main function, read without importing the program."""
    tree = ast.parse((ROOT / package / "__main__.py").read_text(encoding="utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    return {f"--{argument.arg.replace('_', '-')}" for argument in [*main.args.args, *main.args.kwonlyargs]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("simulate --count 5 --seed 1", True),
        ("dead-letters replay --all", True),
        ("pipeline --query fan-out", True),
        ("export --to DIR", True),
        ("simulate --bogus", False),
        ("pipeline --bogus", False),
        ("dead-letters", False),
        ("bogus", False),
    ],
)
def test_a_wrong_command_is_detected(line: str, *, expected: bool) -> None:
    """The check refuses command lines that do not exist."""
    assert expected == is_command(line.split())


def test_decisions_are_numbered_once() -> None:
    """Each decision has its own number, a title that agrees with its file name, and the same sections."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert all(first < second for first, second in pairwise(numbers))
    for page, number in zip(pages, numbers, strict=True):
        headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings[0].startswith(f"{number}. ")
        assert ["Context", "Decision", "Consequences", "Alternatives"] == headings[1:]
