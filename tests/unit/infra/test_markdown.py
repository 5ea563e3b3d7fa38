from pathlib import Path

import pytest

from infra.local.folders import ROOT
from infra.site.markdown import write_part


@pytest.mark.parametrize(("page", "name"), [("benchmarks", "peers"), ("faults", "faults"), ("fuzz", "fuzz")])
def test_the_text_around_a_report_stays(page: str, name: str, tmp_path: Path) -> None:
    """Each document with a report has marks around the report."""
    found = (ROOT / "docs" / "lab" / f"{page}.md").read_text(encoding="utf-8")
    copy = tmp_path / "page.md"
    copy.write_text(found, encoding="utf-8")

    write_part(copy, name, "measured")

    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    expected = f"{found.partition(begin)[0]}{begin}\n\nmeasured\n{end}{found.partition(end)[2]}"
    assert expected == copy.read_text(encoding="utf-8")


def test_a_document_without_marks_is_not_changed(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("text <!-- fuzz -->", encoding="utf-8")

    with pytest.raises(ValueError, match="has no marks <!-- fuzz --> and <!-- /fuzz -->"):
        write_part(document, "fuzz", "measured")

    assert "text <!-- fuzz -->" == document.read_text(encoding="utf-8")
