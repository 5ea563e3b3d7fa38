"""Tiers: which one so many points reach, and what it is worth."""

from decimal import Decimal

from services.domain.programme import Programme

_ONE = Decimal(1)


def tier_for(points: int, programme: Programme) -> str:
    """The highest tier that so many hundredths in a period reach; empty: none."""
    name = ""
    for tier in programme.tiers:
        if tier.points <= points:
            name = tier.name
    return name


def rank(name: str, programme: Programme) -> int:
    """0 for the lowest tier; -1 for none, and for one that this version of the programme does not know."""
    return next((number for number, tier in enumerate(programme.tiers) if tier.name == name), -1)


def multiplier(name: str, programme: Programme) -> Decimal:
    """Of base points; 1 for none, and for a tier that this version of the programme does not know."""
    return next((tier.multiplier for tier in programme.tiers if tier.name == name), _ONE)
