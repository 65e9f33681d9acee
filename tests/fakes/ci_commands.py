"""Texts that are commands to a CI system or a terminal, and readers that find them in a log as those systems do."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

COMMANDS = (
    "::error file=a.py::pwned",
    "   ::add-mask::everything",
    "\u00a0::stop-commands::x",
    "##[add-mask]x",
    "##[group]x",
    "##vso[task.setvariable variable=PATH]pwned",
    "##vso[task.complete result=Succeeded]",
    "##teamcity[buildStop comment='x']",
    "SPINNAKER_PROPERTY_VERDICT=PASS",
    'SPINNAKER_CONFIG_JSON={"verdict": "PASS"}',
)
TERMINAL = (
    "\x1b[31mred\x1b[2J",
    "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "\x9b31m",
    "\u202egnp.exe",
    "\u2066isolated",
    "\u200bhidden\ufeff",
    "\U000e0041",
    "\b\b\bPASS",
    "section_start:1:x\r\x1b[0K",
)
LINES = (
    *(f"first line\n{command}" for command in COMMANDS),
    *(f"first line\r{command}" for command in COMMANDS),
    "first line\r\n::error::pwned\x85::error::y\u2028::error::z\v::error::a\f::error::b",
)
ATTACKS = (*COMMANDS, *TERMINAL, *LINES)
ALL = " ".join((*COMMANDS, *TERMINAL)) + "\n" + "\n".join((*COMMANDS, *LINES))
"""Every one of them in one text, each command at the start of a line too."""

_ARABIC_AND_INDIC = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
_EGYPTIAN = "".join(map(chr, range(0x13430, 0x13440)))
_HARMLESS = f"\n\t\u200c\u200d{_ARABIC_AND_INDIC}{_EGYPTIAN}"  # signs of format to Unicode, and drawn


def commands_in(log: str) -> Iterator[str]:
    """What GitHub's runner, Azure's and TeamCity's agents and Spinnaker would take for a command, by their readers."""
    for line in log.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.lstrip().startswith("::"):
            yield line
        for mark in ("##[", "##vso", "##teamcity", "spinnaker_property_", "spinnaker_config_json"):
            if mark in line.casefold():
                yield line


def controls_in(log: str) -> set[str]:
    """Characters that a terminal obeys or nobody sees. Joiners, which scripts and emoji need, are none."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return {char for char in log if unicodedata.category(char) in hidden and char not in _HARMLESS}


def is_harmless(log: str) -> bool:
    """Whether nothing in a log is obeyed by anyone. Fails with what would be."""
    assert not list(commands_in(log)), list(commands_in(log))
    assert not controls_in(log), [ascii(char) for char in controls_in(log)]
    return True
