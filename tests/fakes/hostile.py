"""Texts that try to become something else in a report, and a run that carries one of them in every field it can."""

from __future__ import annotations

from dataclasses import replace

from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence, LoadObservation, Run, TargetFault
from benchgate.model.verdict import CheckResult, Difference, GuardResult, Outcome, Verdict
from tests.fakes import evidence as fake

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
    "x" * 5000,
)


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
        )
        for i, item in enumerate(benign.shadow.items)
    )
    return Evidence(
        run=run(text),
        load=tuple(_with_text(observation, text) for observation in benign.load),
        quality=tuple(
            replace(
                observation,
                task=text,
                fault=text,
                items=tuple(replace(item, answer=text, error=text) for item in observation.items),
                harness={text: text},
            )
            for observation in benign.quality
        ),
        shadow=replace(benign.shadow, items=shadow_items, fault=text),
        target_faults=tuple(TargetFault(arm, text, text) for arm in Arm),
    )


def verdict(text: str) -> Verdict:
    """A failing and a passing check, a tripped guard and one that holds, what differs, all made of the text."""
    guards = (GuardResult(text, True, text, text, (text,)), GuardResult(text, False, text, None))
    checks = (_check(text, Outcome.BLOCK), _check(text, Outcome.PASS), _check(text, Outcome.INVALID))
    differences = (Difference(text, text, text, declared=False, field=text),)
    return Verdict(Outcome.BLOCK, text, checks, guards, alpha=0.05, differences=differences)


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
