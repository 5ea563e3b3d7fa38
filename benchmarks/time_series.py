"""Draws time series: one chart for each measure, with one line for each part."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from benchmarks.svg import COLOURS, svg

_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE, _GAP = 900, 160, 70, 30, 18, 60


def picture(times: Sequence[float], charts: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """An SVG. The times are in seconds, and the axis shows minutes since the first one. Each chart begins at zero."""
    minutes = (np.asarray(times) - times[0]) / 60
    parts = []
    for place, (title, lines) in enumerate(charts.items()):
        top = _TOP + place * (_HEIGHT + _GAP)
        parts.append(f'<text x="{_LEFT}" y="{top - 8}">{escape(title)}</text>')
        parts += _chart(top, minutes, lines)
    height = _TOP + len(charts) * (_HEIGHT + _GAP)
    return svg(_WIDTH + 3 * _LEFT, height, parts)


def _chart(top: float, minutes: np.ndarray, lines: Mapping[str, Sequence[float]]) -> list[str]:
    highest = max((max(series) for series in lines.values()), default=0) or 1.0
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = top + _HEIGHT * (1 - share)
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + _WIDTH}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{highest * share:,.0f}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, minute = _LEFT + _WIDTH * share, minutes[-1] * share
        parts.append(f'<text x="{x}" y="{top + _HEIGHT + _LINE}" text-anchor="middle">{minute:.0f} min</text>')
    for number, (name, series) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        across = _LEFT + _WIDTH * minutes / (minutes[-1] or 1.0)
        down = top + _HEIGHT * (1 - np.asarray(series) / highest)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = _LINE * (number + 0.5)
        parts.append(f'<text x="{_LEFT + _WIDTH + 8}" y="{top + label}" fill="{colour}">{escape(name)}</text>')
    return parts
