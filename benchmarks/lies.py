"""Are servers that lie under load kept back, and honest ones that look like them promoted? Whole runs, by seed.

    .venv/bin/python -m benchmarks.lies [--runs 20] [--only NAME] [--keep FILE] [--evals]

Each case is a pair of practice servers and a short suite that knows only their addresses. A case holds when every run
has a wanted outcome and its reasons name what is wrong. `seen-prompts` and `cached-prompts` run the same suite twice
against the same servers and store, as a button to run a job again does. With `--evals` the cases of text that is wrong
under load alone have evals as well, which both servers answer right; such a run takes half a minute. Exits 1 when a
case is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from benchgate.errors import BenchgateError
from benchgate.model.verdict import Verdict
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.sim.process import serve_sim
from benchgate.suite.loader import parse_suite
from benchgate.suite.simulator import SimSettings
from benchmarks.tables import in_table

OWN_MACHINE = {  # servers and load generator share it
    "send_lag_p99": "100ms", "send_lag_max": "1s", "read_delay_p99": "100ms", "read_delay_max": "1s", "cpu": "90%",
    "achieved": "90%",
}  # fmt: skip

Options = Mapping[str, Any]
"""Settings of a simulated server, or keys of a suite."""

SERVER: Options = {"ttft": "40ms", "itl": "4ms", "jitter": "10%"}
QUICK: Options = {
    "workload": {"input": 20, "output": 16}, "blocks": 6, "sweep": [{"stage": "c8", "concurrency": 8, "requests": 24}],
}  # fmt: skip
_ERRORS = {"metric": "error_rate", "max": "5%"}
CHECKS = (
    {"metric": "ttft", "margin": "25%"},
    {"metric": "e2e", "margin": "25%"},
    {"metric": "output_throughput", "margin": "25%"},
    _ERRORS,
)
PACE = ({"metric": "tpot", "margin": "5%"}, {"metric": "output_throughput", "margin": "5%"}, _ERRORS)
KEPT_BACK = ("INVALID", "BLOCK")
PROMOTED = ("PASS", "WARN")  # a small loss of speed inside the margin is a WARN, and the machine may be the cause
_TRUE = (
    "other-model:sim"  # a fault that changes nothing: its answers take the same way through the server as false ones
)
_DEGENERATE = "text-not-degenerate"
_ABOUT_TEXT = f"{_DEGENERATE}|same-text|same-work|answers-there|model-names"  # never said of an honest server
CROWDED = 2  # requests; evals that are asked two at a time are answered right
_ITEMS = 60
_TASK = {
    "task": "say", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "say.jsonl"}},
    "test_split": "test", "output_type": "generate_until", "doc_to_text": "say: {{text}}", "doc_to_target": "text",
    "generation_kwargs": {"until": [], "max_gen_toks": 16, "temperature": 0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
EVALS: Options = {"tasks": ["say.yaml"], "max_tokens": 16, "concurrency": CROWDED}


@dataclass(frozen=True, slots=True)
class Case:
    """Two servers, a suite, the outcomes that are right, and what the reasons of the verdict must and must not match.

    `answers_as`: names of models that the candidate is declared to answer with. `own_ends`: answers end by themselves
    and not at the length that was asked for. `times`: runs of the same suite
    against the same servers and store.
    """

    words: str
    baseline: Options
    candidate: Options
    wanted: Sequence[str]
    names: str = ""
    never: str | None = None
    load: Options = field(default_factory=lambda: QUICK)
    checks: Sequence[Options] = CHECKS
    slo: Options | None = None
    answers_as: Sequence[str] = ()
    own_ends: bool = False
    evals: Options | None = None
    times: int = 1


def _lie(words: str, fault: str, names: str, wanted: Sequence[str] = KEPT_BACK, **more: Any) -> Case:
    return Case(words, {**SERVER, "faults": [_TRUE]}, {**SERVER, "faults": [fault]}, wanted, names, **more)


def _honest(words: str, baseline: Options, candidate: Options, **more: Any) -> Case:
    return Case(words, baseline, candidate, PROMOTED, never=_ABOUT_TEXT, **more)


_ENDS: Options = {"ttft": "40ms", "itl": "6ms", "jitter": "2%", "output_tokens": [24, 26]}
_LONGER: Options = {**QUICK, "workload": {"input": 20, "output": 32}}
_BLANK: Options = {**SERVER, "faults": ["blank-text"]}
_REASONS: Options = {**SERVER, "reasoning_tokens": [4, 12]}
_REMEMBERS: Options = {**SERVER, "faults": ["fast-when-seen:4"]}
_CACHES: Options = {"prefill": "1ms", "decode": "4ms", "prefix_cache": 4096}
_ONE_PROMPT_AT_A_TIME: Options = {"service": "60ms", "itl": "10ms"}

CASES: Mapping[str, Case] = {
    "half-text": _lie("1 half of the text, counted as all", "half-text", "same-text|same-work|character"),
    "reasoning-only": _lie("2 reasoning and no answer", "reasoning-only", "answers-there|without an answer"),
    "blank": _lie("3 blanks under load", f"blank-text:{CROWDED}", _DEGENERATE),
    "zero-width": _lie("3 zero-width text under load", f"zero-width-text:{CROWDED}", _DEGENERATE),
    "repeated": _lie("3 !!!! under load", f"repeated-text:!:{CROWDED}", _DEGENERATE,
                     load={**QUICK, "workload": {"input": 20, "output": 48}}),
    "blank-both": Case("3 blanks of both arms", _BLANK, _BLANK, ("WARN", *KEPT_BACK), _DEGENERATE),
    "seen-prompts": Case(
        "4 fast for prompts it has seen, run twice", {**SERVER, "itl": "6ms", "faults": [_TRUE]},
        {**SERVER, "itl": "18ms", "faults": ["fast-when-seen:3"]}, ("BLOCK",), "tpot",
        checks=({"metric": "tpot", "margin": "20%"}, _ERRORS), times=2,
    ),
    "unasked-call": Case(
        "5 a tool call, none offered", {**_ENDS, "faults": [_TRUE]}, {**_ENDS, "faults": ["unasked-call"]}, KEPT_BACK,
        "tool|error_rate", own_ends=True, load=_LONGER,
    ),
    "second-choice": _lie("5 half of the answer in choice 1", "second-choice", "choice|error_rate"),
    "usage": Case(
        "5 usage +8 % beside 8 % slowness", {**_ENDS, "faults": [_TRUE]},
        {**_ENDS, "itl": "6.48ms", "ttft": "43.2ms", "faults": ["usage-times:1.08"]}, ("BLOCK",),
        "tpot|output_throughput", checks=PACE, own_ends=True, load=_LONGER,
    ),
    "other-model": _lie("5 another model's name", "other-model:tiny-1b", "model-names|tiny-1b", ("WARN",)),
    "merged-tokens": _honest("honest: merges tokens", SERVER, {**SERVER, "chunk_tokens": 4}),
    "reasoning-both": _honest("honest: both arms reason", _REASONS, _REASONS),
    "short-answers": _honest(
        "honest: answers of 2 tokens", SERVER, SERVER, load={**QUICK, "workload": {"input": 20, "output": 2}},
        checks=({"metric": "ttft", "margin": "25%"}, {"metric": "e2e", "margin": "25%"}, _ERRORS),
    ),
    "declared-name": _honest(
        "honest: a gateway renames, declared", {**SERVER, "faults": [_TRUE]},
        {**SERVER, "faults": ["other-model:gateway-1"]}, answers_as=("gateway-1",),
    ),
    "cached-prompts": _honest("honest: both arms remember prompts, run twice", _REMEMBERS, _REMEMBERS, times=2),
    "prefix-cache": _honest(
        "honest: a prefix cache on both arms", _CACHES, _CACHES,
        load={**QUICK, "workload": {"input": 64, "output": 24, "prefix": {"groups": 2, "tokens": 48}}},
    ),
    "burst": _honest(
        "6 equal, one prompt read at a time", _ONE_PROMPT_AT_A_TIME, _ONE_PROMPT_AT_A_TIME,
        load={"workload": {"input": 20, "output": 100}, "blocks": 4,
              "sweep": [{"stage": "c16", "concurrency": 16, "requests": 64}]},
        checks=({"metric": "ttft", "margin": "10%"}, {"metric": "output_throughput", "margin": "5%"},
                {"metric": "goodput"}),
        slo={"ttft": "500ms", "tpot": "50ms", "target": "95%"},
    ),
}  # fmt: skip


UNDER_LOAD = ("blank", "zero-width", "repeated")
"""Cases of text that is wrong under load alone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one run ended, what its reasons are, and how long it took. REFUSED: the suite could not be run."""

    outcome: str
    reasons: tuple[str, ...]
    took_s: float

    def right(self, case: Case) -> bool:
        """Return True for a wanted outcome whose reasons name what is wrong."""
        reasons = "\n".join(self.reasons)
        slandered = case.never is not None and re.search(case.never, reasons) is not None
        return self.outcome in case.wanted and re.search(case.names, reasons) is not None and not slandered


def suite_of(case: Case, urls: Mapping[str, str], seed: int) -> str:
    """Return the suite of a case as text, for servers at the addresses of `before` and `after`. JSON is YAML."""
    deployments: dict[str, dict[str, object]] = {
        name: {"url": url, "model": "sim", "engine": "vllm"} | ({"leave_out": ["ignore_eos"]} if case.own_ends else {})
        for name, url in urls.items()
    }
    if case.answers_as:
        deployments["after"]["answers_as"] = list(case.answers_as)
    suite = {
        "suite": "lies", "seed": seed, "deployments": deployments, "baseline": "before", "candidate": "after",
        "load": dict(case.load), "gate": {"client": OWN_MACHINE, "checks": list(case.checks)},
        **({} if case.slo is None else {"slo": dict(case.slo)}),
        **({} if case.evals is None else {"quality": dict(case.evals)}),
    }  # fmt: skip
    return json.dumps(suite)


def runs_of(case: Case, seed: int) -> list[Ended]:
    """Run the suite of a case against servers of this seed, `times` times over."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        arms = {"before": (case.baseline, 2 * seed), "after": (case.candidate, 2 * seed + 1)}
        urls = {
            name: stack.enter_context(serve_sim(SimSettings.model_validate({**options, "seed": own}))).url
            for name, (options, own) in arms.items()
        }
        rows = [{"id": f"say-{at:02}", "text": f"stone {seed} {at} river"} for at in range(_ITEMS)]
        (Path(scratch) / "say.yaml").write_text(json.dumps(_TASK), encoding="utf-8")
        (Path(scratch) / "say.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return [_run(suite_of(case, urls, seed), Path(scratch)) for _ in range(case.times)]


def with_evals(case: Case) -> Case:
    """Return the case with evals that both servers answer right, as long as they are asked two at a time."""
    return replace(
        case,
        baseline={**case.baseline, "says": "100%"},
        candidate={**case.candidate, "says": "100%"},
        checks=(*case.checks, {"metric": "accuracy", "margin": "10 points"}),
        evals=EVALS,
    )


def _run(text: str, folder: Path) -> Ended:
    began_s = time.monotonic()
    try:
        options = RunOptions(str(folder / "store.db"), folder / "work")
        verdict = run_suite(parse_suite(text, "lies.yaml"), folder, options, Progress()).verdict
    except BenchgateError as error:
        return Ended("REFUSED", (str(error),), time.monotonic() - began_s)
    return Ended(verdict.outcome, tuple(_reasons(verdict)), time.monotonic() - began_s)


def _reasons(verdict: Verdict) -> list[str]:
    checks = [f"{check.id} {check.outcome}: {check.reason}" for check in verdict.checks if check.outcome != "PASS"]
    guards = [f"{guard.id}: {guard.reason}" for guard in verdict.guards if guard.tripped]
    return [*guards, *checks, verdict.reason]


def measured(name: str, case: Case, seeds: Sequence[int], kept: Path | None) -> list[Ended]:
    """Return the runs of a case for every seed. Runs that the file `kept` holds are not run again."""
    found = list[Ended]()
    for seed in seeds:
        known = json.loads(kept.read_text(encoding="utf-8")) if kept is not None and kept.exists() else {}
        key = f"{name} {seed} {crc32(repr(case).encode()):08x}"  # a case that changes is run again
        if key not in known:
            known[key] = [asdict(one) for one in runs_of(case, seed)]
            if kept is not None:
                kept.write_text(json.dumps(known, indent=1), encoding="utf-8")
        ended = [Ended(**{**one, "reasons": tuple(one["reasons"])}) for one in known[key]]
        for one in ended:
            mark = "" if one.right(case) else "  <- MISSED"
            print(f"  {name} {seed}: {one.outcome} {one.took_s:.1f} s{mark}: {one.reasons[0][:160]}", flush=True)
        found += ended
    return found


def _row(name: str, ended: Sequence[Ended]) -> tuple[str, ...]:
    case, outcomes = CASES[name], [one.outcome for one in ended]
    seen = ", ".join(f"{outcomes.count(one)} {one}" for one in sorted(set(outcomes)))
    first = [one.reasons[0].split(":")[0].split(" ")[0] for one in ended if one.outcome not in ("PASS", "REFUSED")]
    named = ", ".join(sorted(set(first))) or "-"
    right = sum(one.right(case) for one in ended)
    took_s = sum(one.took_s for one in ended) / len(ended)
    verdict = "ok" if right == len(ended) else f"MISSED {len(ended) - right} of {len(ended)}"
    return case.words, seen, named, " or ".join(case.wanted), verdict, f"{took_s:.0f} s"


def main() -> int:
    """Run the cases, print a table, and hold them against what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, action="append", help="this case alone; may be repeated")
    parser.add_argument("--runs", type=int, default=20, help="seeds of each case")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--evals", action="store_true", help="with evals, where text is wrong under load alone")
    parser.add_argument("--keep", type=Path, help="keep finished runs in this file, and do not run them again")
    chosen = parser.parse_args()
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.runs)
    cases = {name: CASES[name] for name in chosen.only or CASES}
    if chosen.evals:
        cases |= {name: with_evals(case) for name, case in cases.items() if name in UNDER_LOAD}
    found = {name: measured(name, case, seeds, chosen.keep) for name, case in cases.items()}
    rows = [_row(name, ended) for name, ended in found.items()]
    print("\n".join(in_table(("case", "outcomes seen", "named first", "wanted", "", "a run takes"), rows)))
    missed = [name for name, ended in found.items() if not all(one.right(CASES[name]) for one in ended)]
    print(f"MISSED: {', '.join(missed)}" if missed else "held: every case in every run")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
