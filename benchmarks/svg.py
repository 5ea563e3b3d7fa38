"""What all pictures of benchmarks have in common."""

from collections.abc import Iterable

COLOURS = ("#0b5fa5", "#c2410c", "#15803d", "#7e22ce", "#b91c1c", "#0e7490", "#a16207", "#334155")


def svg(width: int, height: int, parts: Iterable[str]) -> str:
    """A picture of this size with a white background. The parts are elements of SVG."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
