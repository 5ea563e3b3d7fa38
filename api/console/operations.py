"""The operations of the console: dead letters, audits, versions of the programme, a simulation and the settings."""

from contextlib import suppress
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from api.console.own_api import Answer
from api.console.rendering import page, page_of
from api.console.users import ask, fields_of, form_of, user_of
from services.api_keys.keys import Scope

_LETTERS_ON_A_PAGE = 200
_PROGRAMMES = "/v1/stores/programmes/all"
_NOT_NEWEST = {
    "title": "Your text does not begin with the newest version",
    "detail": "Somebody has published another version. Load the page again, and make your change again.",
}

router = APIRouter(prefix="/console", include_in_schema=False)


@router.get("/operations")
async def operations(request: Request) -> Response:
    return page("operations.html", user=await user_of(request))


@router.get("/operations/dead-letters")
async def dead_letters(request: Request) -> Response:
    reason, cursor = request.query_params.get("reason", ""), request.query_params.get("cursor", "")
    answer = await ask(request, "GET", "/v1/dead-letters", reason=reason, limit=_LETTERS_ON_A_PAGE, cursor=cursor)
    user = await user_of(request)
    may_replay = Scope.DEAD_LETTERS.value in user["scopes"] and user["card"] is None and user["stores"] is None
    return page_of("dead_letters.html", answer, may_replay=may_replay, reason=reason, is_first=not cursor)


@router.post("/operations/replay")
async def replay(request: Request) -> Response:
    """Show what a replay would publish. After the confirmation, publish it."""
    form = await fields_of(request)
    positions = [value for name, value in form if name == "position"]
    confirmed = ("confirmed", "yes") in form
    order = {"positions": positions, "dryRun": not confirmed}
    answer = await ask(request, "POST", "/v1/dead-letters/replay", json=order)
    return page("replay.html", answer=answer, positions=positions)


@router.get("/operations/audits")
async def audits(request: Request) -> Response:
    answer = await ask(request, "GET", "/v1/audits")
    return page_of("audits.html", answer)


@router.get("/operations/programmes")
async def programmes(request: Request) -> Response:
    user = await user_of(request)
    answer = await ask(request, "GET", _PROGRAMMES, limit=1000)
    if not answer.is_good:
        return page("problem.html", problem=answer.body)
    may_publish = Scope.PROGRAMME_PUBLISH.value in user["scopes"]
    return page("programmes.html", versions=_versions(answer), may_publish=may_publish)


def _versions(answer: Answer) -> list[dict[str, Any]]:
    """The versions of the programme, oldest first."""
    return sorted((each["value"] for each in answer.body["entries"]), key=lambda each: each["Version"])


@router.post("/operations/programmes")
async def publish_programme(request: Request) -> Response:
    """Check a programme, ask for a confirmation, or publish the confirmed programme.

    Somebody else may have published a version since the page was loaded. Publishing would undo it, so it is refused.
    """
    form = dict(await fields_of(request))  # The lines keep their blanks, because YAML needs them.
    file = {"programme": form.get("programme", "").replace("\r\n", "\n")}
    time, do, edited = form.get("effectiveFrom", "").strip(), form.get("do"), form.get("edited", "")
    if do != "check":
        answer = await ask(request, "GET", _PROGRAMMES, limit=1000)
        if not answer.is_good:
            return page("problem.html", problem=answer.body)
        if edited != str(max((each["Version"] for each in _versions(answer)), default=0)):
            return page("problem.html", problem=_NOT_NEWEST)
    if do == "confirm":
        answer = await ask(request, "POST", "/v1/programmes", json=file | ({"effectiveFrom": time} if time else {}))
        return page("programme_outcome.html", answer=answer, is_check=False)
    answer = await ask(request, "POST", "/v1/programmes/check", json=file)
    if do == "publish" and answer.is_good and answer.body["valid"]:
        return page("programme_confirm.html", time=time, edited=edited, **file)
    return page("programme_outcome.html", answer=answer, is_check=True)


@router.post("/operations/simulate")
async def simulate(request: Request) -> Response:
    form = await form_of(request)
    members = ("TotalAmount", "CustomerCardNo", "CustomerType", "StoreID")
    basket: dict[str, Any] = {name: form[name] for name in members if form.get(name)}
    with suppress(KeyError, ValueError):  # The API says what is wrong with a text.
        basket["TotalAmount"] = orjson.loads(basket["TotalAmount"])
    return page("simulation.html", answer=await ask(request, "POST", "/v1/simulate", json=basket))


@router.get("/operations/settings")
async def settings(request: Request) -> Response:
    answer = await ask(request, "GET", "/v1/settings")
    return page_of("settings.html", answer)
