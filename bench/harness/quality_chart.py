"""A chart as SVG: bytes of keys and values against the damage, both axes logarithmic.

A colour for each type, a stroke for each policy, a point for each window; one panel for each model.
Reads well on a light and on a dark page, as chart.py does.
"""

import math
from xml.sax.saxutils import escape

from . import chart

LEFT, TOP, WIDTH, HEIGHT, GAP, BOTTOM = 66, 84, 330, 250, 84, 50
STROKES = ("", "6 3", "2 3", "9 3 2 3")
STYLE = """
  .axis, .grid { stroke: #8c959f; } .grid { stroke-opacity: 0.3; }
  .line { fill: none; stroke-width: 1.6; }
  .l0 { stroke: #0969da; } .l1 { stroke: #bc4c00; } .l2 { stroke: #1a7f37; } .l3 { stroke: #8250df; }
  .p0 { fill: #0969da; } .p1 { fill: #bc4c00; } .p2 { fill: #1a7f37; } .p3 { fill: #8250df; }
  @media (prefers-color-scheme: dark) {
    .axis, .grid { stroke: #656c76; }
    .l0 { stroke: #4493f8; } .l1 { stroke: #db6d28; } .l2 { stroke: #3fb950; } .l3 { stroke: #a371f7; }
    .p0 { fill: #4493f8; } .p1 { fill: #db6d28; } .p2 { fill: #3fb950; } .p3 { fill: #a371f7; }
  }
"""


def text(x, y, words, anchor="start"):
    return chart.text(x, y, words, "small", anchor)


def ticks(low, high, steps):
    """Round numbers of a logarithmic axis: `steps` of each power of ten."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [step * 10.0 ** power for power in range(first, last + 1) for step in steps
            if low <= step * 10.0 ** power <= high]


def number(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.4g}"


class Panel:
    """One model's plot."""

    def __init__(self, left, series):
        points = [point for _, _, points in series for point in points]
        self.left = left
        self.x_range = (0.9 * min(x for x, _ in points), 1.1 * max(x for x, _ in points))
        self.y_range = (0.8 * min(y for _, y in points), 1.25 * max(y for _, y in points))

    def x(self, value):
        low, high = map(math.log, self.x_range)
        return self.left + WIDTH * (math.log(value) - low) / (high - low)

    def y(self, value):
        low, high = map(math.log, self.y_range)
        return TOP + HEIGHT * (1 - (math.log(value) - low) / (high - low))

    def axes(self, label, x_name, y_name):
        out = [f'<path class="axis" fill="none" d="M{self.left} {TOP}v{HEIGHT}h{WIDTH}"/>',
               text(self.left, TOP - 10, label),
               text(self.left + WIDTH, TOP + HEIGHT + 34, x_name, "end"),
               text(self.left - 56, TOP - 26, y_name)]
        for value in ticks(*self.x_range, (1, 2, 5)):
            out.append(f'<path class="grid" d="M{self.x(value):.1f} {TOP}v{HEIGHT}"/>')
            out.append(text(self.x(value), TOP + HEIGHT + 16, number(value), "middle"))
        for value in ticks(*self.y_range, (1, 2, 5)):
            out.append(f'<path class="grid" d="M{self.left} {self.y(value):.1f}h{WIDTH}"/>')
            out.append(text(self.left - 6, self.y(value) + 4, number(value), "end"))
        return out

    def line(self, colour, stroke, points):
        where = [(self.x(x), self.y(y)) for x, y in points]
        dash = f' stroke-dasharray="{STROKES[stroke]}"' if STROKES[stroke] else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in where)
        return [f'<polyline class="line l{colour}"{dash} points="{path}"/>',
                *(f'<circle class="p{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in where)]


def legend(colours, strokes):
    out, x = [], 0
    for index, name in enumerate(colours):
        out.append(f'<circle class="p{index}" cx="{x + 5}" cy="32" r="5"/>' + text(x + 15, 36, name))
        x += 34 + 6.6 * len(name)
    for index, name in enumerate(strokes):
        dash = f' stroke-dasharray="{STROKES[index]}"' if STROKES[index] else ""
        out.append(f'<path class="axis line"{dash} d="M{x:.0f} 32h26"/>' + text(x + 31, 36, name))
        x += 48 + 6.6 * len(name)
    return out


def draw(title, x_name, y_name, colours, strokes, panels):
    """panels: {label: [(colour index, stroke index, [(x, y)])]}; every x and y above zero."""
    out, left = [chart.text(0, 14, title), *legend(colours, strokes)], LEFT
    for label, series in panels.items():
        panel = Panel(left, series)
        out += panel.axes(label, x_name, y_name)
        for one in series:
            out += panel.line(*one)
        left += WIDTH + GAP
    width, height = left - GAP + 30, TOP + HEIGHT + BOTTOM
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
            f"<style>{chart.STYLE}{STYLE}</style>\n" + "\n".join(out) + "\n</svg>\n")
