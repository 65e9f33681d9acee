"""The command `benchgate` as a user calls it, its stored evidence, and plain requests to servers."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchgate.model.run import Evidence
from benchgate.store.repository import Store

_VERDICT_CODES = (0, 10, 11, 12)  # exit codes that come with a document
_LONGEST_S = 900


@dataclass(frozen=True, slots=True)
class Decided:
    """A finished run: its exit code, its verdict as JSON, and all its observations."""

    exit_code: int
    document: dict[str, Any]
    evidence: Evidence

    @property
    def outcome(self) -> str:
        """Return PASS, WARN, BLOCK, INCONCLUSIVE or INVALID."""
        return str(self.document["outcome"])

    @property
    def reason(self) -> str:
        """Return the verdict's own sentence."""
        return str(self.document["reason"])


@dataclass(frozen=True, slots=True)
class Benchgate:
    """The installed command, and a folder for what it writes."""

    program: Path
    folder: Path

    def load(self, url: str, model: str, *options: str) -> dict[str, Any]:
        """Return the document of one `benchgate load`."""
        _, document = self._json("load", url, "--model", model, "--format", "json", *options)
        return document

    def run(self, suite: str, text: str) -> Decided:
        """Return the result of `benchgate run` of a suite with this text, into a store of its own."""
        path, store = self.folder / f"{suite}.yaml", self.folder / f"{suite}.db"
        path.write_text(text, encoding="utf-8")
        for old in self.folder.glob(f"{store.name}*"):
            old.unlink()
        report = str(self.folder / f"{suite}.html")
        options = ("--store", str(store), "--work-dir", str(self.folder / "work"), "--report", report)
        code, document = self._json("run", str(path), *options, "--format", "json")
        with Store.open(str(store)) as opened:
            evidence = opened.evidence(opened.resolve("@latest", partial=True))
        return Decided(code, document, evidence)

    def _json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        command = [str(self.program), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=_LONGEST_S)
        if done.returncode not in _VERDICT_CODES:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.returncode, json.loads(done.stdout)


def counters(metrics_url: str) -> dict[str, float]:
    """Return a server's metrics, series of one name added up; read apart from benchgate's own reader."""
    with urllib.request.urlopen(metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def post(url: str, body: dict[str, object]) -> dict[str, Any]:
    """Return the JSON response to a JSON request."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        document: dict[str, Any] = json.load(answer)
        return document
