"""Renders the templates of the console, with the headers of its pages."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from api.console.own_api import Answer

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Vary": "HX-Request",
}


def _time(text: str | None) -> str:
    """A time of the API as HTML, in UTC. A line can break only between the date and the time."""
    if not text:
        return "-"
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return Markup("<time><span>{:%Y-%m-%d}</span> <span>{:%H:%M:%S UTC}</span></time>").format(moment, moment)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


_TEMPLATES = Environment(
    loader=PackageLoader("api.console"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"time": _time, "number": _number, "quoted": lambda text: quote(text, safe="")}


def page(template: str, **values: Any) -> Response:
    """A response with the template, filled with these values."""
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), headers=_HEADERS)


def beside_form(problem: dict[str, Any]) -> Response:
    """Show a problem below the form. The form keeps its Idempotency-Key, so a repetition takes effect once."""
    response = page("problem_beside_form.html", problem=problem)
    response.headers["HX-Reswap"] = "beforeend"
    return response


def page_of(template: str, answer: Answer, **values: Any) -> Response:
    """A response with the template, which gets the answer of the API as ``found``. Shows the problem if it is one."""
    return page(template if answer.is_good else "problem.html", found=answer.body, problem=answer.body, **values)
