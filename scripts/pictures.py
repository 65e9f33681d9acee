"""Pictures of docs/concepts.md as SVG. They are drawn in `currentColor`, so light and dark pages both show them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from benchgate.model.verdict import Outcome
from scripts.worked_example import EXAMPLES, MARGIN, check_of, verdict_of

_STYLE = (
    "svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}"
    "text{font:14px system-ui,sans-serif;fill:currentColor}.small{font-size:12px}.strong{font-weight:600}"
    ".line{stroke:currentColor;stroke-width:1.5;fill:none}.box{stroke:currentColor;stroke-width:1.5;fill:none}"
    ".shade{fill:currentColor;fill-opacity:.14}.dash{stroke-dasharray:5 4}.dot{fill:currentColor}"
)


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{text}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>'


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    angle = math.atan2(y2 - y1, x2 - x1)
    ends = [(x2 - 9 * math.cos(angle + turn), y2 - 9 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x2, y2), *ends))
    return f'{_line(x1, y1, x2, y2)}<polygon class="dot" points="{corners}"/>'


def flow() -> str:
    """Draw one run from the suite to the exit code."""
    steps = ((10, "suite", "YAML"), (410, "store", "every request"), (550, "gate", "guards, checks"))
    parts = [
        item
        for x, name, detail in steps
        for item in (_box(x, 62, 110, 56), _text(x + 55, 86, name, "strong"), _text(x + 55, 105, detail, "small"))
    ]
    for y, name in ((20, "baseline"), (108, "candidate")):
        parts += [_box(250, y, 120, 52), _text(310, y + 24, name, "strong"), _text(310, y + 42, "deployment", "small")]
    parts += [_box(150, 62, 70, 56), _text(185, 86, "load", "strong"), _text(185, 105, "client", "small")]
    parts += [_arrow(120, 90, 149, 90), _arrow(220, 80, 249, 50), _arrow(220, 100, 249, 130)]
    parts += [_arrow(370, 50, 409, 80), _arrow(370, 130, 409, 100), _arrow(520, 90, 549, 90), _arrow(660, 90, 689, 90)]
    parts += [_text(695, 80, "verdict,", "strong", "start"), _text(695, 98, "exit code", "", "start")]
    return _svg(780, 180, "A run: suite, load client, two deployments, store, gate, verdict", parts)


def blocks() -> str:
    """Draw the order of the arms in four blocks."""
    parts = []
    for block in range(4):
        x = 20 + 185 * block
        order = ("A", "B") if block % 2 == 0 else ("B", "A")
        parts += [_text(x + 80, 24, f"block {block + 1}", "small")]
        for at, arm in enumerate(order):
            left = x + 82 * at
            kinds = ("box", "box shade") if arm == "B" else ("box",)
            parts += [_box(left, 34, 78, 46, kind) for kind in kinds]
            parts.append(_text(left + 39, 62, arm, "strong"))
        parts.append(_text(x + 80, 100, "one log ratio B / A", "small"))
    parts += [_arrow(20, 122, 740, 122), _text(740, 140, "time", "small", "end")]
    parts.append(_text(20, 140, "A = baseline, B = candidate: same prompts, same schedule", "small", "start"))
    return _svg(760, 150, "Blocks A B, B A, A B, B A: both arms are measured close in time", parts)


def outcomes() -> str:
    """Draw the intervals of the worked example's candidates against the margin."""

    def at(change: float) -> float:
        return 300 + (change + 0.05) / 0.20 * 400

    parts = [_box(at(-0.05), 36, at(MARGIN) - at(-0.05), 212, "shade")]
    for row, example in enumerate(EXAMPLES):
        y = 62 + 42 * row
        check, outcome = check_of(example), verdict_of(example).outcome
        assert check.harm is not None and check.lower is not None and check.upper is not None
        low, middle, high = (at(math.expm1(value)) for value in (check.lower, check.harm, check.upper))
        kind = "line dash" if outcome is Outcome.INVALID else "line"
        parts += [_text(10, y + 5, outcome.value, "strong", "start"), _text(125, y + 5, example.name, "small", "start")]
        parts += [_line(low, y, high, y, kind), _line(low, y - 6, low, y + 6), _line(high, y - 6, high, y + 6)]
        parts.append(f'<circle class="dot" cx="{middle:.1f}" cy="{y}" r="4"/>')
    parts += [_line(at(0), 36, at(0), 248), _line(at(MARGIN), 36, at(MARGIN), 248, "line dash")]
    parts += [_text(at(0), 26, "no change"), _text(at(MARGIN), 26, "margin")]
    for tick in (-0.05, 0.0, 0.05, 0.10, 0.15):
        label = f"{100 * tick:+.0f}%".replace("-", "\N{MINUS SIGN}") if tick else "0%"
        parts.append(_text(at(tick), 268, label, "small"))
    parts.append(_text(at(0.05), 288, "change of the median TTFT, with one-sided 95% bounds", "small"))
    return _svg(720, 300, "Five outcomes: confidence intervals against zero and the margin", parts)


PICTURES = {"run.svg": flow, "blocks.svg": blocks, "outcomes.svg": outcomes}
