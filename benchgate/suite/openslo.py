"""An OpenSLO v1 file → the objective of one of its SLOs, or every mistake in it with its place. Opens no file.

Read are the objective's target, the time window, the budgeting method and the name of the indicator. Data sources are
not: what they would tell of production is for `error_budget.spent` to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate.errors import Problem, SuiteError
from benchgate.suite.error_budget import BudgetMetric
from benchgate.suite.text import Document, Fault, Plain, read_texts
from benchgate.suite.vocabulary import nearest, suggestion
from benchgate.units import show_found

API_VERSION = "openslo/v1"
KINDS = ("DataSource", "SLO", "SLI", "AlertPolicy", "AlertCondition", "AlertNotificationTarget", "Service")

INDICATORS: dict[str, BudgetMetric] = {
    "error-rate": "error_rate",
    "errors": "error_rate",
    "availability": "error_rate",
    "success-rate": "error_rate",
    "request-success": "error_rate",
    "goodput": "goodput",
    "good-requests": "goodput",
    "slo-attainment": "goodput",
    "request-latency": "goodput",
    "latency": "goodput",
}
"""What an indicator is called and which metric that is; `_`, `.` and upper case make no difference."""

_DAY_S = 86_400.0
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhdwMQY])")
_UNITS_S = {
    "m": 60.0, "h": 3600.0, "d": _DAY_S, "w": 7 * _DAY_S, "M": 30 * _DAY_S, "Q": 90 * _DAY_S, "Y": 365 * _DAY_S
}  # fmt: skip
_READ = ("apiVersion", "kind", "metadata.name", "spec.objectives", "spec.timeWindow", "spec.budgetingMethod",
         "spec.indicator")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Objective:
    """What an SLO says of a budget. `window_s` is None where it has no time window; `notes` say what was not used."""

    name: str
    objective_ratio: float
    window_s: float | None
    metric: BudgetMetric
    notes: tuple[str, ...]


def read_objective(text: str, source: str, wanted: str | None, metric: BudgetMetric | None) -> Objective:
    """The objective of the SLO called `wanted`, or of the only one. `source` is what to call the text in messages.

    A `metric` goes before what the indicator is called. Raises SuiteError with every mistake in what is read.
    """
    documents = read_texts(text, source, "OpenSLO file")
    wrong = [one.problem(fault) for one in documents for fault in _kind_faults(one)]
    if wrong:
        raise SuiteError(wrong)
    document = _chosen([one for one in documents if one.data["kind"] == "SLO"], source, wanted)
    reader = _Reader(document, [one for one in documents if one.data["kind"] == "SLI"])
    found = reader.objective(metric)
    problems = [one for one in document.problems if _is_read(one.path)]
    problems += [document.problem(fault) for fault in reader.faults]
    if problems or found is None:
        raise SuiteError(list(dict.fromkeys(problems)))
    return found


def _kind_faults(document: Document) -> Iterator[Fault]:
    kind = document.data.get("kind")
    if kind not in KINDS:
        if isinstance(kind, str):
            yield Fault(("kind",), f"found {show_found(kind)}; {suggestion(kind, KINDS)}")
        else:
            yield Fault((), "has no `kind`; an OpenSLO document is one of " + ", ".join(KINDS))
    elif document.data.get("apiVersion") != API_VERSION:
        found = show_found(document.data.get("apiVersion"))
        yield Fault(("apiVersion",), f"found {found}; this reads {API_VERSION} alone")


def _chosen(slos: Sequence[Document], source: str, wanted: str | None) -> Document:
    """The one SLO that is meant; SuiteError where there is none, or where it is not known which."""
    names = [_name_of(one.data) or "(without a name)" for one in slos]
    if not slos:
        raise SuiteError([Problem(source, None, None, "", "holds no document of `kind: SLO`; name a file that does")])
    meant = [one for one, name in zip(slos, names, strict=True) if wanted in (None, name)]
    if len(meant) == 1:
        return meant[0]
    if wanted is None:
        message = f"holds {len(slos)} SLOs ({', '.join(names)}); choose one in the suite by `slo: {names[0]}`"
    elif meant:
        message = f'holds {len(meant)} SLOs called "{wanted}"; give each a name of its own'
    else:
        message = f'holds no SLO called "{wanted}"; {suggestion(wanted, names)}'
    raise SuiteError([Problem(source, None, None, "", message)])


def _name_of(data: dict[str, Plain]) -> str | None:
    """`metadata.name` of a document or of an indicator that stands inside one."""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else None


def _only(found: Plain) -> dict[str, Plain] | None:
    """The one mapping of a list; None for anything else."""
    only = found[0] if isinstance(found, list) and len(found) == 1 else None
    return only if isinstance(only, dict) else None


def _is_read(path: str) -> bool:
    """Whether a fault of the text itself stands in, or around, what is read of an SLO."""
    return any(path.startswith(part) or part.startswith(path) for part in _READ)


class _Reader:
    """One SLO, part by part; what is wrong is gathered in `faults`."""

    def __init__(self, document: Document, indicators: Sequence[Document]) -> None:
        spec = document.data.get("spec")
        self._document = document
        self._spec: dict[str, Plain] = spec if isinstance(spec, dict) else {}
        self._indicators = indicators
        self._notes: list[str] = []
        self.faults: list[Fault] = []
        if not isinstance(spec, dict):
            self._wrong(("spec",), f"found {show_found(spec)}; expected a mapping with `objectives`")

    def objective(self, metric: BudgetMetric | None) -> Objective | None:
        """What it says; None, with `faults`, where that is wrong."""
        name = _name_of(self._document.data)
        if name is None:
            self._wrong(("metadata", "name"), "is required and missing; expected the SLO's name")
        self._counts_requests()
        target, window_s = self._target(), self._window()
        metric = self._metric(metric)
        if self.faults or name is None or target is None or metric is None:
            return None
        return Objective(name, target, window_s, metric, tuple(self._notes))

    def _wrong(self, path: tuple[str | int, ...], message: str) -> None:
        self.faults.append(Fault(path, message))

    def _counts_requests(self) -> None:
        method = self._spec.get("budgetingMethod")
        if method != "Occurrences":
            self._wrong(
                ("spec", "budgetingMethod"),
                f"found {show_found(method)}; a burn is predicted from counts of requests, so only Occurrences is read",
            )

    def _target(self) -> float | None:
        path: tuple[str | int, ...] = ("spec", "objectives")
        objectives = self._spec.get("objectives")
        objective = _only(objectives)
        if objective is None:
            found = f"{len(objectives)} objectives" if isinstance(objectives, list) else show_found(objectives)
            expected = "a list of one with its `target`: several thresholds, and composite SLOs, are not read"
            self._wrong(path, f"found {found}; expected {expected}")
            return None
        if "indicator" in objective or "indicatorRef" in objective:
            self._wrong((*path, 0), "is of a composite SLO, which is not read; give the indicator in `spec`")
        given = [key for key in ("target", "targetPercent") if key in objective]
        if len(given) != 1:
            self._wrong((*path, 0), "needs exactly one of `target` and `targetPercent`")
            return None
        if "op" in objective or "value" in objective:
            self._notes.append("`op` and `value` are not used: what a good request meets is said by the suite's `slo`")
        return self._share((*path, 0, given[0]), objective[given[0]], 100.0 if given[0] == "targetPercent" else 1.0)

    def _share(self, path: tuple[str | int, ...], found: Plain, whole: float) -> float | None:
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < whole:
            expected = f"a number above 0 and below {whole:g}, like {0.995 * whole:g}"
            self._wrong(path, f"found {show_found(found)}; expected {expected}")
            return None
        return found / whole

    def _window(self) -> float | None:
        path, windows = ("spec", "timeWindow"), self._spec.get("timeWindow")
        if "timeWindow" not in self._spec:
            return None
        window = _only(windows)
        if window is None:
            self._wrong(path, f"found {show_found(windows)}; expected a list of one window with its `duration`")
            return None
        duration = window.get("duration")
        match = _WINDOW.fullmatch(duration) if isinstance(duration, str) else None
        if match is None:
            expected = "a whole number with m, h, d, w, M, Q or Y after it, like 30d"
            self._wrong((*path, 0, "duration"), f"found {show_found(duration)}; expected {expected}")
            return None
        window_s = int(match[1]) * _UNITS_S[match[2]]
        if match[2] in "MQY":
            self._notes.append(f"the window of {duration} is taken for {window_s / _DAY_S:g} days")
        return window_s

    def _metric(self, metric: BudgetMetric | None) -> BudgetMetric | None:
        """The one that the suite gives, or what the indicator is called."""
        self._notes.append("its data sources are not asked: `spent` of the suite says what production has spent")
        if metric is not None:
            return metric
        name = self._indicator()
        if name is None:
            return None
        called = re.sub(r"[-_. ]+", "-", name.lower())
        if called in INDICATORS:
            return INDICATORS[called]
        near = nearest(called, INDICATORS)
        hint = f"did you mean `{near}`? Otherwise " if near else f"known are {', '.join(INDICATORS)}; otherwise "
        message = f'no metric goes by the indicator "{name}"; {hint}write `metric: error_rate` or `metric: goodput`'
        self._wrong(("spec", "indicator" if "indicator" in self._spec else "indicatorRef"), f"{message} in the suite")
        return None

    def _indicator(self) -> str | None:
        """What the indicator is called, inside the SLO or in a document of its own in the same file."""
        inline, reference = self._spec.get("indicator"), self._spec.get("indicatorRef")
        if (inline is None) == (reference is None):
            self._wrong(("spec",), "needs exactly one of `indicator` and `indicatorRef`")
            return None
        if isinstance(inline, dict):
            name = _name_of(inline)
            if name is None:
                self._wrong(("spec", "indicator"), "has no name; expected `metadata: {name: …}`")
            return name
        known = [name for one in self._indicators if (name := _name_of(one.data)) is not None]
        if not isinstance(reference, str) or known.count(reference) != 1:
            found = inline if reference is None else reference
            where = "indicator" if reference is None else "indicatorRef"
            hint = suggestion(str(reference), known) if known else "there is none in it"
            expected = "the name of one document of `kind: SLI` in this file"
            self._wrong(("spec", where), f"found {show_found(found)}; expected {expected}; {hint}")
            return None
        return reference
