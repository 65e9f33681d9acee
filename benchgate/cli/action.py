"""Steps of action.yml and of the reusable workflows, behind the hidden command `benchgate action STEP`.

scripts/action starts them. Inputs arrive as variables INPUT_*, and reach benchgate as single arguments or variables of
a child process: no shell reads them. Only the standard library is imported: the job that signs installs nothing.
"""

from __future__ import annotations

import base64
import filecmp
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.cli.saying import log_text, say, say_escaped
from benchgate.errors import BenchgateError, PublishError, UsageError
from benchgate.escape import terminal_line
from benchgate.escaped_streams import escape_streams

Program = Callable[[Sequence[str], Mapping[str, str]], int]
"""Run benchgate with these arguments and variables; return its exit status."""

_VERDICTS = {10: "block", 11: "inconclusive", 12: "invalid"}
_OUTPUTS = ("run-id", "report-path", "report-sha256", "statement-path", "summary-json", "checks-failed")
# Verdicts after which the step is green although the candidate may not be promoted.
_TOLERATED: dict[str, frozenset[str]] = {
    "block": frozenset({"inconclusive"}),
    "inconclusive": frozenset(),
    "warn": frozenset(),
    "never": frozenset({"inconclusive", "block", "invalid"}),
}
# Options of the run that have an input: jobs after it judge again, and read that alone.
_NOT_ARGS = {"--strict": "the input `fail-on: warn`", "--waivers": "the input `waivers`"}
# Variables that decide which program runs, or what GitHub and benchgate take from it.
_STEERING = re.compile(
    r"PATH|HOME|ENV|IFS|SHELL|(PYTHON|BASH|LD_|DYLD_|GIT_|GITHUB_|RUNNER_|ACTIONS_|BENCHGATE_|INPUT_).*"
)
_SHORTEST_MASKED = 8  # characters; masking a shorter value would blot the whole log
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BUNDLE_NAME = re.compile(r"[0-9a-f-]{36}\.json")
_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_BRANCH_FOLDER = "runs"
_TRIES = 8  # each fails only if another push came first
_TEST_RESULT = re.compile(r"https://in-toto\.io/attestation/test-result/v[0-9.]+")
_SUBJECT_NAME = re.compile(r"[A-Za-z0-9._@:/+-]{1,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_USAGE = "expected gate, history fetch, history push FILE..., publish [begin], promote or attest FILE"


def run_benchgate(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run this benchgate in a process of its own; a signal that ended it counts as 128 and its number."""
    command = [sys.executable, "-P", "-m", "benchgate", *arguments]  # -P: nothing is imported from the working folder
    with subprocess.Popen(command, env=environment) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            raise
    return status if status >= 0 else 128 - status


def main(arguments: Sequence[str], variables: Mapping[str, str], benchgate: Program = run_benchgate) -> int:
    """Run one step with the variables of its job; return its exit status. Refusals are shown as GitHub's errors."""
    step = Step.read(variables, benchgate)
    try:
        match list(arguments):
            case ["gate"]:
                return gate(step)
            case ["history", "fetch"]:
                return fetch_history(step)
            case ["history", "push", *paths]:
                return push_history(step, paths)
            case ["publish"]:
                return publish(step)
            case ["publish", "begin"]:
                # The check run is in progress before there is anything to judge.
                begin = ("--check-run", f"--begin={step.required('suite')}")
                return step.call("publish", *begin, *step.options("candidate"))
            case ["promote"]:
                return promote(step)
            case ["attest", statement]:
                return split_statement(step, Path(statement))
            case _:
                raise UsageError(_USAGE)
    except BenchgateError as error:
        _annotate("error", str(error))
        return int(error.exit_code)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a job: its inputs, its other variables, and benchgate as a child process."""

    inputs: Mapping[str, str]
    environment: Mapping[str, str]
    benchgate: Program

    @classmethod
    def read(cls, variables: Mapping[str, str], benchgate: Program) -> Step:
        """Separate INPUT_* from the variables of the job."""
        prefix = "INPUT_"
        inputs = {name.removeprefix(prefix): value for name, value in variables.items() if name.startswith(prefix)}
        return cls(inputs, {name: value for name, value in variables.items() if not name.startswith(prefix)}, benchgate)

    def input(self, name: str) -> str:
        """Return an input; an absent one is empty."""
        return self.inputs.get(name.upper().replace("-", "_"), "")

    def required(self, name: str) -> str:
        """Return an input that may not be empty. Raises UsageError."""
        if value := self.input(name):
            return value
        raise UsageError(f"input {name} is empty")

    def flag(self, name: str) -> bool:
        """Return an input that is true or false. Raises UsageError: an expression without a value is neither."""
        value = self.input(name)
        if value not in ("true", "false"):
            raise UsageError(f"input {name} is neither true nor false")
        return value == "true"

    def fail_on(self) -> str:
        """Return the mildest result that fails the step. Raises UsageError for an unknown or empty one."""
        value = self.input("fail-on")
        if value not in _TOLERATED:
            raise UsageError(f"input fail-on is none of {', '.join(_TOLERATED)}")
        return value

    def arguments(self) -> list[str]:
        """Return the further arguments of the run. Raises UsageError for those that later jobs would not know."""
        found = self.input("args").split()
        for one in found:
            name = one.split("=")[0]
            if instead := _NOT_ARGS.get(name):
                raise UsageError(f"input args has {name}; write {instead}, which publish and promote read too")
        return found

    def strict(self) -> list[str]:
        """Return the option with which a WARN is a BLOCK, if a WARN is to fail the step."""
        return ["--strict"] if self.fail_on() == "warn" else []

    def run_id(self) -> str:
        """Return the id of the gate's run, empty if it has none. Raises UsageError for text that is no id."""
        value = self.input("run-id")
        if value and not _RUN_ID.fullmatch(value):
            raise UsageError("input run-id is not the id of a run")
        return value

    def options(self, *names: str, **renamed: str) -> list[str]:
        """Return `--name=value` for each input that is not empty; `renamed` holds the inputs of other options."""
        inputs = {**{name: name for name in names}, **renamed}
        return [f"--{option}={value}" for option, name in inputs.items() if (value := self.input(name))]

    def variable(self, name: str) -> str:
        """Return a variable that GitHub sets in every job. Raises UsageError."""
        if value := self.environment.get(name):
            return value
        raise UsageError(f"{name} is not set; this command is a step of GitHub Actions")

    @property
    def work_dir(self) -> Path:
        """Folder of this job outside of the checkout, which may bring along files of the change that is judged."""
        return Path(self.variable("RUNNER_TEMP"), "benchgate")

    def call(self, *arguments: str, **more: str) -> int:
        """Run benchgate and return its exit status.

        The store goes through the environment, so that a password in its address is in no process list. The input wins
        over the variable of the job; without either the store is a new one in the work folder.
        """
        store = self.input("store") or self.environment.get("BENCHGATE_STORE") or str(self.work_dir / "benchgate.db")
        return self.benchgate(arguments, {**self.environment, "BENCHGATE_STORE": store, **more})


def gate(step: Step) -> int:
    """Measure and judge, and hand the verdict on.

    The exit status of `benchgate run` decides the `verdict` output. Only status 0 together with a verdict that
    benchgate wrote is pass or warn; a crash, a kill or a missing program is `error`. `fail-on` changes the status of
    the step and never the verdict.
    """
    fail_on = step.fail_on()
    options = [f"--work-dir={step.work_dir}"]
    options += step.options("baseline", "candidate", "label", "waivers", report="report-path")
    files = {"intoto": step.input("statement-path"), "junit": step.input("junit-path")}
    options += [f"--write={form}={path}" for form, path in files.items() if path]
    options += [*step.strict(), *step.arguments(), "--", step.required("suite")]
    outputs_file = Path(step.variable("GITHUB_OUTPUT"))
    step = replace(step, environment={**step.environment, **_secret_variables(step.input("variables"))})

    # Programs that the suite runs know GITHUB_OUTPUT too. benchgate has a file of its own, of which only known names
    # are handed on, once benchgate has ended: a step that is killed says `error` alone.
    with tempfile.TemporaryDirectory(prefix="benchgate-outputs.", dir=step.variable("RUNNER_TEMP")) as folder:
        private = Path(folder, "outputs")
        private.touch()
        status = step.call("run", *options, GITHUB_OUTPUT=str(private))
        written = _read_outputs(private)
    verdict = _VERDICTS.get(status, "error")
    if status == 0:
        verdict = written.get("verdict", "")
        if verdict not in ("pass", "warn"):
            verdict, status = "error", 1

    bundle = ""
    if (folder := step.input("bundle-folder")) and verdict != "error":
        run_id = written["run-id"]
        if run_id and step.call("store", "export", f"--to={folder}", "--", run_id) == 0:
            bundle = f"{folder}/{run_id}.json"
        elif status == 0:  # publishing and promoting need the bundle
            verdict, status = "error", 13

    if _summary_of(written["summary-json"]) != (verdict, status):  # it was written before something failed
        written["summary-json"] = ""
    outputs = {name: written[name] for name in _OUTPUTS}
    _append(outputs_file, **outputs, **{"bundle-path": bundle, "exit-code": str(status), "verdict": verdict})
    if verdict == "error":
        message = f"benchgate ended with status {status} and no verdict that lets a candidate through. Not promoted."
        _annotate("error", message)
        if summary := step.environment.get("GITHUB_STEP_SUMMARY"):
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(f"**{message}**\n")
    elif verdict in _TOLERATED[fail_on]:
        _annotate("warning", f"The verdict is {verdict}. fail-on lets the step pass; nothing may be promoted.")
        return 0
    return status


def _secret_variables(text: str) -> dict[str, str]:
    """Read lines NAME=value, mask the values in the log, and return them.

    A called workflow cannot be given an `env:`, so what a suite names as ${env:NAME} comes in one secret. Raises
    UsageError for names that steer programs: they would decide what runs, not what is measured.
    """
    found = {}
    for line in text.split("\n"):
        name, equals, value = line.removesuffix("\r").partition("=")
        if not line.strip():
            continue
        if not equals or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            raise UsageError("a line of the secret variables is not NAME=value, in capitals")
        if _STEERING.fullmatch(name):
            allowed = "they are for what a suite names as ${env:NAME}"
            raise UsageError(f"the secret variables may not set {name}; {allowed}")
        if len(value) >= _SHORTEST_MASKED:
            _command("add-mask", value)
        found[name] = value
    return found


def _read_outputs(path: Path) -> dict[str, str]:
    """Return the last value of each of benchgate's outputs; unprintable values and ids that are none become empty."""
    found = dict.fromkeys(_OUTPUTS, "")
    for line in path.read_bytes().decode("utf-8", "replace").split("\n"):
        name, equals, value = line.partition("=")
        if equals and (name in found or name == "verdict"):
            found[name] = value if value.isprintable() else ""
    if not _RUN_ID.fullmatch(found["run-id"]):
        found["run-id"] = ""
    return found


def _summary_of(text: str) -> tuple[object, object] | None:
    """Return verdict and exit code of the output `summary-json`; None if it has none."""
    try:
        summary = json.loads(text)
        return summary["verdict"], summary["exit_code"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def publish(step: Step) -> int:
    """Judge the run again from its bundle in evidence/ and publish the verdict, or that there is none."""
    suite, run_id, strict = step.required("suite"), step.run_id(), step.strict()
    options = [f"--{name}" for name in ("comment", "check-run") if step.flag(name)]
    bundle = Path("evidence", f"{run_id}.json")
    if not run_id or not bundle.is_file():
        return step.call("publish", *options, f"--no-verdict={suite}", *step.options("candidate"))
    if Path(suite).is_file():  # the check run points at its lines
        options.append(f"--suite={suite}")
    options += [*strict, *step.options("waivers"), "--", run_id]
    return step.call("store", "import", str(bundle)) or step.call("publish", *options)


def promote(step: Step) -> int:
    """Judge the run again from its bundle in evidence/, record the promotion, and export both to promoted/.

    Returns the verdict's own code if that says no.
    """
    run_id = step.run_id() or step.required("run-id")
    options = [f"--report={step.required('report')}", *step.strict(), *step.options("waivers"), *_waivers_day(step)]
    options += ["--require-pinned"] if step.flag("require-pinned") else []
    promoted = Path("promoted")  # if the checkout has one, it was not promoted here
    if promoted.is_dir() and not promoted.is_symlink():
        shutil.rmtree(promoted)
    else:
        promoted.unlink(missing_ok=True)
    return (
        step.call("store", "import", f"evidence/{run_id}.json")
        or step.call("promote", *options, "--", run_id)
        or step.call("store", "export", f"--to={promoted}", "--", run_id)
    )


def _waivers_day(step: Step) -> list[str]:
    """Return the option with the day as of which the gate evaluated its waivers: a promotion may be approved later.

    The day is the statement's. Without one `benchgate promote` evaluates them as of today.
    """
    if not step.input("waivers"):
        return []
    try:
        statement = json.loads(Path("evidence", "statement.intoto.json").read_bytes())
        day = statement["predicate"]["benchgate"]["waivers_as_of"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []
    return [f"--as-of={day}"] if _DAY.fullmatch(str(day)) else []


class History:
    """A branch without ancestors that holds one bundle for each run, named by its id.

    No two runs share a file, so pushes merge without conflict. What the branch holds is data: symbolic links are
    checked out as files, and filters of Git LFS do not run. The token reaches git through its environment alone.
    """

    def __init__(self, step: Step, scratch: Path) -> None:
        """Raises UsageError for a name that is no branch's."""
        self.branch = step.required("history-branch")
        if not _BRANCH.fullmatch(self.branch):
            raise UsageError("input history-branch is not the name of a branch")
        server = step.environment.get("GITHUB_SERVER_URL", "")
        self.remote = step.input("history-remote")
        if not self.remote:
            self.remote = f"{step.variable('GITHUB_SERVER_URL')}/{step.variable('GITHUB_REPOSITORY')}.git"
        self.scratch = scratch
        self.folder = scratch / "branch"
        own = {name: value for name, value in step.environment.items() if name != "GITHUB_TOKEN"}
        self.step = replace(step, environment=own)
        settings = {"core.symlinks": "false"}
        token = step.environment.get("GITHUB_TOKEN")
        if token and server and self.remote.startswith(f"{server}/"):
            basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
            _command("add-mask", basic)
            settings[f"http.{server}/.extraheader"] = f"AUTHORIZATION: basic {basic}"
        self.environment = {**own, "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_LFS_SKIP_SMUDGE": "1"}
        self.environment["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (key, value) in enumerate(settings.items()):
            self.environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}

    def git(self, *arguments: str) -> int:
        """Run git and return its exit status; its complaints go to the log, escaped."""
        done = subprocess.run(
            ["git", *arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.stderr:
            log_text(done.stderr)
        return done.returncode

    def check_out(self) -> bool:
        """Make `folder` the newest state of the branch, or an empty start of it; False if the remote is silent."""
        shutil.rmtree(self.folder, ignore_errors=True)
        folder = str(self.folder)
        found = self.git("ls-remote", "--quiet", "--exit-code", self.remote, f"refs/heads/{self.branch}")
        if found == 0:
            clone = ("clone", "--quiet", "--depth", "1", "--single-branch", "--branch", self.branch)
            return self.git(*clone, "--", self.remote, folder) == 0
        if found != 2:  # 2: the remote has no such branch
            return False
        return (
            self.git("init", "--quiet", "--initial-branch", self.branch, "--", folder) == 0
            and self.git("-C", folder, "remote", "add", "origin", self.remote) == 0
        )

    def add(self, bundle: Path) -> bool:
        """Put one bundle into `folder`. Merge it with the branch's own, so that a promotion recorded there stays."""
        place = self.folder / _BRANCH_FOLDER / bundle.name
        if not place.exists() or filecmp.cmp(bundle, place, shallow=False):
            shutil.copyfile(bundle, place)
            return True
        store = f"--store={self.scratch / f'merged-{bundle.stem}.db'}"
        return (
            self.step.call("store", "import", str(place), str(bundle), store) == 0
            and self.step.call("store", "export", f"--to={place.parent}", store, "--", bundle.stem) == 0
        )

    def offer(self, bundles: Sequence[Path]) -> bool:
        """Try once to push; True if the branch now has all bundles. Raises PublishError for one that does not fit."""
        folder = self.folder / _BRANCH_FOLDER
        if not self.check_out():
            return False
        try:
            folder.mkdir(exist_ok=True)
        except OSError:  # the branch has a file or a link of that name
            return False
        for bundle in bundles:
            if not self.add(bundle):
                raise PublishError(f"{bundle.name} contradicts what the branch has of that run.")
        here = ("-C", str(self.folder))
        if self.git(*here, "add", "--", _BRANCH_FOLDER) != 0:
            return False
        has_commit = self.git(*here, "rev-parse", "--quiet", "--verify", "HEAD") == 0
        if has_commit and self.git(*here, "diff", "--cached", "--quiet") == 0:
            return True
        author = ("-c", "user.name=benchgate", "-c", "user.email=benchgate@users.noreply.invalid")
        commit = ("commit", "--quiet", "--message", f"benchgate: {bundles[0].stem}")
        return (
            self.git(*here, *author, *commit) == 0
            and self.git(*here, "push", "--quiet", "origin", f"HEAD:refs/heads/{self.branch}") == 0
        )


def fetch_history(step: Step) -> int:
    """Import every run of the branch into the job's store. A branch that is not there yet is an empty history.

    Raises PublishError if the branch cannot be read, or one of its runs is not what was put there.
    """
    with tempfile.TemporaryDirectory(prefix="benchgate-history.", dir=step.variable("RUNNER_TEMP")) as scratch:
        history = History(step, Path(scratch))
        if not history.check_out():
            raise PublishError(
                f"The branch {history.branch} could not be read; the job needs 'permissions: contents: read'."
            )
        folder = history.folder / _BRANCH_FOLDER
        if not any(folder.glob("*.json")):
            say(f"The branch {history.branch} has no run yet.\n")
        elif history.step.call("store", "import", str(folder)) != 0:
            raise PublishError(f"Runs of the branch {history.branch} are not what was put there (above).")
    return 0


def push_history(step: Step, paths: Sequence[str], *, wait_s: float = 1.0) -> int:
    """Add bundles, given as files or folders of them, to the branch. Raises PublishError if they did not get there."""
    bundles = _find_bundles(paths)
    with tempfile.TemporaryDirectory(prefix="benchgate-history.", dir=step.variable("RUNNER_TEMP")) as scratch:
        history = History(step, Path(scratch))
        for number in range(1, _TRIES + 1):
            if history.offer(bundles):
                say(f"The branch {history.branch} has {len(bundles)} run(s) of this job.\n")
                return 0
            reason = "another job may have been quicker"
            say(f"Try {number} of {_TRIES} did not reach the branch {history.branch}; {reason}.\n")
            time.sleep(random.randint(1, number) * wait_s)  # not in step with the other jobs
        raise PublishError(
            f"The branch {history.branch} was not reached in {_TRIES} tries; the job needs 'permissions: contents: "
            "write', and no rule may forbid it."
        )


def _find_bundles(paths: Sequence[str]) -> list[Path]:
    """Return the bundles that are named, and those in folders that are named."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(file for file in path.rglob("*.json") if _BUNDLE_NAME.fullmatch(file.name))
        elif path.is_file() and _BUNDLE_NAME.fullmatch(path.name):
            found.append(path)
        else:
            raise PublishError(f"{path} is not a bundle named after its run, RUN.json.")
    if not found:
        raise PublishError("push needs the bundles to keep.")
    return found


def split_statement(step: Step, path: Path) -> int:
    """Write the parts of a statement that actions/attest takes: the predicate, and the subjects as checksums.

    The statement's own file is one more subject, so that it can be looked up by itself. Raises UsageError for another
    kind of statement, or a subject that is not a plain name with a SHA-256.
    """
    data = path.read_bytes()
    statement = json.loads(data)
    kind, subjects = str(statement["predicateType"]), [(path.name, hashlib.sha256(data).hexdigest())]
    # Checksums are SHA-256: a model that is known by a commit of git is named in the predicate alone.
    subjects += [(one["name"], one["digest"]["sha256"]) for one in statement["subject"] if "sha256" in one["digest"]]
    if not _TEST_RESULT.fullmatch(kind):
        raise UsageError(f"{path.name}: expected a test result, found another kind of statement")
    if not all(_SUBJECT_NAME.fullmatch(name) and _SHA256.fullmatch(digest) for name, digest in subjects):
        raise UsageError(f"{path.name}: a subject is not a plain name with a SHA-256")
    predicate, checksums = path.with_name("predicate.json"), path.with_name("subjects.txt")
    predicate.write_text(json.dumps(statement["predicate"]), encoding="utf-8")
    checksums.write_text("".join(f"{digest}  {name}\n" for name, digest in subjects), encoding="utf-8")
    outputs = {"predicate": str(predicate), "predicate-type": kind, "subjects": str(checksums)}
    _append(Path(step.variable("GITHUB_OUTPUT")), **outputs)
    return 0


def _append(path: Path, **outputs: str) -> None:
    """Append outputs of the step; the last one of a name wins. A newline would begin an output of its own."""
    if broken := [name for name, value in outputs.items() if not value.isprintable()]:
        raise UsageError(f"output {broken[0]} is not one line of text")
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{name}={value}\n" for name, value in outputs.items()))


def _annotate(level: str, message: str) -> None:
    _command(f"{level} title=benchgate", terminal_line(message))


def _command(name: str, text: str) -> None:
    """Write a workflow command whose text cannot end it (actions/toolkit, `escapeData`)."""
    data = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    say_escaped(f"::{name}::{data}\n", redacted=name != "add-mask")  # the runner masks what it is told, not [redacted]


if __name__ == "__main__":  # with a Python that benchgate is not installed for
    escape_streams()
    sys.exit(main(sys.argv[1:], os.environ))
