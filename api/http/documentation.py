"""``/openapi.json``, and ``/docs``: Swagger UI on it. The page loads everything from this instance."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

DOCUMENT, PAGE = "/openapi.json", "/docs"
_SCRIPT, _STYLES, _ICON = (f"{PAGE}/{name}" for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"))
PATHS = frozenset({PAGE, _SCRIPT, _STYLES, _ICON})
"""The page, and the files that it loads."""

# Swagger UI sets the style attribute of elements, and has its pictures in data: URLs.
_POLICY = (
    "default-src 'none'; script-src 'self' '{script}'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def install(app: FastAPI) -> None:
    """Serve both. fastapi-offline has the files of Swagger UI, which FastAPI would load from a CDN."""
    page = get_swagger_ui_html(
        openapi_url=DOCUMENT,
        title=app.title,
        swagger_js_url=_SCRIPT,
        swagger_css_url=_STYLES,
        swagger_favicon_url=_ICON,
        # The validator of Swagger UI is a service on another host.
        swagger_ui_parameters={"validatorUrl": None},
    )
    (script,) = re.findall(rb"<script>(.*?)</script>", page.body, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    page.headers["Content-Security-Policy"] = _POLICY.format(script=f"sha256-{digest}")

    # FastAPI would make the text at each request, which takes 10 ms. The requests need no credentials, so
    # they have no limit.
    @cache
    def document() -> Response:
        return JSONResponse(app.openapi())

    async def describe(_: Request) -> Response:
        return document()

    async def show(_: Request) -> Response:
        return page

    assets = StaticFiles(directory=str(files("fastapi_offline") / "static"))

    async def asset(request: Request) -> Response:
        return await assets.get_response(request.url.path.rpartition("/")[2], request.scope)

    app.add_route(DOCUMENT, describe, include_in_schema=False)
    app.add_route(PAGE, show, include_in_schema=False)
    for path in PATHS - {PAGE}:
        app.add_route(path, asset, include_in_schema=False)
