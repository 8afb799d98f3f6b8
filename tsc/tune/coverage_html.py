"""The picture of a Coverage: one HTML file without script, link or font, which any browser shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from tsc.draw import page, shortened
from tsc.tune.coverage import Coverage, Grid, KernelMap

_CELL, _LEFT, _TOP = 18, 64, 8
_PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#222255")
#: At most so many kernels are drawn, those that take most time.
MOST_KERNELS = 40


def coverage_html(coverage: Coverage, title: str) -> str:
    """A whole HTML document."""
    grid, kernels = coverage.grid, coverage.kernels
    dims = ", ".join(f"{name} {sizes[0]} to {sizes[-1]}" for name, sizes in grid.axes) or "one shape"
    fixed = ", ".join(f"{name} = {size}" for name, size in grid.others.items())
    facts = [f"target {coverage.target}, {coverage.threads} threads, {dims}" + (f"; {fixed}" if fixed else ""),
             "Times are what the model of costs expects of the Variant that runs; a cross is where no size within a factor of "
             "two was measured."]
    parts = []
    if kernels:
        times, work = (np.sum([getattr(k, name) for k in kernels], axis=0) for name in ("nanoseconds", "instances"))
        far = np.any([k.far for k in kernels], axis=0)
        parts += ["<h3>All kernels: speed as a share of the best in range</h3>", _rates(grid, times, work, far)]
    for kernel in kernels[:MOST_KERNELS]:
        parts += _kernel(grid, kernel)
    if len(kernels) > MOST_KERNELS:
        parts.append(f"<div>… and {len(kernels) - MOST_KERNELS} more kernels</div>")
    if coverage.unknown:
        names = escape(", ".join(coverage.unknown[:8]))
        parts.append(f"<div>no times are known of {len(coverage.unknown)} kernels: {names}</div>")
    body = page(f"shape coverage of {title}", facts, parts)
    return (f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'/><title>{escape(title)}</title></head>"
            f"<body style='margin:24px;max-width:1200px'>{body}</body></html>")


def _kernel(grid: Grid, kernel: KernelMap) -> list[str]:
    head = f"{kernel.name}: {kernel.launches} launches, node {shortened(kernel.node)}"
    parts = [f"<h3>{escape(head)}</h3>", _rates(grid, kernel.nanoseconds, kernel.instances, kernel.far)]
    if len(kernel.configs) > 1:
        parts += [_winners(grid, kernel), _legend(kernel)]
    if kernel.check is not None:
        mean, worst, sizes = kernel.check
        parts.append(f"<div>what runs has {mean:.1%} of the speed of the fastest on average over {sizes} measured sizes, "
                     f"{worst:.1%} at worst</div>")
    if len(kernel.curve) > 1:
        parts.append(_curve(kernel.curve))
    return parts


def _rates(grid: Grid, nanoseconds: NDArray[np.float64], work: NDArray[np.float64], far: NDArray[np.bool_]) -> str:
    """A map of statement instances a nanosecond, beside the most."""
    rates = work / np.maximum(nanoseconds, 1e-3)
    most = max(float(rates.max()), 1e-12)

    def cell(at: tuple[int, ...]) -> tuple[str, str]:
        share = float(rates[at]) / most
        text = f"{share:.0%} of the best, {_time(float(nanoseconds[at]))}" + (", nothing near was measured" if far[at] else "")
        return _shade(share), text

    return _map(grid, cell, far)


def _winners(grid: Grid, kernel: KernelMap) -> str:
    def cell(at: tuple[int, ...]) -> tuple[str, str]:
        number = int(kernel.runs[at])
        return _PALETTE[number % len(_PALETTE)], f"Variant {number}: {kernel.configs[number]}"

    return _map(grid, cell, np.zeros(grid.shape, np.bool_))


def _legend(kernel: KernelMap) -> str:
    shapes = []
    for number, config in enumerate(kernel.configs):
        y, share = _TOP + number * _CELL, np.mean(kernel.runs == number)
        shapes.append(f"<rect x='{_LEFT}' y='{y}' width='12' height='12' fill='{_PALETTE[number % len(_PALETTE)]}'/>")
        shapes.append(_text(_LEFT + 18, y + 11, f"Variant {number}, {share:.0%} of the range: {config}"))
    return _svg(_LEFT + 700, _TOP + len(kernel.configs) * _CELL, shapes, "block")


def _map(grid: Grid, cell: Callable[[tuple[int, ...]], tuple[str, str]], far: NDArray[np.bool_]) -> str:
    """Cells with a colour and a tooltip; the last axis runs to the right, the one before it down."""
    axes = [("", (0,))] * (2 - len(grid.axes)) + [*grid.axes]
    (down, rows), (right, columns) = axes
    shapes = []
    for i in range(len(rows)):
        for j in range(len(columns)):
            at = (i, j)[2 - len(grid.axes):]
            fill, text = cell(at)
            x, y = _LEFT + j * _CELL, _TOP + i * _CELL
            where = ", ".join(f"{name}={sizes[k]}" for (name, sizes), k in zip(grid.axes, at))
            shapes.append(f"<g><title>{escape(f'{where}: {text}' if where else text)}</title><rect x='{x}' y='{y}' "
                          f"width='{_CELL - 1}' height='{_CELL - 1}' fill='{fill}'/>")
            if far[at]:
                shapes.append(f"<path d='M{x + 5} {y + 5} l7 7 m0 -7 l-7 7' stroke='#cc3311'/>")
            shapes.append("</g>")
    bottom = _TOP + len(rows) * _CELL
    labels = [_text(_LEFT - 6, _TOP + i * _CELL + 13, f"{down}={size}" if i == 0 else str(size), "end")
              for i, size in enumerate(rows) if down and (i % 4 == 0 or i == len(rows) - 1)]
    labels += [_text(_LEFT + j * _CELL, bottom + 14, f"{right}={size}" if j == 0 else str(size))
               for j, size in enumerate(columns) if right and j % 4 == 0]
    return _svg(_LEFT + len(columns) * _CELL + 40, bottom + 22, [*shapes, *labels])


def _curve(curve: Sequence[tuple[int, float]]) -> str:
    """The tuner's curve: how many times as fast as the first config, by how many were measured."""
    width, height, top = 320, 90, max(1.02, max(gain for _, gain in curve))
    low = min(1.0, min(gain for _, gain in curve))
    points = [(_LEFT + width * k / (len(curve) - 1), _TOP + height * (top - gain) / (top - low))
              for k, (_, gain) in enumerate(curve)]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    shapes = [f"<path d='{path}' stroke='#4477aa' fill='none'/>"]
    shapes += [f"<g><title>{count} configs measured: {gain:.3f} times as fast as untuned</title>"
               f"<rect x='{x - 3:.1f}' y='{y - 3:.1f}' width='6' height='6' fill='#4477aa'/></g>"
               for (x, y), (count, gain) in zip(points, curve)]
    labels = [_text(x, _TOP + height + 16, str(count), "middle") for (x, _), (count, _) in zip(points, curve)]
    labels.append(_text(_LEFT + width + 16, _TOP + height + 16, "configs measured"))
    labels += [_text(_LEFT - 6, _TOP + 10, f"{top:.2f}x", "end"), _text(_LEFT - 6, _TOP + height, f"{low:.2f}x", "end")]
    return _svg(_LEFT + width + 140, _TOP + height + 24, [*shapes, *labels], "block")


def _svg(width: float, height: float, shapes: Sequence[str], display: str = "inline-block") -> str:
    style = f"font-family:monospace;font-size:11px;display:{display}"
    return f"<svg width='{width:.0f}' height='{height:.0f}' style='{style}'>{''.join(shapes)}</svg>"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}' fill='#333'>{escape(text)}</text>"


def _shade(share: float) -> str:
    """From nearly white to dark blue."""
    share = min(1.0, max(0.0, share))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip((247, 251, 255), (8, 48, 107)))


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"
