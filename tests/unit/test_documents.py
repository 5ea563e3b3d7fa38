"""The documents agree with the code, every link leads somewhere, and the site builds."""

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
from typer.core import TyperGroup

from api.app import create_app
from api.console.pages import FLOW, FOLLOWERS
from api.http.problems import Problem
from infra.site.hooks import on_page_markdown, with_committed_parts
from pipelines.driver.watch import MAX_RESTARTS
from pipelines.queries.query_table import QUERIES
from schemas import topics
from schemas.access import SERVICES
from schemas.topics import Topic
from services.cli import app
from services.domain.validation import LARGEST_AMOUNT, LARGEST_INVOICE, LONGEST_TEXT, MOST_LINE_ITEMS, RULES
from services.messaging import headers
from services.messaging.schema_ids import FolderSchemaIds
from services.settings import Settings
from services.state_stores.catalogue import stores
from services.tracing import TRACEPARENT

ROOT = Path(__file__).resolve().parents[2]
RIGHTS = {service.user: service for service in SERVICES}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OWN_OPTIONS = {("pipeline",): "pipelines", ("api",): "api", ("demo",): "infra/demo"}
"""Commands that forward their options, and the program that accepts them."""

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@cache
def filled(document: Path) -> str:
    """The Markdown of a page, with the parts that come from code."""
    return on_page_markdown(document.read_text(encoding="utf-8"))


def found_in_documents(find: Callable[[Path], Iterable[str]]) -> list[str]:
    """What a function finds in each document, after the name of the document."""
    return [f"{document.relative_to(ROOT)}: {found}" for document in DOCUMENTS for found in find(document)]


def test_the_parts_that_come_from_code_are_current() -> None:
    """After a change of the code, `make contracts` writes them."""
    for document in DOCUMENTS:
        markdown = document.read_text(encoding="utf-8")
        assert with_committed_parts(markdown) == markdown, document


def test_the_tests_of_security_exist() -> None:
    """Every test and file of tests that the page of security names is there."""
    named = set(_CODE.findall((ROOT / "docs/reference/security.md").read_text(encoding="utf-8")))
    files = ROOT.glob("tests/**/test_*.py")
    definition = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
    defined = {name for file in files for name in definition.findall(file.read_text(encoding="utf-8"))}
    tests = {name for name in named if name.startswith("test_")}
    assert len(tests) > 20
    assert set() == tests - defined
    assert [] == [name for name in named if name.startswith("tests/") and not (ROOT / name).exists()]


def rows(document: str) -> list[list[str]]:
    """The cells of every line of every table of a page."""
    lines = filled(ROOT / "docs" / document).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def commands(document: Path) -> list[str]:
    """All that a document writes as code: indented lines, fenced lines, and code in a sentence."""
    text = document.read_text(encoding="utf-8")
    fenced = [line for block in _FENCED.findall(text) for line in block.splitlines()[1:-1]]
    joined = re.sub(r"\\\n\s*", " ", text)
    indented = [line for line in joined.splitlines() if line.startswith("    ")]
    return [line.strip() for line in [*indented, *fenced]] + _CODE.findall(text)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def test_relative_links_lead_somewhere() -> None:
    """Every link inside the project leads to a file that exists, and to a heading of that file."""
    assert [] == found_in_documents(broken_links)


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in _LINK.findall(_FENCED.sub("", document.read_text(encoding="utf-8"))):
        path, _, heading = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if "://" in link:
            continue
        if not target.exists():
            broken.append(link)
        elif heading:
            broken += [link] * (heading not in anchors(target))
    return broken


@cache
def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", filled(document)), re.MULTILINE)
    return set(map(anchor, headings))


def test_make_targets_exist() -> None:
    """Every `make` target of a document is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = re.compile(r"^make ([a-z-]+)", re.MULTILINE)
    assert [] == found_in_documents(lambda document: {*named.findall("\n".join(commands(document)))} - targets)


def test_modules_and_files_that_are_named_as_code_exist() -> None:
    """Every module after `python -m` and every file or folder of the project that a document names exists."""
    assert [] == found_in_documents(missing_modules_and_files)


def missing_modules_and_files(document: Path) -> list[str]:
    code = "\n".join(commands(document))
    modules = re.findall(r"python -m ((?:api|benchmarks|infra|pipelines|services|tests)[\w.]*)", code)
    folders = "api|benchmarks|docs|infra|pipelines|requirements|schemas|services|tests"
    named = re.findall(rf"^(?:{folders})/[\w./-]*\w", code, re.MULTILINE)
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return missing + [name for name in named if not (ROOT / name).exists()]


def test_pages_that_the_code_names_exist() -> None:
    """A message, a comment or a script that sends its reader to a page of docs/ names a page that exists."""
    folders = ("api", "benchmarks", "infra", "pipelines", "schemas", "services", "tests")
    suffixes = {".py", ".yaml", ".yml", ".sh", ".properties", ".avsc"}
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    named = {
        page
        for source in [*sources, ROOT / "Makefile", *ROOT.glob("docker-compose*.yml")]
        for page in re.findall(r"(?<![/\w])docs/[\w/.-]+\.(?:md|yaml)", source.read_text(encoding="utf-8"))
    }
    assert "docs/how-to/manage-checkpoints.md" in named
    assert [] == [page for page in sorted(named) if not (ROOT / page).exists()]


def test_settings_that_are_named_exist() -> None:
    """Every LOYALTY_ variable of a document is a setting, or the beginning of several (LOYALTY_SPARK_…)."""
    known = {f"LOYALTY_{name.upper()}" for name in Settings.model_fields}
    named = re.compile(r"LOYALTY_[A-Z_]*[A-Z](?![A-Z_]|_…)")
    assert [] == found_in_documents(lambda document: {*named.findall(document.read_text(encoding="utf-8"))} - known)


def test_every_setting_is_documented_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of settings has exactly the settings, in their order, whatever is set here."""
    expected = [setting_row(name) for name in Settings.model_fields]
    monkeypatch.setenv("LOYALTY_API_PORT", "9999")
    monkeypatch.setenv("LOYALTY_KAFKA_SASL_PASSWORD", "secret of this machine")
    assert expected == [row for row in rows("reference/settings.md") if row[0].startswith("`LOYALTY_")]


def setting_row(name: str) -> list[str]:
    field = Settings.model_fields[name]
    default = Settings().model_dump(mode="json")[name]
    return [f"`LOYALTY_{name.upper()}`", f"`{default}`" if default not in (None, "") else "not set", field.description]


def test_the_table_of_topics_is_the_catalogue() -> None:
    """The page of topics and records has exactly the topics of the catalogue, in its order, and the fields of each."""
    found = rows("reference/records.md")
    named = {f"`{topic.name}`": topic for topic in topics.ALL}
    listed = [row for row in found if row[0] in named and len(row) == 6]
    assert [topic_row(topic) for topic in topics.ALL] == [[*row[:2], *row[3:5]] for row in listed]
    assert {"`InvoiceNumber`", "`TotalLoyaltyPoints`", "`CommandID`"} <= {row[0] for row in found}


def test_the_dataflow_has_the_topics_of_the_code() -> None:
    """The picture of the console and the table of the architecture agree with the queries, the rights and the stores.

    Each row of the picture has outputs, also if they are no topics.
    """
    names = {topic.name for topic in topics.ALL}
    table = {row[0]: row[1:] for row in rows("explanation/architecture.md") if row[0] in QUERIES and len(row) == 3}
    assert [*QUERIES] == [name for name, _, _ in FLOW]
    for name, reads, writes in FLOW:
        query = QUERIES[name]
        programme = [topics.LOYALTY_PROGRAMMES] if query.reads_programme else []
        assert [topic.name for topic in (*query.sources, *programme)] == [*reads]
        documented = [re.sub(r" \(.*\)", "", cell).split(", ") for cell in table[name]]
        assert ([*reads], names & {*documented[1]}) == (documented[0], names & {*writes})
        assert writes
    written = {topic for _, _, writes in FLOW for topic in writes} & names
    assert written == names_of(RIGHTS["pipeline"].writes) - {topics.AUDIT_TRAIL.name}
    followed = {name: {*reads} for name, reads, _ in FOLLOWERS}
    assert followed.pop("api") == names_of(store.changelog for store in stores(FolderSchemaIds()))
    assert followed == {name: names_of(RIGHTS[name].reads) for name in ("ledger", "webhooks")}


def names_of(found: Iterable[Topic]) -> set[str]:
    return {topic.name for topic in found}


def topic_row(topic: Topic) -> list[str]:
    return [f"`{topic.name}`", topic.key, str(topic.partitions or "`LOYALTY_PARTITIONS`"), topic.cleanup_policy]


def test_the_api_has_the_version_of_the_package() -> None:
    """OpenAPI shows the version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == create_app(MagicMock()).version


def test_the_number_of_restarts_is_documented() -> None:
    """The guide to start and stop says how often the pipeline starts a query again."""
    guide = (ROOT / "docs" / "how-to" / "start-and-stop.md").read_text(encoding="utf-8")
    assert f"share {MAX_RESTARTS} such restarts" in " ".join(guide.split())


def test_the_rules_of_an_invoice_are_documented() -> None:
    """The guide for vendors names every field that a rule concerns, and the limits."""
    guide = (ROOT / "docs" / "how-to" / "publish-invoices.md").read_text(encoding="utf-8")
    rules, _, _ = guide.partition("## Avro")
    fields = {name.removesuffix("[]") for rule in RULES for name in rule.field.split(".")}
    assert set() == {name for name in fields if not re.search(rf"\b{name}\b", rules)}
    for limit in (LONGEST_TEXT, MOST_LINE_ITEMS, int(LARGEST_AMOUNT)):
        assert f"{limit:,}" in rules
    assert f"{LARGEST_INVOICE // 2**20} MiB" in rules


def test_headers_are_documented() -> None:
    """docs/reference/records.md names every header that records carry, and no other."""
    named = {value for name, value in vars(headers).items() if name.startswith("DEAD_LETTER_")} | {TRACEPARENT}
    named |= headers.cloud_event("", "").keys()
    documented = (ROOT / "docs" / "reference" / "records.md").read_text(encoding="utf-8")
    by_hand = re.sub(r"<!-- generated: .*?<!-- /generated -->", "", documented, flags=re.DOTALL)
    assert named == set(re.findall(r"^\| `([a-z_-]+)` \|", by_hand, re.MULTILINE))


def test_metrics_are_documented() -> None:
    """The page of metrics names every metric of the pipeline, the API and the ledger, and no other."""
    metrics = ("pipelines/runtime/query_metrics.py", "api/http/metrics.py", "services/ledger/metrics.py")
    sources = [ROOT / path for path in metrics]
    in_code = {name for path in sources for name in re.findall(r'"(loyalty_\w+)"', path.read_text(encoding="utf-8"))}
    named = re.findall(r"`(loyalty_\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8"))
    # prometheus-client adds _total to a counter that does not have it.
    assert {name.removesuffix("_total") for name in in_code} == {name.removesuffix("_total") for name in named}


def test_problems_are_documented() -> None:
    """The page of problems has a row for every problem of the API, and for no other."""
    codes = {problem.code for problem in subclasses(Problem) if getattr(problem, "code", "")}
    first_cells = [row[0] for row in rows("reference/problems.md")[1:]]
    # The framework raises these two, for a path or a method that no route has.
    codes |= {"unknown-route", "method-not-allowed"}
    assert codes == {code for cell in first_cells for code in re.findall(r"`([a-z-]+)`", cell)}


def test_requests_are_described() -> None:
    """The hand-written part of the HTTP reference names the last segment of every path of the API."""
    text = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8").partition("## Requests")[0]
    paths = create_app(MagicMock()).openapi()["paths"]
    literals = [[part for part in path.split("/") if part[:1] not in {"", "{"}] for path in paths]
    names = {parts[-1] for parts in literals}
    assert {"entries", "statement", "balance"} <= names
    assert [] == sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", text))
    assert "ledger-unavailable" in text


def subclasses(class_: type) -> Iterator[type]:
    for each in class_.__subclasses__():
        yield each
        yield from subclasses(each)


def uses(document: Path) -> dict[str, list[str]]:
    """Every `loyalty …` command line of a document, and the words after `loyalty`."""
    found = {}
    for line in commands(document):
        # At the start of the line, after variables, as .venv/bin/loyalty, or as the command of a container.
        runs = r"(?:[A-Z_]+=\S+ +)*(?:\S+/|docker-compose .* (?:api|audit) |kubectl .* -- )?loyalty ([^…|;#]+)"
        if match := re.match(runs, line):
            found[line] = shlex.split(match[1])
    return found


def test_commands_are_found() -> None:
    """The how-to guides show these commands, so that the check below checks something."""
    guides = (ROOT / "docs" / "how-to").glob("*.md")
    shown = {words[0] for guide in guides for words in uses(guide).values()}
    assert {"simulate", "dead-letters", "topics"} <= shown


def test_commands_and_their_options_exist() -> None:
    """Every `loyalty …` of a document can be run: the command exists and has the options."""
    assert [] == found_in_documents(
        lambda document: [line for line, words in uses(document).items() if not is_command(words)]
    )


@cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def is_command(words: list[str]) -> bool:
    command: Any = _command_line()
    path: tuple[str, ...] = ()
    while isinstance(command, TyperGroup) and not (words and words[0].startswith("--")):
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
def test_a_wrong_command_is_noticed(line: str, *, expected: bool) -> None:
    """The check above accepts commands and refuses everything else."""
    assert expected == is_command(line.split())


def test_decisions_are_numbered_once() -> None:
    """Each decision has its own number, the number of its title, and the same parts as the others."""
    pages = sorted((ROOT / "docs" / "explanation" / "decisions").glob("0*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert all(first < second for first, second in pairwise(numbers))
    for page, number in zip(pages, numbers, strict=True):
        headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings[0].startswith(f"{number}. ")
        assert ["Context", "Decision", "Consequences", "Alternatives"] == headings[1:]


def test_the_index_has_the_status_of_each_decision() -> None:
    """The index has the title of each decision, and its status. Both name the decisions that changed it later."""
    pages = sorted((ROOT / "docs" / "explanation" / "decisions").glob("0*.md"))
    listed = [row for row in rows("explanation/decisions/index.md") if row[0].startswith("[")]
    assert len(pages) == len(listed)
    for page, (link, title, status) in zip(pages, listed, strict=True):
        text = page.read_text(encoding="utf-8")
        assert f"[{int(page.name[:4])}]({page.name})" == link
        assert text.startswith(f"# {int(page.name[:4])}. {title}\n\n**Status:** {status.split()[0]} ")
        on_page, _, _ = text.partition("\n## ")
        assert [] == [number for number in re.findall(r"\d+", status) if f"]({int(number):04}-" not in on_page]


class _Assets(HTMLParser):
    """Collects the addresses that a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = tag in {"script", "img", "iframe", "source", "video", "audio", "embed", "object"}
        if tag == "link":
            loads = (given.get("rel") or "") not in {"canonical", "prev", "next"}
        self.addresses += [value for name in ("src", "href", "data", "srcset") if loads and (value := given.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; a broken link or anchor, or a page without a place, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == built.returncode, built.stderr[-3000:]
    return folder


@pytest.mark.program
@pytest.mark.xdist_group("site")
def test_the_site_has_every_page(site: Path) -> None:
    """Each document is a page, and no mark of a generated part is left."""
    pages = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")} - {Path("404.md")}
    assert {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")} == pages
    assert [] == [path for path in site.rglob("*.html") if "generated:" in path.read_text(encoding="utf-8")]


@pytest.mark.program
@pytest.mark.xdist_group("site")
def test_pages_load_nothing_from_the_network(site: Path) -> None:
    """Every script, style sheet, font and picture of the site is a file of the site."""
    remote = re.compile(r"^(?:https?:)?//")
    found = []
    for page in site.rglob("*.html"):
        assets = _Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        assert assets.addresses
        found += [address for address in assets.addresses if remote.match(address)]
    for sheet in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import )[\"']?([^)\"';]+)", sheet.read_text(encoding="utf-8"))
        found += [address for address in addresses if remote.match(address)]
    assert [] == found
