"""A claim, the figures it rests on, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass, field

from scripts.real_engines.command import Benchgate
from scripts.real_engines.environments import Places
from scripts.real_engines.servers import Running


@dataclass(slots=True)
class Notebook:
    """The claims of one run, printed as they are made."""

    failed: list[str] = field(default_factory=list)
    made: int = 0
    engine: str = ""  # printed before each claim

    def claim(self, text: str, held: bool, figures: str) -> None:
        """Record a claim and print it."""
        self.made += 1
        text = f"{self.engine}: {text}" if self.engine else text
        print(f"{'ok  ' if held else 'FAIL'}  {text}: {figures}", flush=True)
        if not held:
            self.failed.append(text)

    def note(self, text: str) -> None:
        """Print the current step, or a figure that no claim rests on."""
        print(f"      {text}", flush=True)

    def conclude(self) -> int:
        """Print the last line and return the exit status: 0 when there was a claim and every one held."""
        if self.failed or not self.made:
            print(f"\n{len(self.failed)} of {self.made} claims failed: {'; '.join(self.failed) or 'none was made'}")
            return 1
        print(f"\nall {self.made} claims held")
        return 0


@dataclass(frozen=True, slots=True)
class Session:
    """One running engine with everything that claims about it need."""

    book: Notebook
    benchgate: Benchgate
    places: Places
    server: Running
