"""Calculates what a basket would earn."""

from functools import partial

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response

from api.current_programme import ProgrammeUnreadable
from api.dependencies import LookupDep, ProgrammeDep
from api.http import problems
from api.http.bodies import JsonRoute
from api.http.responses import FRESHNESS, STALE, json_response, text_headers
from api.routing.problems import COPY_PROBLEMS, FORWARDING_PROBLEMS, CardMoved, NotTheOwner
from api.schemas.simulation import Basket, Simulation
from api.security.permissions import caller_of, moved, needs
from services import clock
from services.api_keys.keys import Scope
from services.domain.accrual import accrual
from services.domain.formats import points_text
from services.domain.receipt_time import applicable_rules, with_campaign_time
from services.state_stores import catalogue

router = APIRouter(prefix="/v1", tags=["programme"], route_class=JsonRoute)

_ONE_AT_A_TIME = CapacityLimiter(1)
"""So that the baskets of one caller cannot use all threads, which scans and tokens need."""


@router.post(
    "/simulate",
    dependencies=[needs(Scope.BALANCE_READ)],
    summary="What a basket would earn",
    response_model=Simulation,
    responses={
        200: {"headers": text_headers({STALE: f"{FRESHNESS[STALE]} Only for a basket with a card."})},
        **problems.responses(
            *problems.BODY_PROBLEMS,
            problems.InvalidParameters,
            CardMoved,
            *COPY_PROBLEMS,
            *FORWARDING_PROBLEMS,
            NotTheOwner,
            ProgrammeUnreadable,
        ),
    },
)
async def simulate(request: Request, basket: Basket, programme: ProgrammeDep, lookup: LookupDep) -> Response:
    """The points that this basket would earn if it arrived now, and their parts. Nothing is stored.

    The API does not know other purchases of the day. So with `cap-per-day`, the purchase can earn less. If the owner of
    the customer's partition does not respond, the balance of a standby decides, and the response has
    `Loyalty-Stale: true`.
    """
    caller = caller_of(request)
    if basket.CustomerCardNo is not None:
        caller.require_card(basket.CustomerCardNo)
    if basket.StoreID:
        caller.require_store(basket.StoreID)
    now = clock.now()
    programmes, purchase = await programme.versions(), basket.purchase(now)
    rules = applicable_rules(purchase, programmes).programme
    purchase = with_campaign_time(purchase, programmes)
    balance, freshness = None, {}
    if basket.CustomerCardNo is not None:
        balance, stale = await lookup.known_value_of(catalogue.BALANCES, basket.CustomerCardNo)
        freshness = {STALE: "true" if stale else "false"}
    # A balance that release 0.1 wrote has no MovedTo and no Blocked.
    if balance and balance.get("MovedTo"):
        raise moved(caller, balance["MovedTo"])
    # A new customer has the first tier.
    tier = (balance["Tier"] or "") if balance else programmes.at(now).tier_for(0)
    is_blocked = bool(balance and balance.get("Blocked"))
    # A basket with thousands of lines and many campaigns takes a second of Python.
    calculate = partial(accrual, purchase, rules, tier, is_blocked=is_blocked)
    earned = await to_thread.run_sync(calculate, limiter=_ONE_AT_A_TIME)
    return json_response(
        {
            "EarnedLoyaltyPoints": points_text(earned.points),
            "Parts": [{"Name": part.name, "LoyaltyPoints": points_text(part.points)} for part in earned.parts],
            "Eligible": rules.is_eligible(purchase.customer_type),
            "Tier": tier or None,
            "ProgrammeVersion": rules.version,
        },
        headers=freshness,
    )
