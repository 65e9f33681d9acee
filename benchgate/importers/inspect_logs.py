"""Logs of inspect_ai: `.json`, or `.eval`, a ZIP archive with a header and one JSON file per sample.

The fields are those of `EvalLog`, version 2 (inspect_ai 0.3, src/inspect_ai/log/_log.py). A log holds one task.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchgate.credentials import without_secrets
from benchgate.errors import SuiteError
from benchgate.importers.eval_items import (
    MEAN_TOLERANCE,
    Answer,
    EvalFormat,
    Reported,
    cluster_of,
    count_or_none,
    file_text,
    fingerprint,
    observe,
    problem,
    select_task,
    setting,
    suite_mismatches,
)
from benchgate.importers.reading import Field, read_json
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.records import EvalItem, finite_score
from benchgate.model.run import ImportedEvals, QualityObservation
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.system import RECORDED_BYTES, lacking

_VERSION = 2
_LOG_START = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')  # the order of keys is part of the format
_HEADER, _SAMPLES = "header.json", "samples/"
_ZSTD = 93
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError, ValueError)
"""Errors of Python's ZIP reader: RuntimeError for what is encrypted or packed in a way it does not know."""
_SCORES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_FINISH = {"stop": "stop", "tool_calls": "tool_calls", "max_tokens": "length", "model_length": "length"}
_CUT_SHORT = frozenset({"token", "message", "turn", "context", "cost"})  # limits that depend on the answers alone
_SERVICE_PROVIDERS = frozenset({"openai-api"})  # their models are called `provider/service/model`
_LIMIT = re.compile(r"\w+_limit(_type)?")  # settings of an eval that end a sample; `limit` is the number of samples
# Settings of generation that do not change answers.
_CLIENT_SETTINGS = frozenset({
    "max_retries", "timeout", "attempt_timeout", "max_connections", "adaptive_connections", "batch", "cache",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Log:
    """A log: its path and its header, which in a `.json` log holds the samples as well."""

    path: Path
    header: Field

    @property
    def names(self) -> tuple[str, ...]:
        """Return the task's names: as given, without its package, and with it."""
        spec = self.header.need("eval")
        task = spec.need("task").text()
        registered = spec.get("task_registry_name")
        others = () if registered is None else (registered.text(),)
        return tuple(dict.fromkeys((task, task.rpartition("/")[2], *others)))

    def samples(self) -> Iterator[tuple[str, Field]]:
        """Yield every sample with its place."""
        if self.path.suffix != ".eval":
            for number, sample in enumerate(self.header.need("samples").items()):
                yield f"samples[{number}]", sample
            return
        with zipfile.ZipFile(self.path) as archive:
            for name in archive.namelist():
                if name.startswith(_SAMPLES) and name.endswith(".json"):
                    yield name, _member(self.path, archive, name)


def is_log(path: Path) -> bool:
    """Return True for a log, or a folder with one."""
    if path.is_dir():
        return any(is_log(file) for file in path.iterdir() if file.suffix in (".eval", ".json") and file.is_file())
    if path.suffix == ".eval":
        return path.is_file()
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return _LOG_START.match(file.read(4096)) is not None


def read_logs(arm: Arm, path: Path, quality: Quality) -> ImportedEvals:
    """Read the suite's tasks from logs. Raises SuiteError or UsageError with file and sample for every mistake."""
    files = sorted(file for file in path.iterdir() if is_log(file)) if path.is_dir() else [path]
    logs = {str(file): _open_log(file) for file in files if file.is_file()}
    names = {key: log.names for key, log in logs.items()}
    observations: list[QualityObservation] = []
    digests: dict[str, object] = {}
    models, runs = set[str](), set[str]()
    for entry in quality.tasks:
        log = logs[select_task(names, entry.name, path)]
        spec = log.header.need("eval")
        observations.append(_observe_task(arm, log, quality, entry))
        digests[entry.name] = _file_sha256(log.path)
        models.add(_model(spec.need("model").text())[1])
        own = spec.get("eval_id") or spec.need("task_id")
        runs.add(f"inspect_ai {spec.need('run_id').text()} {own.text()}")
    facts: dict[str, object] = {"imported": True, "samples_sha256": digests, "model": ", ".join(sorted(models))}
    return ImportedEvals(tuple(observations), facts, frozenset(runs))


def _open_log(path: Path) -> _Log:
    if path.suffix == ".eval":
        try:
            with zipfile.ZipFile(path) as archive:
                if _HEADER not in archive.namelist():
                    raise SuiteError(
                        [problem(path, f"it has no {_HEADER}: the eval did not finish; run it to its end")]
                    )
                header = _member(path, archive, _HEADER)
        except _DAMAGE as exc:
            raise SuiteError([problem(path, f"is no whole ZIP archive ({exc}); copy the log again")]) from exc
    else:
        header = read_json(file_text(path), str(path))
    if (version := header.need("version")).value != _VERSION:
        version.refuse(f"version {_VERSION} of inspect_ai's log format; convert the log with a current inspect_ai")
    status = header.need("status")
    if status.value != "success":
        status.refuse('"success": an eval that failed or was interrupted is not whole; run it to its end')
    return _Log(path, header)


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> Field:
    """Parse a JSON file of the archive."""
    info = archive.getinfo(name)
    if info.file_size > RECORDED_BYTES:
        raise SuiteError([problem(path, f"{name} has more than {RECORDED_BYTES:,} bytes")])
    try:
        data = archive.read(info) if _can_unpack(info) else _unpack_zstd(path, archive, info)
        return read_json(data.decode("utf-8"), f"{path}:{name}")
    except _DAMAGE as exc:
        raise SuiteError([problem(path, f"{name} is damaged ({exc}); copy the log again")]) from exc


def _can_unpack(info: zipfile.ZipInfo) -> bool:
    return info.compress_type != _ZSTD or hasattr(zipfile, "ZIP_ZSTANDARD")  # from Python 3.14


def _unpack_zstd(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Unpack a Zstandard member with pyarrow, and verify its checksum."""
    try:
        import pyarrow
    except ImportError as exc:
        found = lacking("is packed with Zstandard, which this Python does not read", "parquet")
        conversion = "inspect log convert --to json --output-dir DIR LOG"
        raise SuiteError([problem(path, f"{found}, or convert it: {conversion}")]) from exc
    file: IO[bytes] | None = archive.fp
    assert file is not None, "the archive is open"
    file.seek(info.header_offset + 26)  # lengths of name and extra field in the local header
    lengths = file.read(4)
    file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
    if info.compress_size > path.stat().st_size:  # whose memory would be taken before anything is read
        raise zipfile.BadZipFile("it is cut off")
    packed = file.read(info.compress_size)
    try:
        data: bytes = pyarrow.Codec("zstd").decompress(packed, info.file_size).to_pybytes()
    except (OSError, ValueError) as exc:
        raise zipfile.BadZipFile(str(exc)) from exc
    if zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile("its checksum is another one")
    return data


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _Metric:
    """Score that is judged: its name, the scorer's name, and the mean that the log reports."""

    name: str
    scorer: str
    mean: float | None


def _observe_task(arm: Arm, log: _Log, quality: Quality, entry: TaskEntry) -> QualityObservation:
    metric = _metric(log, entry.metric)
    spec = log.header.need("eval")
    times = count_or_none(spec.need("config").get("epochs")) or 1
    systems: set[str] = set()
    answers = []
    for place, sample in log.samples():
        systems.add(_system(sample))
        answers.append(_answer(place, sample, metric, entry.cluster))
    source = str(log.path)
    observation = observe(entry.name, arm, answers, source, times, {**_settings(log), "metric": metric.name})
    found = {item.item_id for item in observation.items}
    faults = list(_count_faults(log.header, found, len(answers)))
    scores = [item.score for item in observation.items if item.score is not None]
    if metric.mean is not None and observation.fault is None:
        mean = sum(scores) / len(scores)
        if abs(mean - metric.mean) > MEAN_TOLERANCE:
            faults.append(
                f"the mean of {metric.name} over its samples is {mean:.6f}, and its results say {metric.mean:.6f}"
            )
    size = count_or_none(spec.need("dataset").get("samples"))
    reported = Reported(
        is_whole=None if size is None else len(found) == size,
        system=systems.pop() if len(systems) == 1 else None,
        max_tokens=count_or_none(_generation(log.header).get("max_tokens")),
    )
    faults += suite_mismatches(quality, entry, reported, len(found))
    if faults:
        raise SuiteError([problem(source, fault) for fault in faults])
    return observation


def _count_faults(header: Field, found: set[str], n_samples: int) -> Iterator[str]:
    """Yield samples that the header lists and the log lacks, or the reverse."""
    ids = header.need("eval", "dataset").get("sample_ids")
    listed = {str(one.value) for one in ids.items()} if ids is not None else found
    for text, missing in (("is missing", listed - found), ("is not in the header's list", found - listed)):
        if missing:
            yield f"sample {min(missing)!r} {text} ({len(missing)} such); copy the log again"
    total = header.need("results", "total_samples").count()
    if total != n_samples:
        yield f"it holds {n_samples} samples, and its results speak of {total}; copy the log again"


def _metric(log: _Log, declared: str | None) -> _Metric:
    """Return the declared score, else the first one of the results."""
    results = log.header.get("results")
    scores = [] if results is None else [(one.need("name").text(), one) for one in results.need("scores").items()]
    if not scores:
        raise SuiteError([problem(log.path, "its results have no score; score the log with `inspect score`")])
    name = declared or scores[0][0]
    score = next((one for key, one in scores if key == name), None)
    if score is None:
        known = ", ".join(repr(key) for key, _ in scores)
        raise SuiteError([problem(log.path, f"no score is called {name!r}; there are {known}")])
    reducer = score.get("reducer")
    mean = None
    if reducer is None or reducer.value == "mean":
        metrics = score.need("metrics")
        found = metrics.get("accuracy") or metrics.get("mean")
        mean = None if found is None else finite_score(found.need("value").value)
    return _Metric(name, score.need("scorer").text(), mean)


def _answer(place: str, sample: Field, metric: _Metric, cluster: str | None) -> Answer:
    """Read one sample. A sample with an error, or without a score, is a failed item."""
    sample_id = sample.need("id")
    if isinstance(sample_id.value, bool) or not isinstance(sample_id.value, str | int) or sample_id.value == "":
        sample_id.refuse("a sample's id, a text or a whole number")
    output = sample.get("output")
    choices = [] if output is None or (listed := output.get("choices")) is None else listed.items()
    stop = choices[0].get("stop_reason") if choices else None
    finish = None if stop is None else _FINISH.get(stop.text(), stop.text())
    if sample.get("limit") is not None:
        finish = "length"
    error = _error(sample)
    score, choice = (None, None) if error is not None else _score(sample, metric)
    if error is None and score is None:
        error = f"the scorer {metric.scorer} gave it no score"
    usage = None if output is None else output.get("usage")
    seconds = sample.get("working_time")
    document = {"input": _without_ids(sample.need("input").value), "choices": sample.value.get("choices")}
    item = EvalItem(
        item_id=str(sample_id.value),
        doc_hash=fingerprint(document),
        prompt_hash=fingerprint(_prompt(sample)),
        target_hash=fingerprint(sample.need("target").value),
        score=score,
        answer=_completion(output, choices),
        finish_reason=finish,
        output_tokens=None if usage is None else usage.need("output_tokens").count(),
        latency_ns=None if seconds is None else round(seconds.number() * 1e9),
        error=error,
        choice=choice,
        cluster=cluster_of(sample.get("metadata"), cluster),
        input_tokens=None if usage is None else usage.need("input_tokens").count(),
    )
    return Answer(place, sample.need("epoch").count(), item)


def _error(sample: Field) -> str | None:
    found = sample.get("error")
    if found is not None:
        return str(found.need("message").value)[:500]
    invalidated = sample.get("invalidation")
    if invalidated is not None:
        reason = invalidated.get("reason")
        return f"a person marked it invalid: {(reason and reason.value) or 'no reason given'}"[:500]
    limit = sample.get("limit")
    if limit is not None and (kind := limit.need("type").text()) not in _CUT_SHORT:
        return f"its {kind} limit ended it before it was done"
    return None


def _score(sample: Field, metric: _Metric) -> tuple[float | None, str | None]:
    """Return a sample's score and extracted answer. Raises UsageError for a value that is no score."""
    scores = sample.get("scores")
    found = None if scores is None else scores.get(metric.scorer) or scores.get(metric.name)
    if found is None:
        return None, None
    extracted = found.get("answer")
    choice = extracted.value if extracted is not None and isinstance(extracted.value, str) else None
    if found.value.get("reason") == "invalid_response_format":  # the scorer extracts, and found no answer
        choice = choice or ""
    value = found.get("value")
    if value is not None and isinstance(value.value, dict):
        value = value.get(metric.name)
    if value is None or value.value != value.value:  # NaN: the scorer could not score it
        return None, choice
    text = value.value
    score = finite_score(text)
    if score is None and isinstance(text, str):
        score = _SCORES.get(text, _SCORES.get(text.lower()))
        if score is None:
            with contextlib.suppress(ValueError):
                score = finite_score(float(text))
    if score is None:
        sample_id, epoch = sample.need("id").value, sample.need("epoch").value
        value.refuse(f"a number, or C, P, I or N, as the score of sample {sample_id!r}, epoch {epoch}")
    return score, choice


def _completion(output: Field | None, choices: Sequence[Field]) -> str | None:
    """Return the text of the answer."""
    text = None if output is None else output.get("completion")
    if text is not None and isinstance(text.value, str):
        return text.value
    return _text(choices[0].need("message")) if choices else None


def _text(message: Field) -> str:
    content = message.need("content")
    if isinstance(content.value, str):
        return content.value
    parts = (one.get("text") for one in content.items())
    return "".join(str(one.value) for one in parts if one is not None)


def _without_ids(sent: object) -> object:
    """Return messages without their random ids and those of their tool calls; any other input as it is."""
    if isinstance(sent, list):
        return [_without_ids(one) for one in sent]
    if not isinstance(sent, dict):
        return sent
    kept = {key: value for key, value in sent.items() if key not in ("id", "tool_call_id")}
    if "tool_calls" in kept:
        kept["tool_calls"] = _without_ids(kept["tool_calls"])
    return kept


def _prompt(sample: Field) -> object:
    """Return the messages before the model's first answer without their random ids; the input if there are none.

    A solver may put a dialogue of examples before the question: its answers are part of the prompt, and lack the mark
    of what the model generated. A custom solver may leave that mark out; then the first answer is the model's.
    """
    listed = sample.get("messages")
    messages = [] if listed is None else listed.items()
    answers = [number for number, one in enumerate(messages) if one.need("role").text() == "assistant"]
    generated = [number for number in answers if messages[number].value.get("source") == "generate"]
    first = min(generated or answers, default=len(messages))
    sent = [{key: one.value.get(key) for key in ("role", "content", "tool_calls")} for one in messages[:first]]
    return _without_ids(sent or sample.need("input").value)


def _system(sample: Field) -> str:
    """Return the system messages of a sample, "" for none."""
    listed = sample.get("messages")
    messages = [] if listed is None else listed.items()
    return "\n\n".join(_text(one) for one in messages if one.need("role").value == "system")


def _model(name: str) -> tuple[str, str]:
    """Split `vllm/org/model` into provider and served model."""
    provider, _, model = name.partition("/")
    if provider in _SERVICE_PROVIDERS:
        service, _, model = model.partition("/")
        provider = f"{provider}/{service}"
    return (provider, model) if model else ("", name)


def _generation(header: Field) -> Field:
    """Return the settings of generation: those of the plan over those of the model."""
    plan = header.need("plan")
    merged: dict[str, object] = {}
    for settings in (header.need("eval").get("model_generate_config"), plan.get("config")):
        if settings is not None:
            merged |= {key: one.value for key, one in settings.entries()}
    return Field(merged, header.source, f"{plan.path}.config")


def _settings(log: _Log) -> Mapping[str, object]:
    """Return settings that must be equal in both arms, without the unknown ones."""
    spec, plan = log.header.need("eval"), log.header.need("plan")
    packages, arguments, scorers = spec.get("packages"), spec.get("task_args"), spec.get("scorers")
    steps = [] if (listed := plan.get("steps")) is None else listed.items()
    generation = {key: setting(one) for key, one in _generation(log.header).entries() if key not in _CLIENT_SETTINGS}
    generation.pop("extra_headers", None)
    if "extra_body" in generation:
        generation["extra_body"] = without_secrets(generation["extra_body"])
    limits = {key: setting(one) for key, one in spec.need("config").entries() if _LIMIT.fullmatch(key)}
    found = {
        "format": "inspect_ai",
        "inspect_ai": None if packages is None or (own := packages.get("inspect_ai")) is None else own.text(),
        "provider": _model(spec.need("model").text())[0] or None,
        "task_version": setting(spec.get("task_version")),
        "task_args_sha256": None if arguments is None else sha256_of(setting(arguments)),
        "solver_sha256": sha256_of([[setting(one.need("solver")), setting(one.get("params"))] for one in steps]),
        "scorers_sha256": None if scorers is None else sha256_of(setting(scorers)),
        "generation": generation or None,
        **limits,
    }
    return {key: value for key, value in found.items() if value is not None}


INSPECT_AI = EvalFormat("inspect_ai", is_log, read_logs)
