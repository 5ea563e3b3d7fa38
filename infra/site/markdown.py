"""Tables in Markdown, and documents with a part between marks."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table. A cell must not contain line breaks."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def write_part(document: Path, name: str, text: str) -> None:
    """Replace the text between the marks of a part. Raises ValueError if the document has no marks."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin_found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, end_found, after = rest.partition(end)
    if not begin_found or not end_found:
        raise ValueError(f"{document} has no marks {begin} and {end}: add them")
    document.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")
