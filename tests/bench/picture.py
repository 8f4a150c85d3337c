"""Time over size, log-log, one panel per placement, as SVG.

Also a program: picture.py JSON > SVG.
"""

import json
import math
import sys
from html import escape

from table import columns, human

WIDTH, HEIGHT, PER_LINE = 400, 300, 3
LEFT, RIGHT, ABOVE, BELOW, LEGEND = 58, 12, 34, 40, 40
# ours is black and thick; the others' colours differ in lightness too (Okabe and Ito's)
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
STYLES = {
    "commd": ("#000000", 2.6, ""),
    "torch commd": ("#000000", 1.6, ' stroke-dasharray="5 3"'),
    "commd op": ("#000000", 1.6, ' stroke-dasharray="1 3"'),
}


def style(name, names):
    if name in STYLES:
        return STYLES[name]
    others = [n for n in names if n not in STYLES]
    return COLOURS[others.index(name) % len(COLOURS)], 1.5, ""


def series(place, name):
    return [
        (row["bytes"], row["times"][name]["p50_us"])
        for row in place["rows"]
        if row["collective"] == "all_reduce" and name in row["times"]
    ]


def us(value):
    return (
        f"{value:g} us"
        if value < 1000
        else f"{value / 1000:g} ms" if value < 1e6 else f"{value / 1e6:g} s"
    )


class Axes:
    """From (bytes, microseconds) to a place in the panel."""

    def __init__(self, points, x0, y0):
        sizes, times = [p[0] for p in points], [p[1] for p in points]
        self.x0, self.y0 = x0, y0
        self.small, self.large = math.log2(min(sizes)), math.log2(max(sizes) * 1.01)
        self.low, self.high = math.floor(math.log10(min(times))), math.ceil(
            math.log10(max(times) * 1.01)
        )

    def x(self, size):
        return (
            self.x0
            + LEFT
            + (math.log2(size) - self.small) / (self.large - self.small) * (WIDTH - LEFT - RIGHT)
        )

    def y(self, time):
        part = (math.log10(time) - self.low) / (self.high - self.low)
        return self.y0 + HEIGHT - BELOW - part * (HEIGHT - ABOVE - BELOW)


def grid(axes, sizes):
    out = []
    bottom, left = axes.y0 + HEIGHT - BELOW, axes.x0 + LEFT
    for power in range(axes.low, axes.high + 1):
        y = axes.y(10.0**power)
        out.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{axes.x0 + WIDTH - RIGHT}" y2="{y:.1f}" '
            'class="g"/>'
        )
        out.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{us(10.0**power)}</text>'
        )
    last = -100
    for size in sizes:
        x = axes.x(size)
        out.append(
            f'<line x1="{x:.1f}" y1="{axes.y0 + ABOVE}" x2="{x:.1f}" y2="{bottom}" class="g"/>'
        )
        if x - last > 46:
            out.append(
                f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{human(size)}</text>'
            )
            last = x
    return out


def panel(place, names, x0, y0):
    lines = {n: series(place, n) for n in names}
    points = [p for line in lines.values() for p in line]
    out = [f'<text x="{x0 + LEFT}" y="{y0 + 20}" class="t">{escape(place["title"])}</text>']
    if not points:
        return out
    axes = Axes(points, x0, y0)
    out += grid(axes, sorted({p[0] for p in points}))
    for name, line in sorted(lines.items(), key=lambda item: item[0] in STYLES):  # ours on top
        if not line:
            continue
        colour, width, dash = style(name, names)
        path = " ".join(f"{axes.x(s):.1f},{axes.y(t):.1f}" for s, t in line)
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}" stroke-linejoin="round"{dash}/>'
        )
    return out


def legend(names, y):
    out, x = [], LEFT
    for name in names:
        colour, width, dash = style(name, names)
        out.append(
            f'<line x1="{x}" y1="{y}" x2="{x + 26}" y2="{y}" stroke="{colour}" '
            f'stroke-width="{width}"{dash}/><text x="{x + 32}" y="{y + 4}">{escape(name)}</text>'
        )
        x += 50 + 7 * len(name)
    return out


def svg(result):
    places = [p for p in result["placements"].values() if p["rows"]]
    names = columns(
        [row for place in places for row in place["rows"] if row["collective"] == "all_reduce"]
    )
    across = min(len(places), PER_LINE) or 1
    down = math.ceil(len(places) / across)
    width, height = (
        max(across * WIDTH, 90 + sum(50 + 7 * len(n) for n in names)),
        down * HEIGHT + 2 * LEGEND,
    )
    machine = result["machine"]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        "<style>text{font:11px sans-serif;fill:#222}.t{font-weight:bold}"
        ".g{stroke:#ddd;stroke-width:1}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" class="t">all_reduce f32 sum, median time; '
        f'{escape(machine["cpu"])}, {machine["cores"]} cores; '
        f'commd {escape(result["commit"][:12])}, {escape(result["date"][:10])}</text>',
    ]
    for i, place in enumerate(places):
        out += panel(place, names, i % across * WIDTH, LEGEND + i // across * HEIGHT)
    out += legend(names, down * HEIGHT + LEGEND + 14)
    return "\n".join(out + ["</svg>"]) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(svg(json.load(file)), end="")
