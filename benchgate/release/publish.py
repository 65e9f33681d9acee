"""From a stored run to what hosts are told of it: judged once more, put into words, and each host told in its turn.

A job that publishes takes no verdict at its word: the run is judged again from its records, and only a verdict that is
also the one that was stored, of the suite that is to be judged by, is told. Anything else is a doubt, which is never
green.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchgate.errors import EvidenceError, ExitCode, PublishError, SuiteError, UsageError
from benchgate.escape import markdown_code, markdown_prose
from benchgate.integrations import github
from benchgate.integrations.github_api import GitHubApi
from benchgate.integrations.github_check import publish_check
from benchgate.integrations.github_comment import publish_comment
from benchgate.integrations.github_place import Place
from benchgate.integrations.github_status import publish_commit_status, publish_deployment_status
from benchgate.integrations.message import Annotation, Light, Message
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome, Waivers
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.pipeline.suite_file import other_prices, with_prices
from benchgate.report.document import with_exit_code
from benchgate.report.markdown import SUMMARY_BYTES, markdown_of
from benchgate.report.results import Kind, Level, Result, SuiteLines, VerdictContext, plain, suite_lines
from benchgate.store.bundle import bundle_sources
from benchgate.store.merge import import_runs
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import with_arms
from benchgate.system import read_text_file

Publisher = Callable[[Message], str]
"""Tells one host, and says in words what it did. Raises PublishError where it could not."""

_LONGEST_DOUBT = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A stored run as it is judged now. `doubt` is why nothing may rest on that, in a sentence; None where all is well.

    `aside` says what else reads differently than it was stored, where the outcome is the same.
    """

    decision: Decision
    doubt: str | None
    aside: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The verdict's own code, or 13 where it is in doubt."""
        return self.decision.exit_code if self.doubt is None else ExitCode.PUBLISH_FAILED

    @property
    def light(self) -> Light:
        """What a host shows: INVALID is no statement on the candidate."""
        if self.doubt is not None or self.decision.verdict.outcome is Outcome.INVALID:
            return Light.ERROR
        return Light.SUCCESS if self.decision.exit_code is ExitCode.OK else Light.FAILURE


@dataclass(frozen=True, slots=True)
class Published:
    """What became of one publisher: either it `said` what it did, or there is a `fault`."""

    name: str
    said: str | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """Where a verdict is to be told. `deployment` is the number that GitHub gave a deployment."""

    comment: bool = False
    check_run: bool = False
    commit_status: bool = False
    deployment: int | None = None
    summary: bool = False


def judge_to_publish(
    store: Store,
    run_id: str,
    *,
    waivers: Waivers | None = None,
    strict: bool = False,
    suite_file: Path | None = None,
) -> Judged:
    """Judge a stored run once more, and hold that against its newest own verdict and its suite; nothing is stored.

    Raises UsageError for a calibration, which judges nobody, and for a file that cannot be read.
    """
    if store.run(run_id).calibrates:
        raise UsageError(f"run {run_id} is a calibration: both of its arms are one deployment, and it judges nobody")
    decision = decide_stored(store, run_id, waivers=waivers, keep=False).with_strict(strict=strict)
    own = [one for one in store.verdicts(run_id) if one.of_the_run_itself]
    now, then = decision.verdict.outcome, own[-1].outcome if own else None
    if now is not then:
        known = f"its newest stored verdict is {then}" if then is not None else "it has no stored verdict"
        return Judged(
            decision,
            f"run {run_id} is {now} as judged now, and {known}: nothing may rest on it. Give the --waivers and --as-of "
            "that it was judged by; publish from its store where earlier runs had a say, which a bundle lacks; or "
            f"judge it anew with `benchgate gate {run_id}`",
        )
    if decision.evidence.run.imported and decision.exit_code is ExitCode.OK:
        made = "its evals were made elsewhere, and nothing shows what answered them"
        return Judged(decision, f"run {run_id} was imported: {made}. A run that benchgate measured can be told as one")
    if suite_file is not None and (doubt := _another_suite(suite_file, decision.evidence.run)) is not None:
        return Judged(decision, doubt)
    same = sha256_of(own[-1].document) == sha256_of(decision.document)
    aside = "In other parts its stored verdict reads differently: it was judged beside other runs, say."
    return Judged(decision, None, None if same else aside)


def _another_suite(file: Path, run: Run) -> str | None:
    """Why a run was not measured by what a file says, for the run's two deployments; None where it was.

    A suite of the same name may allow anything.
    """
    told = f"run {run.id} was not measured by what {file} says"
    try:
        suite = parse_suite(_text_of_suite(file), str(file))
    except SuiteError as error:
        return f"{told}: {str(error).splitlines()[0]}"
    meant = [suite]
    with suppress(UsageError):  # it has no such deployments, and then it was not this suite
        meant.append(with_arms(suite, *(run.arms[arm].name if arm in run.arms else None for arm in Arm)))
    reasons = list[str]()
    for one in meant:
        try:
            priced = with_prices(one, file.parent, run.day)
        except SuiteError as error:
            reasons.append(str(error).splitlines()[0])
            continue
        if sha256_of(run.suite) == sha256_of(priced.to_stored()):
            return None
        reasons += [other] if (other := other_prices(run.suite, priced)) is not None else []
    if reasons:
        return f"{told}: {reasons[-1]}; publish from the commit that was measured, whose prices of that day must stay"
    return (
        f"{told}, so nothing may rest on it: publish from the commit that was measured, or measure by this suite; "
        f"another version than benchgate {run.tool_version} may read it otherwise"
    )


def _text_of_suite(file: Path) -> str:
    if file.is_absolute() or ".." in file.parts:
        raise UsageError(f"--suite {file}: expected its path in the repository, from its root")
    try:
        return read_text_file(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--suite {file}: it cannot be read: {error}") from error


@contextmanager
def store_of_bundle(file: Path) -> Iterator[tuple[Store, str]]:
    """A store with the run of a bundle alone, and its id. It is gone at the end.

    Raises EvidenceError for a bundle that is damaged or does not match its hashes.
    """
    with tempfile.TemporaryDirectory(prefix="benchgate-bundle-") as folder:
        address = str(Path(folder) / "bundle.db")
        with opened(address, create=True) as database:
            (taken,) = import_runs(lambda: database, bundle_sources([file]))
        if taken.merged is None:
            raise EvidenceError(taken.problem or f"{file}: nothing of it was taken in")
        with Store.open(address, create=False) as store:
            yield store, taken.merged.run_id


def message_of(judged: Judged, place: Place, *, key: str | None = None, suite_file: Path | None = None) -> Message:
    """What hosts are told. `suite_file` is where annotations stand; none are made without it, and none of a doubt."""
    decision = judged.decision
    run, verdict = decision.evidence.run, decision.verdict
    said = "in doubt" if judged.doubt is not None else verdict.outcome.value
    strictly = " (--strict)" if verdict.outcome is Outcome.WARN and decision.terms.strict else ""
    return Message(
        suite=run.suite_name,
        candidate=run.arms[Arm.CANDIDATE].name,
        run_id=run.id,
        outcome=verdict.outcome if judged.doubt is None else None,
        light=judged.light,
        title=plain(f"{said}{strictly}: {judged.doubt or verdict.reason}"),
        text=_text_of(judged, place),
        annotations=_annotations(judged, suite_file),
        details_url=place.details_url,
        document=with_exit_code(decision.document, judged.exit_code),
        key=key,
    )


def without_verdict(suite: str, candidate: str, place: Place, *, ended: bool, key: str | None = None) -> Message:
    """That a candidate is being measured, or that this `ended` without a verdict: what was said before is over."""
    title = plain(f"{candidate} came to no verdict" if ended else f"{candidate} is being measured")
    footer = _footer(None, place)

    def text(budget: int) -> str:
        return f"## benchgate: {markdown_prose(title)}\n{footer}"

    light = Light.ERROR if ended else Light.PENDING
    return Message(suite, candidate, None, None, light, title, text, details_url=place.details_url, key=key)


def publishers(asked: Asked, place: Place, environment: Mapping[str, str]) -> dict[str, Publisher]:
    """Everybody who is to be told, by name, in this order. What is missing to tell one is that one's fault alone."""

    def check(message: Message) -> str:
        with GitHubApi(environment) as api:
            return publish_check(api, place.require_sha(), message)

    def status(message: Message) -> str:
        with GitHubApi(environment) as api:
            return publish_commit_status(api, place.require_sha(), message)

    def deployment(message: Message) -> str:
        assert asked.deployment is not None, "only then is it among those who are told"
        with GitHubApi(environment) as api:
            return publish_deployment_status(api, asked.deployment, message)

    def comment(message: Message) -> str:
        if place.pull is None and not place.of_a_pull:
            return f"{place.event} is of no pull request, so there is nothing to comment on"
        if place.pull is None:
            raise PublishError(f"{place.event} does not say which pull request it is of; add --pr")
        with GitHubApi(environment) as api:
            return publish_comment(api, place.pull, message)

    def summary(message: Message) -> str:
        if not environment.get("GITHUB_STEP_SUMMARY"):
            raise PublishError("GITHUB_STEP_SUMMARY is not set: there is no job summary to write to")
        github.publish_summary(environment, lambda: message.text(SUMMARY_BYTES))
        return "job summary written"

    every: dict[str, tuple[bool, Publisher]] = {
        "check-run": (asked.check_run, check),
        "commit-status": (asked.commit_status, status),
        "deployment": (asked.deployment is not None, deployment),
        "comment": (asked.comment, comment),
        "summary": (asked.summary, summary),
    }
    return {name: tell for name, (wanted, tell) in every.items() if wanted}


def publish_all(message: Message, to: Mapping[str, Publisher]) -> Iterator[Published]:
    """Tell each in its turn; one that fails keeps no other from being told."""
    for name, tell in to.items():
        try:
            yield Published(name, tell(message), None)
        except PublishError as error:
            yield Published(name, None, str(error))


def _text_of(judged: Judged, place: Place) -> Callable[[int], str]:
    """The verdict in at most so many bytes, and below it what it is of."""
    decision, footer = judged.decision, _footer(judged.aside, place)

    def text(budget: int) -> str:
        if judged.doubt is not None:
            return f"## benchgate: in doubt\n\n**{markdown_prose(judged.doubt, _LONGEST_DOUBT)}**\n{footer}"
        return markdown_of(decision.report.view, budget - len(footer.encode())) + footer

    return text


def _footer(aside: str | None, place: Place) -> str:
    """Which commit, where to read on, and what else is to be known."""
    commit = f"Commit {markdown_code(place.sha)}." if place.sha is not None else ""
    details = f"[Details]({place.details_url})." if place.details_url is not None else ""
    told = " ".join(part for part in (commit, details, aside or "") if part)
    return f"\n{told}\n" if told else ""


def _annotations(judged: Judged, suite_file: Path | None) -> tuple[Annotation, ...]:
    """What does not hold, worst first, at its line of the suite."""
    if suite_file is None or judged.doubt is not None:
        return ()
    decision = judged.decision
    suite = decision.terms.suite(decision.evidence.run)
    lines = suite_lines(_text_of_suite(suite_file), suite_file.as_posix(), suite, decision.evidence)
    told = VerdictContext(decision.evidence, decision.verdict, judged.exit_code, terms=decision.terms)
    every = [one for one in told.results() if one.kind is not Kind.VERDICT]
    stops = [one for one in every if one.level.stops]
    return tuple(_annotation(one, lines) for one in (*stops, *(one for one in every if one.level is Level.WARNS)))


def _annotation(one: Result, lines: SuiteLines) -> Annotation:
    said = " ".join(part for part in (one.line, *one.details[:1], one.advice) if part)
    line = lines.line(one.id if one.kind is Kind.CHECK else None)
    return Annotation(lines.path, line, "failure" if one.level.stops else "warning", f"benchgate {one.name}", said)
