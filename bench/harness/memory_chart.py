"""A chart as SVG: what the ledger says is used, part upon part, over the seconds of a run.

Reads well on a light and on a dark page, as chart.py does.
"""

from xml.sax.saxutils import escape

from . import chart

LEFT, TOP, WIDTH, HEIGHT, RIGHT, BOTTOM = 62, 58, 620, 260, 20, 58
COLOURS = {"weights": "#54aeff", "kv": "#0969da", "activations": "#fb8f44", "tokenizer": "#8250df",
           "prefix": "#1a7f37", "snapshot": "#bf3989", "server": "#bc4c00", "kernel": "#6e7781",
           "runtime": "#afb8c1"}
STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #24292f; }
  .small { font-size: 11px; fill: #57606a; }
  .axis { stroke: #8c959f; } .budget { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 3; }
  .pss { fill: none; stroke: #24292f; stroke-width: 1.2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .axis { stroke: #656c76; }
    .pss { stroke: #e6edf3; }
  }
"""


def text(x, y, words, kind="small", anchor="start"):
    return chart.text(x, y, words, kind, anchor)


def legend(names):
    parts, x = [], 0
    for name in names:
        parts.append(f'<rect x="{x}" y="24" width="11" height="11" rx="2" fill="{COLOURS[name]}"/>')
        parts.append(text(x + 16, 34, name))
        x += 34 + 6.4 * len(name)
    parts.append(f'<path class="pss" d="M{x:.0f} 30h16"/>' + text(x + 21, 34, "PSS of the process"))
    parts.append(f'<path class="budget" d="M{x + 140:.0f} 30h16"/>' + text(x + 161, 34, "budget"))
    return parts


def step_of(largest):
    """A round number of megabytes for four to eight lines."""
    for step in (5, 10, 20, 25, 50, 100, 200, 250, 500, 1000):
        if largest / step <= 8:
            return step
    return 2000


def draw(title, ledger, pss, budget, events):
    """ledger: [(seconds, {tag: bytes})]; pss: [(seconds, bytes)]; events: [(seconds, words)]."""
    end = max(ledger[-1][0], pss[-1][0] if pss else 0)
    top = 1.06 * max([budget] + [value for _, value in pss])

    def x(seconds):
        return LEFT + WIDTH * seconds / end

    def y(value):
        return TOP + HEIGHT * (1 - value / top)

    tags = [tag for tag in COLOURS if any(parts.get(tag, 0) for _, parts in ledger)]
    out = [text(0, 14, title, "title"), *legend(tags)]
    below = [0] * len(ledger)
    for tag in tags:
        above = [low + parts.get(tag, 0) for low, (_, parts) in zip(below, ledger, strict=True)]
        points = [f"{x(at):.1f},{y(high):.1f}" for (at, _), high in zip(ledger, above, strict=True)]
        points += [f"{x(at):.1f},{y(low):.1f}"
                   for (at, _), low in zip(reversed(ledger), reversed(below), strict=True)]
        out.append(f'<polygon fill="{COLOURS[tag]}" points="{" ".join(points)}"/>')
        below = above
    if pss:
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in pss)
        out.append(f'<polyline class="pss" points="{points}"/>')
    out.append(f'<path class="budget" d="M{LEFT} {y(budget):.1f}h{WIDTH}"/>')
    step = step_of(top / 1e6)
    for megabytes in range(0, int(top / 1e6) + 1, step):
        out.append(text(LEFT - 8, y(megabytes * 1e6) + 4, f"{megabytes} MB", anchor="end"))
    out.append(f'<path class="axis" d="M{LEFT} {TOP}v{HEIGHT}h{WIDTH}"/>')
    for index, (at, words) in enumerate(events):
        out.append(f'<path class="axis" d="M{x(at):.1f} {TOP}v{HEIGHT + 6 + 13 * (index % 3)}"/>')
        out.append(text(x(at) + 3, TOP + HEIGHT + 14 + 13 * (index % 3), words))
    out.append(text(LEFT + WIDTH, TOP + HEIGHT + 52, f"{end:.0f} s", anchor="end"))
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n<title>{escape(title)}</title>\n'
            f"<style>{STYLE}</style>\n" + "\n".join(out) + "\n</svg>\n")
