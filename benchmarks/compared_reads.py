"""Compares reads from two groups of instances in turn: with and without credentials, or of two checkouts."""

import argparse
import random
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from benchmarks import load, restores
from benchmarks.instances import owners, per_core, process_of, served_by, start_instance
from services.messaging.administration import create_topics
from services.settings import Settings
from tests.support.processes import ROOT, ApiProcess
from tests.support.tokens import AUDIENCE, ISSUER, Issuer
from tests.support.waiting import wait_for

CARDS = 400
"""The number of cards. One caller looks up the owner of each card. The default limit is 500 requests a second."""

TOKENS = 1_000


class _Reads(NamedTuple):
    """Reads to send to the first instance of a pair.

    Attributes:
        processes: both instances, whose processor time counts.
    """

    processes: list[psutil.Process]
    url: str
    paths: list[str]
    tokens: list[str]

    def for_each_second(self, seconds: float) -> float:
        """Reads per second of processor time, under full load. Each call sends the tokens in a new random order."""
        shuffled = random.sample(self.tokens, len(self.tokens))
        return per_core(self.processes, self.url, self.paths, seconds, tokens=shuffled)

    def warm_up(self) -> None:
        """Use each token, connection and path before the first measurement."""
        load.run(self.url, self.paths, rate=TOKENS / 2, seconds=3, tokens=self.tokens)


def authenticated_reads(settings: Settings, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Reads per second of processor time with tokens and limits, as a share of those without credentials.

    The benchmark alternates between two groups of two instances. Each read goes to the first instance of a group, which
    forwards reads of the cards of the second instance. In both groups these are exactly a third of the mix.
    """
    issuer = Issuer(directory / "issuer.json", "RS256")
    tokens = [issuer.token(sub=f"caller {number}", exp=time.time() + 3600) for number in range(TOKENS)]
    secured = {
        "api_access": "authenticated",
        "token_issuer": ISSUER,
        "token_audience": AUDIENCE,
        "token_keys": str(issuer.file),
        "instance_secret_file": directory / "instance.secret",
    }
    operator = issuer.token("operate balance:read", sub="operator", exp=time.time() + 3600)
    with ExitStack() as stack:
        unknown = _pair(stack, settings.model_copy(update={"topic_prefix": "unknown-"}), directory, "")
        known = _pair(stack, settings.model_copy(update={"topic_prefix": "known-", **secured}), directory, operator)
        with_tokens, without = _kinds_of_reads(known, tokens), _kinds_of_reads(unknown, [])
        found: dict[str, Any] = {}
        for name, ours in with_tokens.items():
            rounds = _rounds(ours, without[name], options)
            found[f"authenticated_ratio{name}"] = round(median(one / other for one, other in rounds), 3)
            found[f"authenticated_rounds{name}"] = [[round(one), round(other)] for one, other in rounds]
        return found


def reads_of_checkouts(settings: Settings, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Reads per second of processor time, as a share of those of another checkout of this repository."""
    with ExitStack() as stack:
        theirs = _pair(
            stack, settings.model_copy(update={"topic_prefix": "theirs-"}), directory, checkout=Path(options.checkout)
        )
        ours = _pair(stack, settings.model_copy(update={"topic_prefix": "ours-"}), directory)
        of_ours, of_theirs = _kinds_of_reads(ours, []), _kinds_of_reads(theirs, [])
        found = {}
        for name in ("_local", "_forwarded"):
            ratios = sorted(our / their for our, their in _rounds(of_ours[name], of_theirs[name], options))
            found[name[1:]] = {"median": round(median(ratios), 3), "ratios": [round(each, 3) for each in ratios]}
        return found


def _pair(
    stack: ExitStack, settings: Settings, directory: Path, token: str = "", checkout: Path = ROOT
) -> tuple[ApiProcess, ApiProcess]:
    create_topics(settings)
    restores.write_balances(settings, CARDS)
    first, second = (
        stack.enter_context(start_instance(settings, directory, f"{settings.topic_prefix}{number}", checkout=checkout))
        for number in "ab"
    )
    for instance in (first, second):
        instance.wait_until_ready()
        instance.http.headers.update({"Authorization": f"Bearer {token}"} if token else {})
    wait_for("two owners", lambda: owners(first) == 2 and owners(second) == 2)
    second.wait_until_ready()
    return first, second


def _kinds_of_reads(pair: tuple[ApiProcess, ApiProcess], tokens: list[str]) -> dict[str, _Reads]:
    """The mix of reads, local reads, and forwarded reads, by the suffix of their names in the report."""
    first = pair[0]
    paths: dict[bool, list[str]] = {True: [], False: []}
    for number in range(CARDS):
        path = f"/v1/customers/{restores.card(number)}/balance"
        paths[served_by(first, path) == first.url].append(path)
    # The first instance owns one or two of the three partitions, so repeat the cards of each kind as needed.
    local, forwarded = cycle(paths[True]), cycle(paths[False])
    mix = [next(local) if number % 3 else next(forwarded) for number in range(3 * CARDS)]
    kinds = {"": mix, "_local": paths[True], "_forwarded": paths[False]}
    processes = [process_of(each) for each in pair]
    return {name: _Reads(processes, first.url, of_kind, tokens) for name, of_kind in kinds.items()}


def _rounds(ours: _Reads, theirs: _Reads, options: argparse.Namespace) -> list[tuple[float, float]]:
    """Reads per second of processor time of both groups, for each round.

    The order in a round is ours, theirs, theirs, ours. So a steady change in the load of other programs affects both
    groups equally.
    """
    seconds = options.seconds / options.rounds / 2
    ours.warm_up()
    theirs.warm_up()
    rounds = []
    for _ in range(options.rounds):
        first, second, third, fourth = (each.for_each_second(seconds) for each in (ours, theirs, theirs, ours))
        rounds.append((first + fourth, second + third))
    return [(one / 2, other / 2) for one, other in rounds]
