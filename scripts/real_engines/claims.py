"""A claim, the figures it rests on, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Notebook:
    """The claims of one run, shown as they are made."""

    failed: list[str] = field(default_factory=list)
    made: int = 0

    def claim(self, what: str, held: bool, figures: str) -> None:
        """Note a claim and show it."""
        self.made += 1
        print(f"{'ok  ' if held else 'FAIL'}  {what}: {figures}", flush=True)
        if not held:
            self.failed.append(what)

    def say(self, text: str) -> None:
        """What is being done, or a figure that nothing hangs on."""
        print(f"      {text}", flush=True)

    def conclude(self) -> int:
        """The last line, and the exit status: 0 when there was a claim and every one held."""
        if self.failed or not self.made:
            print(f"\n{len(self.failed)} of {self.made} claims failed: {'; '.join(self.failed) or 'none was made'}")
            return 1
        print(f"\nall {self.made} claims held")
        return 0
