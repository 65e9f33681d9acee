"""Rules of the checks: their metrics are measured, their places exist, and together they decide."""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchgate.errors import suggestion
from benchgate.model.metric import (
    ADVISORY_METRICS,
    FAILURE_METRICS,
    LATENCY_METRICS,
    MEAN,
    METRICS,
    QUANTILES,
    SESSION_METRICS,
    STAGE_METRICS,
    TELEMETRY_METRICS,
)
from benchgate.suite.checks import Check, judges, regions_of
from benchgate.suite.load import TrafficClass
from benchgate.suite.quality import verified_name
from benchgate.suite.rules.base import SECTIONS, check_rule, rule
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import region_name, split_region, stage_part
from benchgate.suite.workload import Workload
from benchgate.suite.yaml import Fault

_LEAST_LEVELS = 5
_OF_TOKENS = ("output_throughput", "total_throughput", "output_length", "validity", "joules_per_token")
_OF_GOOD = ("goodput", "usd_per_million_good_tokens")
_MEASURED = tuple(f"{section}.*" for section in SECTIONS)


def _judged_classes(suite: Suite, check: Check) -> list[TrafficClass]:
    return [traffic for traffic in traffic_classes(suite) if judges(check, traffic, suite.gate.checks)]


def _judged_names(suite: Suite, check: Check) -> list[str]:
    """Return the classes of traffic or tasks that a check judges, by name; one empty name for all tasks together."""
    if check.metric in STAGE_METRICS:
        return [traffic.name for traffic in _judged_classes(suite, check)]
    names = [check.task or ""]
    if (check.task == "each" or (check.metric, check.task) == ("score", None)) and suite.quality is not None:
        names = list(suite.quality.names)
    return names if check.stage is None else [verified_name(name, check.stage) for name in names]


def _judged_places(suite: Suite, check: Check) -> list[str]:
    """Return what `_judged_names` does, for each region that the check is judged in."""
    regions = regions_of(check, suite.regions)
    return [region_name(name, region) for name in _judged_names(suite, check) for region in regions]


@check_rule(*_MEASURED)
def check_is_measured(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require the section that measures the metric of a check."""
    measured, section = {name for name in SECTIONS if getattr(suite, name) is not None}, METRICS[check.metric].family
    if section not in measured and measured:
        remedy = "which this suite has not; add it or remove the check"
        yield "metric", f"{check.metric} is measured by `{section}`, {remedy}"
    elif section == "load" and check.metric != "capacity" and suite.load is not None and not suite.load.sweep:
        yield "metric", f"{check.metric} is measured in stages, and this load only has a `capacity`; add a `sweep`"


@check_rule("slo.*", "load.*", "load.sweep")
def good_requests_are_defined(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require an SLO, of the suite or of every judged class, for checks that count good requests."""
    judged = _judged_classes(suite, check)
    unbounded = [(one.name, why) for one in judged if (why := unbounded_because(one)) is not None]
    if check.metric in _OF_GOOD and unbounded:
        stage, why = unbounded[0]
        undefined = f'whose `tpot` in stage "{stage}" is undefined for {why}'
        yield "metric", f"{check.metric} counts the requests that meet the `slo`, {undefined}"
    if check.metric in _OF_GOOD and suite.slo is None and not (judged and all(one.has_own_slo for one in judged)):
        lacking = next((one.name for one in judged if not one.has_own_slo and one.class_name), None)
        where = f'this suite has not, nor class "{lacking}"' if lacking else "this suite has not"
        yield "metric", f"{check.metric} counts the requests that meet the `slo`, which {where}; add it"


@rule("load.sweep", "load.capacity", names=True)
def stage_exists(suite: Suite) -> Iterator[Fault]:
    """Require the stages and classes that checks and `gate.operating` name."""
    names, stages = [traffic.name for traffic in traffic_classes(suite)], suite.stage_names
    everywhere = list(dict.fromkeys([*stages, *names]))
    operating, path = suite.gate.operating, ("gate", "operating")
    if operating is not None and everywhere and operating not in everywhere:
        yield Fault(path, f'no stage of the sweep is named "{operating}"; {suggestion(operating, everywhere)}')
    elif operating in {traffic.name for traffic in traffic_classes(suite) if traffic.is_background}:
        yield Fault(path, "runs in the background, which has no default checks; name the stage or another class")
    elif operating is not None and not everywhere:
        yield Fault(path, "is a stage of `load.sweep`, which this suite has not; remove it")
    for number, check in enumerate(suite.gate.checks):
        # `stage` may name all classes of a stage, `over` only one of them. A server's own metrics are per stage.
        of_server = check.metric in TELEMETRY_METRICS
        options = {"stage": stages if of_server else everywhere, "over": stages if of_server else names}
        for key, known in options.items():
            name = getattr(check, key)
            if name is not None and known and name not in known:
                message = f'no stage of the sweep is named "{name}"; {suggestion(name, known)}'
                yield Fault(("gate", "checks", number, key), message)
        classes = [
            traffic.class_name
            for traffic in traffic_classes(suite)
            if traffic.class_name is not None and check.stage in (None, traffic.stage)
        ]
        if check.class_name is not None and check.class_name not in classes:
            where = "this suite" if check.stage is None else f'stage "{check.stage}"'
            hint = suggestion(check.class_name, classes) if classes else "it has no `classes` at all: remove `class`"
            message = f'{where} has no class "{check.class_name}"; {hint}'
            yield Fault(("gate", "checks", number, "class"), message)


@check_rule("load.regions")
def region_exists(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require the regions that checks name."""
    known = suite.regions
    if check.region is not None and check.region not in known:
        hint = suggestion(check.region, known) if known else "`load.regions` is missing: add it, or remove `region`"
        yield "region", f'no region of the load is named "{check.region}"; {hint}'


@rule("quality.tasks", names=True)
def task_exists(suite: Suite) -> Iterator[Fault]:
    """Require the tasks that checks name. The tasks of an lm-eval group are known only when it is read."""
    tasks = suite.quality.names if suite.quality is not None else ()
    for number, check in enumerate(suite.gate.checks if tasks else ()):
        group = (check.task or "").split("/")[0]
        if check.task not in (None, "each", *tasks) and (group == check.task or group not in tasks):
            message = f'no task of `quality` is named "{check.task}"; {suggestion(str(check.task), [*tasks, "each"])}'
            yield Fault(("gate", "checks", number, "task"), message)


@check_rule("deployments", "candidate", "candidates")
def server_reports_the_metric(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require metrics of the candidate for checks on the server's own metrics; its accelerators report energy."""
    candidate = suite.deployments.get(suite.candidate)
    if candidate is None or (check.metric == "joules_per_token" and candidate.gpu is not None):
        return
    if check.metric in TELEMETRY_METRICS and candidate.metrics.page == "off":
        found = f'{check.metric} is reported by the server, and "{suite.candidate}" has `metrics: off`'
        yield "metric", f"{found}; remove one of them"


@check_rule("load.workload", "load.workloads", "load.sweep")
def metric_is_defined(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require requests that have the metric of a check; otherwise it could only be INVALID."""
    judged = {*_judged_names(suite, check), check.over}
    for traffic in traffic_classes(suite):
        why = _undefined(check.metric, traffic.workload) if traffic.name in judged else None
        if why is not None:
            undefined = f'{check.metric} is undefined for {why}, as stage "{traffic.name}" asks for'
            yield "metric", f"{undefined}; change the workload or the check"
            return


def unbounded_because(traffic: TrafficClass) -> str | None:
    """Return why an SLO of TPOT alone bounds no request of a class of traffic; None where it has another bound."""
    slo = traffic.slo_spec
    if slo is None or slo.tpot_s is None or slo.ttft_s is not None or slo.e2e_s is not None:
        return None
    why = _undefined("tpot", traffic.workload)
    return why and f"{why}; bound `ttft` or `e2e` too"


def _undefined(metric: str, workload: Workload) -> str | None:
    """Return the property of a workload that leaves it without this metric; None if it has it."""
    if not workload.generates and (metric in _OF_TOKENS or METRICS[metric].streamed):
        return f"{workload.endpoint}, which count no tokens"
    if not workload.streams and METRICS[metric].streamed:
        return "answers that come whole (`stream: false`)"
    most = workload.most_output_tokens
    if METRICS[metric].paced and most is not None and most < 2:
        return "answers of 1 token"
    if metric == "validity" and workload.answer_schema is None and workload.tools is None:
        return "answers without `schema` and `tools`"
    if metric in SESSION_METRICS and workload.sessions is None and workload.session is None:
        return "single requests"
    if metric in SESSION_METRICS and workload.leave is not None:
        return "conversations that clients leave"
    return None


@check_rule("gate.alpha", "load.blocks", "load.looks", "load.sweep", "gate.checks")
def quantile_has_enough_requests(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require ln(alpha) / ln(q) requests for the upper limit of a quantile q: at 5 %, 59 for p95 and 299 for p99."""
    q, load = QUANTILES.get(check.statistic or "p50", 0.5), suite.load
    if q == 0.5 or check.metric not in LATENCY_METRICS or load is None:
        return
    needed = math.ceil(math.log(suite.gate.alpha) / math.log(q))
    judged = [traffic for traffic in _judged_classes(suite, check) if not traffic.is_background]
    regions = max(1, len(suite.regions))
    short = [traffic for traffic in judged if traffic.schedule.requests // regions * load.blocks < needed]
    if short:
        each_of = f" / {regions} regions" if suite.regions else ""
        found = ", ".join(f'"{one.name}" has {load.blocks} * {one.schedule.requests}{each_of}' for one in short)
        looks = " (and some more with interim analyses, as `plan` says)" if load.looks else ""
        each = math.ceil(needed / load.blocks) * regions
        remedy = f"write `requests: {each}` or more"
        if short[0].schedule.profile is not None:
            remedy = f"make the stage longer or its rates higher, to {each} requests or more"
        least = f"{check.statistic} needs at least {needed} requests in a stage over all blocks{looks}"
        yield "statistic", f"{least}, and {found}; {remedy}, or choose a lower statistic"


@check_rule("load.sweep", "gate.checks")
def mean_has_pairs(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Refuse means in the background, where the arms do not send the same requests."""
    judged = _judged_classes(suite, check) if check.statistic == MEAN else []
    background = next((traffic.name for traffic in judged if traffic.is_background), None)
    if background is not None:
        pairs = f'mean is judged request by request, and of "{background}", which runs in the background'
        yield "statistic", f"{pairs}, each arm sends as many as the others leave time for; choose p50"


@check_rule("load.sweep")
def knee_has_enough_levels(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require at least five closed-loop stages with different concurrencies for a knee."""
    stages = suite.load.sweep if suite.load is not None else ()
    in_flight = [stage.concurrency for stage in stages if stage.concurrency is not None]
    remedy = "sweep at least 5 with `each: {concurrency: [1, 2, 4, 8, 16]}`"
    if check.metric == "knee" and len(set(in_flight)) < len(in_flight):
        yield "metric", f"a knee is found over all closed-loop stages, two of which have as many in flight; {remedy}"
    elif check.metric == "knee" and len(in_flight) < _LEAST_LEVELS:
        least = f"a knee needs stages with at least {_LEAST_LEVELS} numbers of requests in flight"
        yield "metric", f"{least}, and there are {len(in_flight)}; {remedy}"


@check_rule("quality")
def flips_have_a_floor(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require flips of the baseline against itself: greedy answers of one server differ from run to run."""
    if check.metric == "flips" and suite.quality is not None and not suite.quality.repeat_baseline:
        beyond = "flips are counted beyond those of the baseline against itself"
        yield "metric", f"{beyond}; set `quality.repeat_baseline: true`"


@check_rule("divergence")
def perplexity_is_known(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Refuse the perplexity where texts are read by completions of one token."""
    if check.metric == "perplexity" and suite.divergence is not None and suite.divergence.way == "cut":
        yield "metric", "`divergence.way: cut` gives no perplexity; judge `kld` or `same_top1`, or choose another way"


@rule("gate.checks", "load.sweep")
def check_is_new(suite: Suite) -> Iterator[Fault]:
    """Refuse two checks that bound one quantity in the same way. A margin and an SLO are two ways."""
    first: dict[tuple[object, ...], int] = {}
    for number, check in enumerate(suite.gate.checks):
        kind = "margin" if check.margin is not None else "max" if check.max is not None else "min"
        if kind != "margin" and check.over is None and len(METRICS[check.metric].bounds) == 1:
            kind = "slo"
        quantity = (check.metric, check.statistic or "p50", check.of, check.per, check.over, kind)
        for name in _judged_places(suite, check):
            earlier = first.setdefault((*quantity, name), number)
            if earlier != number:
                statistic = f" {check.statistic or 'p50'}" if check.metric in LATENCY_METRICS else ""
                where = f' of "{name}"' if name else ""
                over = f' over "{check.over}"' if check.over else ""
                per = f" per {check.per}" if check.per else ""
                judged = f"the {'margin' if kind == 'margin' else 'SLO'} of {check.metric}{statistic}{per}{where}{over}"
                message = f"{judged} is already judged by gate.checks[{earlier}]; keep one of them"
                yield Fault(("gate", "checks", number), message)
                break


@rule("gate.checks", "load.sweep")
def failures_are_judged(suite: Suite) -> Iterator[Fault]:
    """Require a required check of all failures for every class of traffic with a required load check.

    Medians and throughput hardly move when a third of the requests fails. The same holds for classes in the background
    of a judged stage: a server that drops them is faster for the rest.
    """
    every = traffic_classes(suite)
    names = {None, *(traffic.name for traffic in every)}
    places = {*names, *(traffic.stage for traffic in every)}
    if any(check.stage not in places or check.over not in names for check in suite.gate.checks):
        return  # a misnamed check may be the one that is missed
    required = [(n, c) for n, c in enumerate(suite.gate.checks) if c.required and c.metric in STAGE_METRICS]
    bounding = [c for _, c in required if c.metric in FAILURE_METRICS and c.of is None and c.over is None]
    covered = {name for check in bounding for name in _judged_places(suite, check)}
    all_regions: tuple[str | None, ...] = tuple(suite.regions) or (None,)
    for number, check in required:
        judged = _judged_places(suite, check)
        regions = {region for _, region in map(split_region, judged)} - {None} or set(all_regions)
        named_places = [*_judged_names(suite, check), *([check.over] if check.over is not None else [])]
        stages = set(map(stage_part, named_places))
        behind = [traffic.name for traffic in every if traffic.is_background and traffic.stage in stages]
        ordered = [region for region in all_regions if region in regions]
        judged, behind = (
            [region_name(name, region) for name in names for region in ordered] for names in (named_places, behind)
        )
        uncovered = [name for name in dict.fromkeys([*judged, *behind]) if name not in covered]
        covered.update(uncovered)  # reported once
        if uncovered:
            named = " and ".join(f'"{name}"' for name in uncovered)
            place, region = split_region(uncovered[0])
            where = f", stage: {place}" if check.stage is not None or uncovered[0] not in judged else ""
            where += "" if region is None or len(uncovered) > 1 else f", region: {region}"
            yield Fault(
                ("gate", "checks", number),
                f"requests of stage {named} could fail unjudged: no required check bounds `error_rate` or `goodput` "
                f"there; add {{metric: error_rate{where}, max: 1%}}",
            )


@rule("gate.checks")
def something_decides(suite: Suite) -> Iterator[Fault]:
    """Require at least one required check; otherwise nothing would be promoted."""
    checks = suite.gate.checks
    if checks and all(c.metric in ADVISORY_METRICS and "required" not in c.model_fields_set for c in checks):
        message = f"{checks[0].metric} is advisory unless it says `required: true`, and no other check decides anything"
        yield Fault(("gate", "checks", 0), f"{message}; write it, or add a check that is required")


@rule("gate.checks", "quality.stop_early")
def early_stop_is_judged(suite: Suite) -> Iterator[Fault]:
    """Require a check that can show a regression for evals that may stop early; otherwise they never do."""
    checks = suite.gate.checks
    decisive = any(c.required and c.margin and c.metric in ("accuracy", "score") for c in checks)
    if suite.quality is not None and suite.quality.stop_early and checks and not decisive:
        message = (
            "ends the evals when a required check on `accuracy` or `score` with a `margin` shows harm, and there is "
            "none; add {metric: accuracy, task: each, margin: 5 points}"
        )
        yield Fault(("quality", "stop_early"), message)


@rule("gate.checks", "quality.tasks")
def task_is_judged(suite: Suite) -> Iterator[Fault]:
    """Require a check of every task if any is judged. Flips do not count: they may be gains."""
    if suite.quality is None or not any(METRICS[check.metric].family == "quality" for check in suite.gate.checks):
        return
    tasks = suite.quality.names
    judged = {check.task for check in suite.gate.checks if check.metric in ("accuracy", "score") and not check.stage}
    misnamed = {task.split("/")[0] for task in judged if task is not None} - {*tasks, "each"}
    if judged & {None, "each"} or misnamed:  # the misnamed one may be the one that is missed
        return
    for number, task in enumerate(tasks):
        if task not in judged:
            message = (
                f'"{task}" could regress unjudged: no check bounds its `accuracy` or `score`; add {{metric: '
                f"accuracy, task: {task}, margin: 5 points}}, with `required: false` if it is only to warn"
            )
            yield Fault(("quality", "tasks", number), message)


@rule("gate.checks", "load.sweep", "load.workload", "load.workloads", "quality")
def verification_is_judged(suite: Suite) -> Iterator[Fault]:
    """Require evals and a check for every stage with `verify`, single requests there, and `verify` for such checks.

    A guard requires a check of every task that was sent: which can be sent is not known before tasks are read.
    """
    judged = {check.stage: number for number, check in enumerate(suite.gate.checks) if check.metric == "accuracy"}
    places = {traffic.stage: traffic for traffic in traffic_classes(suite)}
    for number, stage in enumerate(suite.load.sweep if suite.load is not None else ()):
        path = ("load", "sweep", number, "verify")
        check = judged.pop(stage.name, None)
        if stage.verify_ratio is None:
            if check is not None:
                message = f'stage "{stage.name}" sends no eval items; give it `verify: 5%`'
                yield Fault(("gate", "checks", check, "stage"), message)
        elif suite.quality is None:
            yield Fault(path, "sends items of `quality.tasks`, which this suite has not; add `quality`")
        elif (workload := places[stage.name].workload).session is not None or workload.sessions is not None:
            yield Fault(path, "sends items among single requests, and this workload has sessions; remove one of them")
        elif check is None and suite.gate.checks:
            example = f"{{metric: accuracy, stage: {stage.name}, margin: 5 points}}"
            yield Fault(path, f"nothing judges its answers; add {example}")
    classes = {traffic.name for traffic in traffic_classes(suite)}
    for place, number in judged.items():
        if place is not None and (place in classes or not classes):  # any other name is of no stage at all
            message = f'"{place}" sends no eval items; name a stage with `verify`, or leave `stage` out'
            yield Fault(("gate", "checks", number, "stage"), message)


@rule("gate.checks", "shadow")
def judge_is_heard(suite: Suite) -> Iterator[Fault]:
    """Require a check on the verdicts of the judge, to which texts are sent."""
    checks = suite.gate.checks
    heard = any(check.metric == "judge_loss" for check in checks)
    if suite.shadow is not None and suite.shadow.judge is not None and checks and not heard:
        message = (
            "is sent texts, and no check uses its verdicts; add {metric: judge_loss, margin: 5 points}, with "
            "`required: false` if it is only to warn, or remove `judge`"
        )
        yield Fault(("shadow", "judge"), message, at_key=True)


RULES = (
    check_is_measured, good_requests_are_defined, stage_exists, region_exists, task_exists, server_reports_the_metric,
    metric_is_defined, quantile_has_enough_requests, mean_has_pairs, knee_has_enough_levels, flips_have_a_floor,
    perplexity_is_known, check_is_new, failures_are_judged, something_decides, early_stop_is_judged, task_is_judged,
    verification_is_judged, judge_is_heard,
)  # fmt: skip
