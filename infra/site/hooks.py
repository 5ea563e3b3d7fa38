"""The hook of the documentation site: fills the parts of the reference that come from code."""

import re

from infra.site.reference import GENERATORS

_MARK = re.compile(r"<!-- generated: ([\w-]+) -->")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace each mark of a page by the Markdown that its generator makes now."""
    return _MARK.sub(lambda mark: GENERATORS[mark[1]](), markdown)
