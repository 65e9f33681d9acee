"""The CI job of this process: GitHub's event, who promotes from which ref, the run's address, outputs and summary.

The environment is set by whoever starts the process. Checking it keeps a job from promoting by mistake what its host
would not allow; it does not stop a person with write access to the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from benchgate.errors import ExitCode, PublishError, UsageError
from benchgate.model.history import PromotionOrigin
from benchgate.model.verdict import Verdict, checks_by_result

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PULL_REF = re.compile(r"refs/pull/([1-9][0-9]{0,9})/(?:merge|head)")
_URL = re.compile(r"https?://[A-Za-z0-9\-._~:/?#@!$&*+,;=%]+")  # nothing that could end a link in Markdown


@dataclass(frozen=True, slots=True)
class GitHubContext:
    """Commit and pull request to publish on; None if unknown. `event` describes the trigger of the job.

    `is_pull_request` is False for events without a pull request, such as a push. `foreign_repository` is where the
    change lies, if that is not this repository.
    """

    sha: str | None
    pull: int | None
    details_url: str | None
    event: str
    is_pull_request: bool = True
    foreign_repository: str | None = None

    def require_own_repository(self) -> None:
        """Raise UsageError for a change from another repository: its author may have made up the run."""
        if self.foreign_repository is not None:
            raise UsageError(
                f"this job is for a change in {self.foreign_repository}, whose authors may have made up the run, so "
                "nothing is published of it; measure and publish in a job that only your own people can start "
                "(`workflow_dispatch`), with --sha and --pr"
            )

    def require_sha(self) -> str:
        """Return the commit. Raises PublishError if it is unknown."""
        if self.sha is None:
            raise PublishError(f"{self.event} does not name the commit that was judged; add --sha")
        return self.sha


def github_context(
    environment: Mapping[str, str],
    *,
    sha: str | None = None,
    pull: int | None = None,
    details_url: str | None = None,
) -> GitHubContext:
    """Return the context by the options, else by GitHub's event. Raises UsageError for a malformed --sha or address.

    The commit of a pull request is its head, because GITHUB_SHA is a merge commit that no page shows. The number in an
    issue's or workflow's event is used only if it is that of one pull request of this repository.
    """
    if sha is not None and not _SHA.fullmatch(sha):
        raise UsageError(f"--sha {ascii(sha)[:60]}: expected a whole commit id, 40 or 64 hexadecimal digits")
    if details_url is not None and not is_link(details_url):
        raise UsageError(
            f"--details-url {ascii(details_url)[:60]}: expected an address that begins with https:// or http://"
        )
    name, of_the_job = environment.get("GITHUB_EVENT_NAME", ""), run_url(environment)
    event = _event(environment.get("GITHUB_EVENT_PATH"))
    return GitHubContext(
        sha=sha or _sha(environment, name, event),
        pull=pull or _pull(environment, event),
        details_url=details_url or (of_the_job if of_the_job is not None and is_link(of_the_job) else None),
        event=f"the event {name!r}" if name else "the environment",
        is_pull_request=not name
        or any(str(one).startswith("pull_request") for one in (name, _at(event, "workflow_run", "event"))),
        foreign_repository=_foreign_repository(environment, name, event),
    )


def is_link(url: str) -> bool:
    """Return True if an address can be used in a Markdown link as it is."""
    try:
        return _URL.fullmatch(url) is not None and bool(urlsplit(url).hostname) and urlsplit(url).username is None
    except ValueError:
        return False


def _event(path: str | None) -> dict[str, Any]:
    """Return the job's event; empty if it cannot be read, so that --sha and --pr are needed."""
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sha(environment: Mapping[str, str], name: str, event: dict[str, Any]) -> str | None:
    candidates = (
        _at(event, "pull_request", "head", "sha"),
        _at(event, "merge_group", "head_sha"),
        _at(event, "workflow_run", "head_sha") if name == "workflow_run" else None,
    )
    found = next((one for one in candidates if one is not None), None)
    if found is None and not name.startswith(("pull_request", "workflow_run", "issue_comment")):
        found = environment.get("GITHUB_SHA")
    return found if isinstance(found, str) and _SHA.fullmatch(found) else None


def _pull(environment: Mapping[str, str], event: dict[str, Any]) -> int | None:
    listed, here = _at(event, "workflow_run", "pull_requests"), _at(event, "repository", "id")
    listed = [one for one in listed if _at(one, "base", "repo", "id") == here] if isinstance(listed, list) else []
    numbers = (
        _at(event, "pull_request", "number"),
        _at(event, "issue", "number") if _at(event, "issue", "pull_request") is not None else None,
        _at(listed[0], "number") if len(listed) == 1 and here is not None else None,
    )
    number = next((one for one in numbers if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)
    ref = _PULL_REF.fullmatch(environment.get("GITHUB_REF", ""))
    return number or (int(ref[1]) if ref is not None else None)


def _foreign_repository(environment: Mapping[str, str], name: str, event: dict[str, Any]) -> str | None:
    """Return the repository of the change if it is not this one; an unknown one counts as another."""
    if name.startswith("pull_request"):
        head = _at(event, "pull_request", "head", "repo", "full_name")
    elif name == "workflow_run":
        head = _at(event, "workflow_run", "head_repository", "full_name")
    elif name == "issue_comment":  # names a pull request, and not whose
        head = None
    else:
        return None
    known = isinstance(head, str) and head != ""
    if known and head.lower() == environment.get("GITHUB_REPOSITORY", "").lower():
        return None
    return ascii(head)[1:-1] if known else "a repository that the event does not name"


def _at(value: object, *keys: str) -> Any:
    """Return the nested value under these keys; None if one is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


_CHANGES = ("refs/pull/", "refs/merge-requests/")
_BRANCH_OR_TAG = ("refs/heads/", "refs/tags/")

# Events that only people with write access can trigger. A pull request, a comment, or a workflow started by another one
# (`workflow_run`) may run on the protected branch and be triggered by anybody.
_WRITER_EVENTS = ("push", "schedule", "workflow_dispatch", "repository_dispatch", "release", "deployment")

# Other CIs: a variable that identifies each, its name, and the variable of a job for an unmerged change. None of them
# reports protected branches.
_OTHERS = (
    ("JENKINS_URL", "Jenkins", "CHANGE_ID"),
    ("BUILDKITE", "Buildkite", "BUILDKITE_PULL_REQUEST"),
    ("CIRCLECI", "CircleCI", "CIRCLE_PULL_REQUEST"),
    ("TF_BUILD", "Azure Pipelines", "SYSTEM_PULLREQUEST_PULLREQUESTID"),
    ("BITBUCKET_BUILD_NUMBER", "Bitbucket Pipelines", "BITBUCKET_PR_ID"),
    ("TRAVIS", "Travis CI", "TRAVIS_PULL_REQUEST"),
    ("TEAMCITY_VERSION", "TeamCity", ""),
    ("CI", "a CI that is not known", ""),
)
_NO = ("", "0", "false")


@dataclass(frozen=True, slots=True)
class _Host:
    """The job as its CI describes it. `doubt` is why its ref does not count as protected; None if it does."""

    name: str
    by: str | None
    ref: str | None
    commit: str | None
    doubt: str | None


def origin_of(
    environment: Mapping[str, str],
    *,
    by: str | None = None,
    ref: str | None = None,
    commit: str | None = None,
    protected: bool | None = None,
    user: str | None = None,
) -> PromotionOrigin:
    """Return the origin of a promotion by the options, else by the CI, else by this machine's `user`.

    In GitHub Actions and GitLab the host decides on the ref and its protection: options may only deny that. Elsewhere
    the options decide, and an unknown CI is recorded. Raises UsageError where both contradict each other, an option is
    empty, nobody is named, or no ref is there to be protected.
    """
    for option, given in (("--by", by), ("--ref", ref), ("--commit", commit)):
        if given is not None and not given.strip():  # as from a variable of the CI that is not set
            raise UsageError(f"{option} is empty; give its value, or leave {option} out")
    host = _host(environment)
    by = by or (host.by if host is not None else user)
    if not by:
        raise UsageError("it is not known who promotes; name them with --by")
    if host is None:
        by_hand = _by_hand(environment, ref, protected=protected is True)
        name = next((name for mark, name, _ in _OTHERS if environment.get(mark, "") not in _NO), None)
        ci = None if name is None else f"{name}, which does not report protected refs"
        return PromotionOrigin(by, ref, commit, by_hand, ci=ci)
    if ref is not None and _bare(ref) != _bare(host.ref or ""):
        raise UsageError(f"--ref {ref}: this job of {host.name} is of {host.ref}; leave --ref out")
    if protected and host.doubt is not None:
        raise UsageError(f"--protected: {host.doubt}; promote in a job on a protected ref, and leave --protected out")
    is_protected = host.doubt is None and protected is not False
    return PromotionOrigin(
        by, host.ref, commit or host.commit, is_protected, ci=f"{host.name} for {host.by}" if host.by else host.name
    )


def unprotected_because(environment: Mapping[str, str]) -> str:
    """Return why a promotion from here is of no protected ref."""
    host = _host(environment)
    if host is None:
        return "its ref is not stated to be protected, as by --ref REF --protected"
    return host.doubt or "--not-protected was given"


def _by_hand(environment: Mapping[str, str], ref: str | None, *, protected: bool) -> bool:
    """Return True if the options say that a ref outside of GitHub and GitLab is protected."""
    if not protected:
        return False
    if ref is None:
        raise UsageError("--protected: no ref is named; add --ref")
    if ref.startswith(_CHANGES):
        raise UsageError(f"--protected: {ref} is of a change that is not merged, so it is not protected")
    for mark, name, change in _OTHERS:
        if environment.get(mark) and environment.get(change, "") not in _NO:
            raise UsageError(f"--protected: this job of {name} is for a change that is not merged ({change} is set)")
    return True


def _host(environment: Mapping[str, str]) -> _Host | None:
    """Read a job of GitHub Actions or GitLab. A change that is not merged is of no protected ref."""
    get, doubt = environment.get, None
    if get("GITHUB_ACTIONS") == "true":
        name, by, commit, event = "GitHub Actions", get("GITHUB_ACTOR"), get("GITHUB_SHA"), get("GITHUB_EVENT_NAME")
        ref, protected = get("GITHUB_REF", ""), get("GITHUB_REF_PROTECTED")
        is_queued = event == "merge_group"  # by a member, and not merged yet
        is_change = bool(get("GITHUB_HEAD_REF")) or ref.startswith(_CHANGES) or is_queued
        if event not in _WRITER_EVENTS and not is_queued:
            doubt = f"this job was started by {event or 'an event without a name'}, which anybody can trigger"
    elif get("GITLAB_CI") == "true":
        name, by, commit = "GitLab", get("GITLAB_USER_LOGIN"), get("CI_COMMIT_SHA")
        ref, protected = get("CI_COMMIT_REF_NAME", ""), get("CI_COMMIT_REF_PROTECTED")
        is_change = get("CI_PIPELINE_SOURCE", "").endswith("request_event")
        is_change |= any(get(one) for one in ("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID"))
    else:
        return None
    if doubt is None and is_change:
        doubt = "this job is for a change that is not merged"
    elif doubt is None and (not ref or protected != "true"):
        doubt = f"{name} does not say that {ref or 'the ref of this job'} is protected"
    return _Host(name, by or None, ref or None, commit or None, doubt)


def _bare(ref: str) -> str:
    """Return a branch or tag without its `refs/` folder."""
    return next((ref.removeprefix(folder) for folder in _BRANCH_OR_TAG if ref.startswith(folder)), ref)


ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~!$&'()*+,;=:@%/?#\-]*)?")
_LONGEST_RUN_URL = 500

# The variables that hold the address itself, as each CI documents them.
_NAMED = ("CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL", "TRAVIS_BUILD_WEB_URL")


def run_url(environment: Mapping[str, str]) -> str | None:
    """Return the address of the CI's page of this run, without credentials; None if the CI does not set one."""
    get = environment.get
    found = next((environment[name] for name in _NAMED if get(name)), None)
    server, project, build = get("SYSTEM_COLLECTIONURI"), get("SYSTEM_TEAMPROJECT"), get("BUILD_BUILDID")
    if get("TF_BUILD") is not None and server and project and build:
        found = f"{server.rstrip('/')}/{project}/_build/results?buildId={build}"
    server, repository, run = get("GITHUB_SERVER_URL"), get("GITHUB_REPOSITORY"), get("GITHUB_RUN_ID")
    if get("GITHUB_ACTIONS") == "true" and server and repository and run:
        found = f"{server}/{repository}/actions/runs/{run}"
    return found if found is not None and len(found) <= _LONGEST_RUN_URL and ADDRESS.fullmatch(found) else None


_LONGEST_LINK = 2000


def report_link(environment: Mapping[str, str], url: str | None, report: Path | None) -> str | None:
    """Return the address of the report, or of the CI's page of the run; None if unknown.

    Raises UsageError for a malformed address, or one with a user or a password, which readers would see.
    """
    if url is not None:
        if len(url) > _LONGEST_LINK or not ADDRESS.fullmatch(url):
            raise UsageError(
                "--report-url: expected an http or https address without user and password, with whatever is not "
                "ASCII percent-encoded, like https://ci.example.com/report.html"
            )
        return url
    job, folder = run_url(environment), environment.get("CI_PROJECT_DIR")
    if job is not None and report is not None and folder is not None and environment.get("GITLAB_CI") == "true":
        inside = os.path.relpath(report.absolute(), folder)
        if not inside.startswith(".."):  # else it is not among the job's artifacts
            return f"{job}/artifacts/file/{quote(inside.replace(os.sep, '/'), errors='replace')}"
    return job


# Job summary and step outputs of GitHub Actions. Outputs have only enumerated words, numbers, hashes and names in a
# narrow alphabet: no text of a model or a server can become a command, a second output or a shell word.

SUMMARY_LIMIT_BYTES = 1024 * 1024  # GitHub drops a step's whole summary above this, and leaves the step green

_CUT_NOTICE = "\n\n_The summary was cut here: a job summary holds 1 MiB._\n"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._@:/%+-]")
_LONGEST_NAME = 128
_MOST_NAMES = 100
_OUTPUT_NAMES = (
    "exit-code", "run-id", "report-path", "report-sha256", "statement-path", "summary-json", "checks-failed",
)  # fmt: skip


def publish_summary(environment: Mapping[str, str], render_summary: Callable[[], str]) -> None:
    """Append Markdown to GITHUB_STEP_SUMMARY, if that is set. Raises PublishError when it cannot be written."""
    if not (path := environment.get("GITHUB_STEP_SUMMARY")):
        return
    with _job_files("the verdict itself stands"):
        file = Path(path)
        text = f"{render_summary().rstrip()}\n".encode(errors="replace")
        held = file.stat().st_size if file.exists() else 0
        room = SUMMARY_LIMIT_BYTES - held
        if len(text) > room:  # it is cut at the end of a line
            notice = _CUT_NOTICE.encode()
            end = text.rfind(b"\n", 0, max(0, room - len(notice)))
            if end <= 0:
                raise PublishError(f"the job summary already holds {held:,} bytes, so the verdict does not fit into it")
            text = text[:end] + notice
        with file.open("ab") as out:
            out.write(text)


_WORDS = {ExitCode.BLOCK: "block", ExitCode.INCONCLUSIVE: "inconclusive", ExitCode.INVALID: "invalid"}


def publish_outputs(
    environment: Mapping[str, str],
    *,
    verdict: Verdict,
    run_id: str,
    exit_code: ExitCode,
    report_path: Path | None,
    statement_path: Path | None = None,
) -> None:
    """Append the outputs to GITHUB_OUTPUT, if that is set. Later ones win: of several verdicts the decisive comes last.

    Outputs: `verdict` in lower case (never one that promotes beside another exit code than 0), `exit-code`, `run-id`,
    `checks-failed` (names, separated by commas), `summary-json` (all of these in one line of JSON, with numbers of
    checks), with a report `report-path` and `report-sha256`, and with a statement `statement-path`. Raises PublishError
    when a file cannot be read or written, or a value cannot be an output.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise PublishError(f"run id {run_id!r} is not fit for an output; expected letters, digits, '.', '_' and '-'")
    word = verdict.outcome.value.lower() if exit_code is ExitCode.OK else _WORDS.get(exit_code, "error")
    outputs = {"verdict": word, "exit-code": str(int(exit_code)), "run-id": run_id}
    found = checks_by_result(verdict, exit_code)
    failed = [_NOT_OF_A_NAME.sub("_", name)[:_LONGEST_NAME] for name in found.failed[:_MOST_NAMES]]
    summary = {
        "verdict": word,
        "exit_code": int(exit_code),
        "promotes": exit_code is ExitCode.OK,
        "run_id": run_id,
        "passed": len(found.passed),
        "warned": len(found.warned),
        "failed": len(found.failed),
        "checks_failed": failed,
    }
    outputs |= {"checks-failed": ",".join(failed), "summary-json": json.dumps(summary, sort_keys=True)}
    with _job_files("the verdict itself stands"):
        if report_path is not None:
            outputs["report-path"] = str(report_path)
            outputs["report-sha256"] = hashlib.sha256(report_path.read_bytes()).hexdigest()
        if statement_path is not None:
            outputs["statement-path"] = str(statement_path)
        _append_outputs(environment, outputs)


def withdraw_outputs(environment: Mapping[str, str]) -> None:
    """Write `error` and empty outputs, so that those of an earlier verdict do not apply to what follows.

    Raises PublishError when the file cannot be written.
    """
    with _job_files("nothing is measured, because its outputs could not be written"):
        _append_outputs(environment, {"verdict": "error", **dict.fromkeys(_OUTPUT_NAMES, "")})


@contextmanager
def _job_files(consequence: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise PublishError(f"GitHub's job files: {exc}; {consequence}") from exc


def _append_outputs(environment: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    if not (path := environment.get("GITHUB_OUTPUT")):
        return
    text = ""
    for name, value in outputs.items():
        if re.search(r"[\r\n]", value):  # a block between random delimiters
            delimiter = f"benchgate-{secrets.token_hex(16)}"
            text += f"{name}<<{delimiter}\n{value}\n{delimiter}\n"
        else:
            text += f"{name}={value}\n"
    with Path(path).open("ab") as file:
        file.write(text.encode())
