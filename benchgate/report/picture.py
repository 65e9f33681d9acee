"""A chart as a file of its own, on white: where no page lends it a colour."""

from __future__ import annotations

import json
from collections.abc import Mapping

import vl_convert

from benchgate.report.drawing import PAGE_COLOUR

_INK, _PAPER = "#1b1f24", "#ffffff"
_SCALE = 2  # of a PNG


def svg_file(inline: str) -> str:
    """A drawing that stands inline in a page, as a whole file."""
    opening, _, inner = inline.replace('"currentColor"', f'"{_INK}"').partition(">")
    named = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f'{named}><rect width="100%" height="100%" fill="{_PAPER}"/>{inner}\n'


def png_file(spec: Mapping[str, object]) -> bytes:
    """The same picture in pixels, twice as many each way as it is wide and high."""
    text = json.dumps({**spec, "background": _PAPER}).replace(PAGE_COLOUR, _INK)
    return vl_convert.vegalite_to_png(text, scale=_SCALE, allowed_base_urls=[])
