"""A chart as SVG: for each model and measurement, how many times the better peer's speed Tael has.

One file that reads well on a light and on a dark page: it has no background of its own and takes
its colours from what the reader's system prefers.
"""

from xml.sax.saxutils import escape

LABEL_WIDTH, BAR_SPACE, VALUE_WIDTH = 210, 420, 90
BAR, GAP, GROUP_GAP, TOP, BOTTOM = 13, 3, 16, 46, 30
STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #24292f; }
  .small { font-size: 11px; fill: #57606a; }
  .axis { stroke: #8c959f; stroke-dasharray: 3 3; }
  .s0 { fill: #0969da; } .s1 { fill: #54aeff; } .s2 { fill: #bc4c00; } .s3 { fill: #fb8f44; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .axis { stroke: #656c76; }
    .s0 { fill: #4493f8; } .s1 { fill: #a5d6ff; } .s2 { fill: #db6d28; } .s3 { fill: #ffa657; }
  }
"""
SERIES_STYLES = 4


def text(x, y, words, kind="", anchor="start"):
    css = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{css} text-anchor="{anchor}">{escape(words)}</text>'


def legend(series, title):
    parts, x = [text(0, 14, title)], 0
    for index, name in enumerate(series):
        parts.append(f'<rect class="s{index}" x="{x}" y="24" width="11" height="11" rx="2"/>')
        parts.append(text(x + 16, 34, name, "small"))
        x += 30 + 6.2 * len(name)
    return parts


def bars(group, series, y, scale):
    """One model's bars, and the y below them."""
    parts, top = [], y
    for index, name in enumerate(series):
        value = group.get(name)
        if value is None:
            continue
        width = max(1, value * scale)
        parts.append(f'<rect class="s{index}" x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" '
                     f'height="{BAR}" rx="2"/>')
        parts.append(text(LABEL_WIDTH + width + 5, y + BAR - 3, f"{value:.2f}x", "small"))
        y += BAR + GAP
    return parts, top, y


def draw(title, series, groups):
    """series: names of the bars, at most four; groups: {label: {series name: ratio}}."""
    series = list(series)[:SERIES_STYLES]
    largest = max([1.0] + [value for group in groups.values() for value in group.values()])
    scale = BAR_SPACE / largest
    parts, y = legend(series, title), TOP
    for label, group in groups.items():
        drawn, top, y = bars(group, series, y, scale)
        parts += drawn
        parts.append(text(LABEL_WIDTH - 10, (top + y - GAP) / 2 + 4, label, anchor="end"))
        y += GROUP_GAP
    one = LABEL_WIDTH + scale
    parts.append(f'<line class="axis" x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 4}" y2="{y - 10}"/>')
    parts.append(text(one, y + 4, "1x: as fast", "small", "middle"))
    width, height = LABEL_WIDTH + BAR_SPACE + VALUE_WIDTH, y + BOTTOM - 10
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
            + "\n".join(parts) + "\n</svg>\n")
