"""Texts that try to become something else in a report, and a run that carries one of them in every field it can."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import date
from enum import Enum
from typing import TypeVar

from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastCheck, PastRun
from benchgate.model.noise import FalseBlocks, NoiseKey, NoiseProfile, NoiseSpread, SelfDisagreement
from benchgate.model.records import DivergenceItem, DivergenceObservation, EvalItem, RequestColumns
from benchgate.model.run import BudgetReading, DeploymentFault, Evidence, LoadObservation, Resumption, Run
from benchgate.model.telemetry import Gauge, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import (
    CheckResult,
    Difference,
    GuardResult,
    Outcome,
    Scale,
    Unit,
    Verdict,
    Waiver,
    WaiverState,
    WaiverUse,
)
from benchgate.report.section import Charts, Fold, Lines, Part, Section
from benchgate.report.table import Table, number_columns, text_columns
from benchgate.report.view import ReportView, report_view
from tests.fakes import evidence as fake

T = TypeVar("T")
BENIGN = "benign"

TEXTS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><svg onload=alert(1)>",
    "<img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '" style="position:fixed;inset:0" x="',
    "<svg/onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<a href=javascript:alert(1)>here</a>",
    "<meta http-equiv=refresh content=0;url=https://evil.example>",
    "<!-- --><b>bold</b><!--",
    "<![CDATA[<b>]]>",
    "&lt;b&gt;&#60;script&#62;",
    "{{ 7 * 7 }}{% raw %}",
    "</pre></details></td></table><h1>PASS</h1>",
    "<base href=//evil.example/>",
    "<form action=//evil.example><input name=a></form>",
    "\x00\x1b[2J\x1b]0;title\x07\x9b31m",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "lone surrogate \ud800 \udfff",
    "first line\n::add-mask::everything\r\n::stop-commands::x\x85::error::pwned\u2028::error::y",
    "::error file=a.py,line=1::pwned",
    "   ::set-output name=verdict::pass",
    "##[set-output name=verdict]pass ##vso[task.complete result=Succeeded] ##teamcity[x]",
    "@octocat and @org/team &#64;team &commat;team",
    "fixes #123, GH-124, octo/repo#5",
    "https://evil.example www.evil.example mailto:a@b.c HTTP://EVIL.example",
    "[link](https://evil.example) ![image](https://evil.example/x.png) [ref][1]",
    "| cell | break \\| and \\\\| again |",
    "``` fence\n# heading\n~~~\n- item\n> quote",
    "# heading",
    "- item",
    "1. item",
    "`code` ``more`` **bold** _under_ ~~gone~~ $math$ <b>html</b>",
    "ends with a backslash \\",
    "=cmd|'/c calc'!A1",
    "NUL, then ../../../etc/passwd %0d%0a",
    "漢字 🧪 اردو नमस्ते",
    "x" * 1200,
    "<" * 100 + "&" * 100,
    "--> <!-- benchgate:tiny-q4:1 --> <b>outside</b> <!--",
    "]]><script>alert(1)</script><![CDATA[",
    "'\"`><svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<math><mtext></mtext><mglyph><style></math><img src=x onerror=alert(1)>",
    "<style>*{background:url(https://evil.example/x)}</style>",
    "red;background:url(//evil.example/)} body{display:none",
    '\\"; alert(1); //</script>',
    "${alert(1)}`;alert(1)//",
    "{% include '/etc/passwd' %}{# gone #}{{ view.__class__.__mro__ }}{{ ''.join(view) }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "&#x3c;script&#x3e;&NewLine;&Tab;&lt;/script&gt;",
    "&#0000064;octocat &#x40;octocat \\@octocat <span>@</span>octocat",
    "@\u200boctocat @\u00adoctocat \uff20octocat a@octocat.example",
    "\u2067isolated\u2069 \u061c\u180e\u2060 \U000e0041\U000e0042",
    "joined \u200d\u200c and heaped e" + "\u0301" * 60,
    "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\\x08\x08\x7f",
    "[x]: https://evil.example 'title'\n[x] [^1]\n[^1]: note",
    "<https://evil.example> <a@b.example> ftp://evil.example",
    "![x](data:image/png;base64,AAAA) [a](javascript:alert(1))",
    "~~~html\n<b>x</b>\n~~~",
    "heading\n===\nanother\n---\n***",
    "    indented code\n\tand a tab",
    "<details open><summary>PASS</summary></details>",
    "- [x] done\n* [ ] open\n+ more",
    "> [!CAUTION]\n> not this one",
    ":octocat: :+1: $$\\frac{1}{0}$$ $`x`$",
    "a | b\n--- | ---\nc | d",
    '\t=1+1\r=HYPERLINK("https://evil.example")',
    "@SUM(1+1)*cmd|'/c calc'!A0",
    "\uff1d1+1",
    "verdict=PASS\nexit-code=0\nEOF",
    "%0A::error::pwned%0D::set-env name=PATH::x",
    "\r::add-path::/pwned\n::group::x\n::debug::y",
    "##[error]pwned\n##[add-mask]x\n[command]echo",
    "0123456789abcdef0123456789abcdef01234567 octo/repo@0123456 octo#1",
)


JOINED = tuple(" ".join(TEXTS[start : start + 6]) for start in range(0, len(TEXTS), 6))
"""All of them, six in one: where only one that gets through is told from none, and a text's beginning means nothing."""


def run(text: str) -> Run:
    """The hand-written run with the text wherever a suite or a server can put one."""
    benign = fake.run()
    deployments = {
        arm: replace(
            deployment,
            name=text,
            model=text,
            engine=text,
            url=text,
            settings={"weights": text, f"key {text}": arm.value, "nested": {text: [text]}},
            facts={"version": text, text: arm.value},
        )
        for arm, deployment in benign.arms.items()
    }
    return replace(
        benign,
        id=text,
        suite_name=text,
        label=text,
        tool_version=text,
        started_at=text,
        finished_at=text,
        suite_sha256=text,
        suite={**benign.suite, "change": text.encode("utf-8", "replace").decode()},  # a suite is UTF-8
        environment={"host": text, f"key {text}": {"nested": text}},
        arms=deployments,
    )


def evidence(text: str) -> Evidence:
    """The hostile run with the text wherever a model, a server or the harness can put one."""
    benign = fake.evidence()
    assert benign.shadow is not None
    shadow_items = tuple(
        replace(
            item,
            prompt_id=f"{i}{text}",
            error=text,
            prompt_text=text,
            primary_text=text,
            candidate_text=text,
            primary_finish=text,
            stratum=text,
            judge_error=text,
            similarity_error=None if i else text,  # a prompt without a similarity is no example
        )
        for i, item in enumerate(benign.shadow.items)
    )
    return Evidence(
        run=run(text),
        load=tuple(_with_text(observation, text) for observation in benign.load),
        quality=tuple(
            replace(
                observation,
                task=text.replace("@", "(at)"),  # no suite has a task with an @, which names a stage
                fault=text,
                items=tuple(_eval_item(item, text) for item in observation.items),
                harness={text: text},
            )
            for observation in benign.quality
        ),
        shadow=replace(benign.shadow, items=shadow_items, fault=text),
        target_faults=tuple(DeploymentFault(arm, text, text) for arm in Arm),
        telemetry=tuple(window(_with_text(observation, text), text) for observation in benign.load),
        divergence=divergence(text),
        history=(_past(text),),
        budget_spent=BudgetReading(0.4, text, text),
        resumptions=(Resumption(text, 1, (text,), ()),),
    )


def verdict(text: str) -> Verdict:
    """A failing and a passing check, a tripped guard and one that holds, what differs, all made of the text."""
    guards = (GuardResult(text, True, text, text, (text,)), GuardResult(text, False, text, None))
    checks = (_check(text, Outcome.BLOCK), _check(text, Outcome.PASS), _check(text, Outcome.INVALID))
    differences = (Difference(text, text, text, declared=False, field=text),)
    waivers = tuple(WaiverState(waiver(text), use, text, 3) for use in WaiverUse)
    waived = replace(_check(text, Outcome.BLOCK), waiver=waiver(text))
    return Verdict(
        Outcome.BLOCK,
        text,
        (*checks, waived),
        guards,
        alpha=0.05,
        waivers=waivers,
        as_of=date(2026, 1, 2),
        differences=differences,
        notes=(text,),
        next_step=text,
    )


def poisoned(part: T, text: str) -> T:
    """A finished report, or a part of one, in which every text that says anything says this instead: whatever is shown,
    and by whatever way it came there. Words of a closed list and anchors, which are no texts, stay.
    """
    said = _poisoned(part, text)
    assert isinstance(said, type(part))
    return said


@functools.cache
def view() -> ReportView:
    """A report with everything in it that one can have."""
    seen, load, said = evidence(BENIGN), fake.load(), verdict(BENIGN)
    whole = replace(
        seen,
        run=replace(seen.run, finished_at="2026-01-02T03:06:40Z"),  # an age is reckoned from instants that are some
        load=load,
        telemetry=tuple(window(observation, BENIGN) for observation in load),
        noise=noise(BENIGN),
    )
    made = report_view(whole, replace(said, checks=(*fake.verdict().checks, *said.checks)))
    levels = Table("levels", (*text_columns("arm"), *number_columns("level")), (("candidate", "12/s"),))
    capacity = (Lines(("candidate: 12/s",)), levels)
    return replace(made, sections=(*made.sections, Section("capacity", "Capacity", capacity, capacity, rank=6)))


def without_charts(view: ReportView) -> ReportView:
    """The report without its charts, whose number follows from the names of stages."""

    def kept(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        rest = (part for part in parts if not isinstance(part, Charts))
        return tuple(replace(part, parts=kept(part.parts)) if isinstance(part, Fold) else part for part in rest)

    return replace(view, sections=tuple(replace(section, parts=kept(section.parts)) for section in view.sections))


_CLOSED = frozenset({"anchor", "outcome", "mark", "numbers", "spec"})  # the last two were made for their place


def _poisoned(value: object, text: str) -> object:
    if isinstance(value, str):
        return text if value and not isinstance(value, Enum) else value
    if is_dataclass(value) and not isinstance(value, type):
        named = [field.name for field in fields(value) if field.init and field.name not in _CLOSED]
        return replace(value, **{name: _poisoned(getattr(value, name), text) for name in named})
    if isinstance(value, Mapping):
        return {key: _poisoned(one, text) for key, one in value.items()}
    return tuple(_poisoned(one, text) for one in value) if isinstance(value, tuple) else value


def _eval_item(item: EvalItem, text: str) -> EvalItem:
    return replace(item, answer=text, error=text, choice=text, cluster=text)


_LOOKS = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)


def window(observation: LoadObservation, text: str) -> TelemetryWindow:
    """Six looks at a server with requests waiting, under names and with a fault of the text."""
    looks = tuple(TelemetrySample(at_s, {Gauge.RUNNING: 4.0, Gauge.WAITING: 6.0 * at_s}, text) for at_s in _LOOKS)
    where = (observation.stage, observation.arm, observation.block, observation.position)
    return TelemetryWindow(*where, engine=text, ended_s=2.0, drained=True, readings=looks, problems=(text,))


def divergence(text: str) -> DivergenceObservation:
    items = tuple(
        DivergenceItem(
            text_id=text,
            piece=0,
            position=number,
            kld=0.001 * (number + 1),
            same_top1=True,
            bound=False,
            shared=20,
            baseline_ln=-1.0,
            candidate_ln=-1.1,
        )
        for number in range(20)
    )
    return DivergenceObservation(items, 20, text, "echo", 20, whole=True, passed_over=(text,))


def noise(text: str) -> NoiseProfile:
    return NoiseProfile(
        key=NoiseKey(text, text, text, text),
        measured_at="2025-12-30T03:06:40Z",
        run_id=text,
        blocks=10,
        spreads=(NoiseSpread("ttft", "p50", text, 0.04, 0.03, 10),),
        disagreement=(SelfDisagreement("task", text, 0.05, 40),),
        false_block=FalseBlocks(200, 4, 3, 2, ((text, 2),)),
        engine_version=text,
    )


def _past(text: str) -> PastRun:
    check = PastCheck(text, Unit.SECONDS, Scale.LOG_RATIO, 0.04, 0.036, -0.105, -0.12, -0.09, 0.05, 4)
    arm = PastArm(text, text, text, text)
    return PastRun(text, text, text, arm, arm, {text: check})


def waiver(text: str) -> Waiver:
    return Waiver(text, text, text, text, date(2026, 1, 5), text, text, text, text)


def _check(text: str, outcome: Outcome) -> CheckResult:
    return replace(
        fake.check(outcome=outcome),
        id=text,
        title=text,
        family=text,
        stage=text,
        task=text,
        reason=text,
        advice=text,
        n_unit=text,
        method=text,
        notes=(text, text),
    )


def _with_text(observation: LoadObservation, text: str) -> LoadObservation:
    """The text as the stage's name, and as how its first requests ended."""
    columns = dict(observation.requests.to_columns())
    columns["error"] = (text, *observation.requests.error[1:])
    columns["error_detail"] = (text, *observation.requests.error_detail[1:])
    columns["finish_reason"] = ("length", text, *observation.requests.finish_reason[2:])
    columns["token_source"] = tuple(text for _ in observation.requests.token_source)
    return replace(observation, stage=f"{observation.stage} {text}", requests=RequestColumns.from_columns(columns))
