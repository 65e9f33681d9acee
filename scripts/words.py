"""Words of the documentation, by page, and the mean length of its sentences.

    .venv/bin/python -m scripts.words

Counts what is written by hand: code blocks, HTML and generated parts are left out. Words of tables count, but not as
sentences. Exits 1 where a limit is passed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = {"docs": 32_000, "README.md": 700, "ARCHITECTURE.md": 1_000}
LONGEST_MEAN = 18.0
_GENERATED = re.compile(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[\"(])|\n\s*\n")


def prose_of(markdown: str) -> tuple[str, str]:
    """Return the text of a page outside and inside of its tables."""
    text = _GENERATED.sub("", markdown)
    text = re.sub(r"```.*?```|<!--.*?-->|<svg.*?</svg>", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]+>", "", text)
    lines = text.split("\n")
    tables = "\n".join(line.replace("|", " ") for line in lines if line.startswith("|") and set(line) - set("|-: "))
    prose = "\n".join(
        "" if line.startswith(("|", "#")) else re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", line) for line in lines
    )
    return prose, tables


def words_in(text: str) -> int:
    """Return the number of words; a code span is one."""
    return len(re.findall(r"\S*\w\S*", re.sub(r"`[^`]*`", "code", text)))


def sentences_in(prose: str) -> list[int]:
    """Return the length of each sentence in words."""
    return [count for sentence in _SENTENCE_END.split(prose) if (count := words_in(sentence))]


def main() -> int:
    """Print a line for each page and the totals, and hold them against the limits."""
    pages = [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    totals = dict.fromkeys(LIMITS, 0)
    lengths: list[int] = []
    for page in pages:
        markdown = page.read_text(encoding="utf-8")
        prose, tables = prose_of(markdown)
        sentences = sentences_in(prose)
        count = words_in(prose) + words_in(tables)
        name = page.relative_to(ROOT).as_posix()
        total = "docs" if name.startswith("docs/") else name
        if total in totals:
            totals[total] += count
        lengths += sentences
        average, longest = sum(sentences) / max(1, len(sentences)), max(sentences, default=0)
        print(f"{count:7,} words, {average:5.1f} a sentence, longest {longest:3}  {name}")
    mean = sum(lengths) / max(1, len(lengths))
    passed = [
        f"{name}: {totals[name]:,} words, at most {limit:,}" for name, limit in LIMITS.items() if totals[name] > limit
    ]
    passed += [f"{mean:.1f} words a sentence, at most {LONGEST_MEAN:g}"] * (mean > LONGEST_MEAN)
    print(f"{totals['docs']:7,} words in docs, {mean:.1f} a sentence")
    print(*(f"PASSED THE LIMIT: {line}" for line in passed), sep="\n")
    return int(bool(passed))


if __name__ == "__main__":
    sys.exit(main())
