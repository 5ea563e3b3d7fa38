"""Fills in the parts of the reference that come from code.

MkDocs generates all parts when it builds the site. A part with an end mark is also committed, so that a reader of the
checkout sees it. ``python -m infra.site`` writes the committed parts.
"""

import re

from infra.site.reference import GENERATORS

_PART = re.compile(r"<!-- generated: ([\w-]+) -->(\n.*?<!-- /generated -->)?", re.DOTALL)


def on_page_markdown(markdown: str, **_: object) -> str:
    """A hook of MkDocs: replace each part with the current Markdown of its generator."""
    return _PART.sub(lambda part: GENERATORS[part[1]](), markdown)


def with_committed_parts(markdown: str) -> str:
    """The page with the current Markdown in its committed parts."""
    return _PART.sub(
        lambda part: (
            f"<!-- generated: {part[1]} -->\n\n{GENERATORS[part[1]]()}\n<!-- /generated -->" if part[2] else part[0]
        ),
        markdown,
    )
