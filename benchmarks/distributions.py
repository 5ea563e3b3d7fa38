"""Draws cumulative distributions: for each value, the share of the samples that are not larger."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from benchmarks.svg import COLOURS, svg

_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 900, 420, 60, 20, 18
_SHARES = (0, 25, 50, 75, 90, 99, 100)


def picture(series: Mapping[str, Sequence[float]], unit: str, share: str) -> str:
    """An SVG with a curve for each series. The values are positive, and their axis is logarithmic."""
    values = np.concatenate([np.asarray(each) for each in series.values()])
    low, high = 10 ** np.floor(np.log10(values.min())), 10 ** np.ceil(np.log10(values.max()))

    def x(value: float) -> float:
        return float(_LEFT + _WIDTH * np.log(value / low) / np.log(high / low))

    def y(percent: float) -> float:
        return _TOP + _HEIGHT * (1 - percent / 100)

    ticks = [digit * 10**power for power in range(int(np.log10(low)), int(np.log10(high))) for digit in (1, 2, 5)]
    parts = [_line(x(tick), y(0), x(tick), y(100), f"{tick:g}", (x(tick), y(0) + _LINE)) for tick in [*ticks, high]]
    parts += [_line(x(low), y(each), x(high), y(each), f"{each} %", (x(low) - 30, y(each) + 4)) for each in _SHARES]
    parts.append(f'<text x="{_LEFT + _WIDTH / 2}" y="{y(0) + 2 * _LINE}">{escape(unit)} ({escape(share)})</text>')
    for number, (name, samples) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(np.percentile(samples, each)):.1f},{y(each):.1f}" for each in range(101))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT}" y="{y(0) + (number + 3) * _LINE}" fill="{colour}">{escape(name)}</text>')
    height = _TOP + _HEIGHT + (len(series) + 4) * _LINE
    return svg(_WIDTH + 2 * _LEFT, height, parts)


def _line(x1: float, y1: float, x2: float, y2: float, label: str, at: tuple[float, float]) -> str:
    line = f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
    return f'{line}<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="middle">{label}</text>'
