"""``python -m infra.site`` writes the parts of the reference that come from code into the committed pages."""

from infra.local.folders import ROOT
from infra.site.hooks import with_committed_parts

DOCS = ROOT / "docs"

if __name__ == "__main__":
    for page in DOCS.rglob("*.md"):
        page.write_text(with_committed_parts(page.read_text(encoding="utf-8")), encoding="utf-8")
