"""The parts of the reference that come from code: those of the site, and those of the committed pages.

A part with an end mark is committed, so that a reader of the checkout sees it. ``python -m infra.site`` writes it.
"""

import re

from infra.site.reference import GENERATORS

_PART = re.compile(r"<!-- generated: ([\w-]+) -->(\n.*?<!-- /generated -->)?", re.DOTALL)


def on_page_markdown(markdown: str, **_: object) -> str:
    """A hook of MkDocs: replace each part by the Markdown that its generator makes now."""
    return _PART.sub(lambda part: GENERATORS[part[1]](), markdown)


def with_committed_parts(markdown: str) -> str:
    """The page with the committed parts as their generators make them now."""
    return _PART.sub(
        lambda part: (
            f"<!-- generated: {part[1]} -->\n\n{GENERATORS[part[1]]()}\n<!-- /generated -->" if part[2] else part[0]
        ),
        markdown,
    )
