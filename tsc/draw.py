"""HTML for notebooks: a table, and a chart of boxes with curves between them. Self-contained: no script, no link, no font.

Everything that comes from a model (names, messages) is escaped here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

#: At most this many boxes are drawn; a note says how many more there are.
MOST_BOXES = 60
#: Texts longer than this are shortened in the middle; the whole stands in the tooltip.
MOST_LETTERS = 56
#: Curves that would pass more than this many boxes are drawn as a stub: beyond it they only cover each other.
MOST_LANES = 12

_FILL = {"input": "#e8f1fb", "output": "#e9f6ec", "kernel": "#ffffff", "node": "#ffffff"}
_WIDTH, _LINE, _GAP, _LANE = 460, 16, 22, 9


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a chart: a title, lines below it, the whole text as a tooltip, and what it is ("input", "kernel", ...)."""

    title: str
    lines: tuple[str, ...] = ()
    kind: str = "kernel"

    @property
    def height(self) -> int:
        """Pixels."""
        return _LINE * (1 + len(self.lines)) + 12


def shortened(text: str, most: int = MOST_LETTERS) -> str:
    """`text`, its middle left out where it is long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half - 1]}…{text[-half:]}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of texts; at most MOST_BOXES rows."""
    kept = [*rows]
    cells = ["".join(f"<th style='text-align:left;padding:2px 12px 2px 0'>{escape(h)}</th>" for h in header)]
    cells += ["".join(f"<td style='text-align:left;padding:2px 12px 2px 0' title=\"{escape(c)}\">{escape(shortened(c))}</td>"
                      for c in row) for row in kept[:MOST_BOXES]]
    note = _more(len(kept), "rows")
    return f"<table style='border-collapse:collapse'>{''.join(f'<tr>{c}</tr>' for c in cells)}</table>{note}"


def chart(boxes: Sequence[Box], edges: Iterable[tuple[int, int]], what: str) -> str:
    """Boxes below one another, in order, as inline SVG; `edges` are pairs of box numbers, each from an earlier to a later one.

    Beyond MOST_BOXES a note says how many `what` are not drawn.
    """
    drawn = boxes[:MOST_BOXES]
    tops, y = [], 4
    for box in drawn:
        tops.append(y)
        y += box.height + _GAP
    curves = [_curve(drawn, tops, a, b) for a, b in dict.fromkeys(edges) if a < b < len(drawn)]
    shapes = [_box(box, top) for box, top in zip(drawn, tops)]
    width = _WIDTH + (MOST_LANES + 2) * _LANE + 8
    return (f"<svg width='{width}' height='{max(y - _GAP, 0) + 4}' style='font-family:monospace;font-size:12px'>"
            f"{''.join(curves)}{''.join(shapes)}</svg>{_more(len(boxes), what)}")


def page(title: str, facts: Iterable[str], parts: Iterable[str]) -> str:
    """One `div`: a title, facts (texts) in small print, and parts (HTML)."""
    small = "".join(f"<div style='color:#555'>{escape(fact)}</div>" for fact in facts)
    return f"<div style='font-family:sans-serif;font-size:13px'><b>{escape(title)}</b>{small}{''.join(parts)}</div>"


def _more(count: int, what: str) -> str:
    return f"<div style='color:#555'>… and {count - MOST_BOXES} more {escape(what)}</div>" if count > MOST_BOXES else ""


def _box(box: Box, top: int) -> str:
    whole = escape("\n".join((box.title, *box.lines)))
    texts = [f"<text x='12' y='{top + (k + 1) * _LINE}' fill='{'#555' if k else '#111'}'>{escape(shortened(line))}</text>"
             for k, line in enumerate((box.title, *box.lines))]
    fill = _FILL.get(box.kind, "#ffffff")
    return (f"<g><title>{whole}</title><rect x='4' y='{top}' width='{_WIDTH}' height='{box.height}' rx='5' fill='{fill}' "
            f"stroke='#8a8a8a'/>{''.join(texts)}</g>")


def _curve(boxes: Sequence[Box], tops: Sequence[int], a: int, b: int) -> str:
    """From the right side of box `a` to that of box `b`, further out the more boxes it passes; straight down to the next."""
    if b == a + 1:
        x, start = 40, tops[a] + boxes[a].height
        return f"<path d='M{x} {start} L{x} {tops[b]}' stroke='#8a8a8a' fill='none'/>"
    right, start, end = _WIDTH + 4, tops[a] + boxes[a].height - 8, tops[b] + 8
    if b - a > MOST_LANES:
        stubs = (f"M{right} {y} l{_LANE} 0" for y in (start, end))
        return f"<path d='{' '.join(stubs)}' stroke='#c0c0c0' fill='none' stroke-dasharray='2 2'/>"
    out = right + (b - a) * _LANE
    return f"<path d='M{right} {start} C{out} {start} {out} {end} {right} {end}' stroke='#8a8a8a' fill='none'/>"
