"""Mistakes of a new user: the exit code, and a message with the cause, the place, what was expected and what to do.

The whole messages are in `tests/golden/mistakes.txt`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchgate import __version__
from benchgate.cli.app import COMMANDS
from benchgate.model.client import ClientProfile, ClientStep
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.pipeline.environment import client_machine, utc_now
from benchgate.pipeline.judge import decide_stored
from benchgate.store.repository import Store
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.server_lock import locked_servers
from tests.e2e.command import STORE, here
from tests.fakes import certificates
from tests.fakes.promotable import BLOCKED, begun, days_ago
from tests.fakes.receiver import receiving
from tests.fakes.scripted_server import Received, ScriptedServer, answering, json_response

pytestmark = pytest.mark.beside

GOLDEN = Path(__file__).parents[1] / "golden" / "mistakes.txt"

SUITE = """\
suite: chat
deployments:
  stable: {url: "http://127.0.0.1:9", model: chat}
  awq: {url: "http://127.0.0.1:9", model: chat-awq}
baseline: stable
candidate: awq
load:
  workload: {input: 100, output: 50}
  blocks: 4
  sweep:
    - {stage: c4, concurrency: 4, requests: 60}
    - {stage: r2, rate: 2/s, requests: 60}
gate:
  checks:
    - {metric: ttft, statistic: p50, margin: 10%}
    - {metric: error_rate, max: 10%}
"""
WAIVER = "waivers: [{check: ttft-p50@c4, suite: SUITE, deployment: DEPLOYMENT, ceiling: 20%, expires: 2020-01-01, "
WAIVER += "owner: ada, issue: X-1, approved_by: ben, reason: cold cache}]\n"
MINE = WAIVER.replace("SUITE", "made-up").replace("DEPLOYMENT", "candidate")
FILES = {
    "empty.jsonl": "",
    "prompts.csv": "question,output\nhello,5\n",
    "typo.jsonl": '{"promt": "hello"}\n',
    "prices.yaml": "prices:\n  - {deployment: other, price: $3/h}\n",
    "unreasoned.yaml": MINE.replace(", reason: cold cache", ""),
    "expired.yaml": MINE,
    "unknown.yaml": MINE.replace("p50", "p95").replace("2020-01-01", days_ago(-30)),
    "demand.yaml": "demand: {output_tokens_per_sec: 5000}\n",
    "sized.yaml": "demand: {output_tokens_per_s: 5000}\n",
    "other.yaml": "suite: made-up\n",
}


@dataclass(frozen=True)
class Mistake:
    """A command line, the parts of its message, and the change of `s.yaml` that it needs."""

    name: str
    command: str
    wrong: str
    where: str
    expected: str
    remedy: str
    change: tuple[str, str] | bytes = field(default=("", ""), kw_only=True)  # or the whole content
    code: int = field(default=2, kw_only=True)


def suite(name: str, old: str, new: str, wrong: str, where: str, expected: str, remedy: str) -> Mistake:
    """Return a mistake in the suite file, found by `plan`."""
    return Mistake(name, "plan s.yaml", wrong, f"s.yaml:{where}: ", expected, remedy, change=(old, new))


LOAD = "load http://127.0.0.1:9 --model m"

MISTAKES = [
    # The suite file as text.
    suite("key twice", "blocks: 4\n", "blocks: 4\n  blocks: 8\n",
          "written twice", "10:3: load.blocks", "first in line 9", "remove one of them"),
    suite("tab", "  blocks: 4", "\tblocks: 4",
          "found character '\\t'", "9:1", "indent with spaces", "not with tabs"),
    suite("quote not closed", "suite: chat", 'suite: "chat',
          "quote", "1:8", "not closed in its line", "close it"),
    suite("quote not closed in braces", '9", model: chat}', "9, model: chat}",
          "quote", "3:17", "not closed in its line", "close it"),
    suite("indentation", "  blocks: 4", "   blocks: 4",
          "this is not YAML", "9:4", "expected <block end>", "by the same number of spaces"),
    Mistake("empty file", "plan s.yaml", "is empty", "s.yaml: ", "the suite",
            "see docs/reference/suite.md", change=b""),
    Mistake("JSON with an error", "plan s.yaml", "found ']'", "s.yaml:1:19: ", "expected the node content",
            "close every quote and bracket", change=b'{"suite": "chat", ]}'),
    Mistake("a list", "plan s.yaml", "the suite is a list", "s.yaml:1:1: ", "expected keys and values",
            "like `suite: my-model`", change=b"[1, 2]"),
    Mistake("a picture", "plan s.yaml", "is not text (byte 0x89", "the suite s.yaml", "a YAML file",
            "saved as UTF-8", change=b"\x89PNG\r\n\x1a\n"),
    Mistake("a folder", "plan .", "is a folder", "'.'", "expected a suite file", "like 'suite.yaml'"),
    Mistake("no such suite", "plan oter.yaml", "there is no suite file", "'oter.yaml'", "did you mean", "'other.yaml'"),
    Mistake("no such shipped suite", "run dmeo", "there is no suite file", "'dmeo'", "the shipped suite", "'demo'"),
    Mistake("no suite yet", "run gateway.yaml", "there is no suite file", "'gateway.yaml'", "name a shipped one: demo",
            "write one with `benchgate init`"),
    # Its keys.
    suite("unknown section", "gate:", "gates:", "unknown key", "13:1: gates", "did you mean", "`gate`"),
    suite("unknown key", "sweep:", "sweeep:", "unknown key", "10:3: load.sweeep", "did you mean", "`sweep`"),
    suite("key of another section", "blocks: 4", "blocks: 4\n  timeout: 500",
          "unknown key here", "10:3: load.timeout", "it belongs in", "`quality`"),
    suite("unknown metric", "metric: ttft", "metric: tftt",
          'found "tftt"', "15:16: gate.checks[0].metric", "did you mean", "`ttft`"),
    suite("unknown statistic", "p50", "p96",
          'found "p96"', "15:33: gate.checks[0].statistic", "did you mean", "`p99`"),
    suite("unknown stage", "metric: ttft,", "metric: ttft, stage: c5,",
          'no stage of the sweep is named "c5"', "15:29: gate.checks[0].stage", "expected one of", "c4, r2"),
    suite("unknown task", "gate:\n  checks:", "quality: {tasks: [gsm8k]}\ngate:\n  checks:\n"
          "    - {metric: accuracy, task: gms8k, margin: 2 points}",
          'no task of `quality` is named "gms8k"', "16:32: gate.checks[0].task", "did you mean", "`gsm8k`"),
    suite("unknown arm", "candidate: awq", "candidate: awg",
          'no deployment is named "awg"', "6:12: candidate", "did you mean", "`awq`"),
    suite("unknown engine", "model: chat}", "model: chat, engine: vlm}",
          'found "vlm"', "3:60: deployments.stable.engine", "did you mean", "`vllm`"),
    suite("duration without a unit", "load:", "slo: {ttft: 500, target: 95%}\nload:",
          "500 is not a duration", "7:13: slo.ttft", "write it with its unit", '"500ms"'),
    suite("margin of two units", "10%}\n", "5 ms%}\n",
          '"5 ms%" is not a percentage', "15:46: gate.checks[0].margin", "a part of the baseline's value", '"5%"'),
    suite("margin without a unit", "margin: 10%", "margin: 10",
          "10 is not a percentage", "15:46: gate.checks[0].margin", "write it with its unit", '"5%"'),
    suite("rate without a unit", "rate: 2/s", "rate: 2",
          "2 is not a rate", "12:25: load.sweep[1].rate", "write it with its unit", '"8/s"'),
    suite("negative requests", "concurrency: 4, requests: 60", "concurrency: 4, requests: -60",
          "found -60", "11:45: load.sweep[0].requests", "expected a whole number", "at least 1"),
    suite("no blocks", "blocks: 4", "blocks: 0",
          "found 0", "9:11: load.blocks", "expected a whole number", "at least 2"),
    suite("check without a margin", ", margin: 10%", "",
          "found none of them", "15:7: gate.checks[0]", "exactly one of `margin`", "add one, like `margin: 10%`"),
    suite("margin and bound", "margin: 10%", "margin: 10%, max: 500ms",
          "found `margin` and `max`", "15:7: gate.checks[0]", "exactly one of `margin`", "leave out one"),
    suite("margin without a metric", "metric: ttft, ", "",
          "is required and missing", "15:7: gate.checks[0].metric", "expected one of", "ttft, "),
    suite("stage without a load", "concurrency: 4, ", "",
          "a stage needs", "11:7: load.sweep[0]", "exactly one of `concurrency`", "add for example `concurrency: 8`"),
    suite("stage with two loads", "concurrency: 4, ", "concurrency: 4, rate: 2/s, ",
          "a stage needs", "11:7: load.sweep[0]", "exactly one of `concurrency`", "leave out `concurrency` or `rate`"),
    suite("two stages of one name", "stage: r2", "stage: c4",
          'the name "c4" is taken', "12:15: load.sweep[1].stage", "by load.sweep[0]", "name each stage differently"),
    suite("deployment without an address", 'url: "http://127.0.0.1:9", model: chat}', "model: chat}",
          "a deployment needs", "3:11: deployments.stable", "exactly one of `url`", 'like `url: "http://host:8000"`'),
    suite("address of an endpoint", '9", model: chat}', '9/v1/chat/completions", model: chat}',
          "ends in /v1/chat/completions", "3:17: deployments.stable.url", "which benchgate adds itself", "remove it"),
    suite("deployment without a model", ", model: chat}", "}",
          "a deployment with a `url`", "3:11: deployments.stable", "needs the `model` name", "add `model: NAME`"),
    # Secrets and variables.
    suite("API key written out", "model: chat}", "model: chat, api_key: sk-123456}",
          "holds a literal", "3:61: deployments.stable.api_key", "a suite holds no secret", "write ${env:NAME}"),
    suite("variable in capitals", "model: chat}", 'model: chat, api_key: "${ENV:CHAT_KEY}"}',
          "holds a literal", "3:61: deployments.stable.api_key", "did you mean", "${env:CHAT_KEY}"),
    suite("variable of the shell", "model: chat}", "model: chat, api_key: $CHAT_KEY}",
          "holds a literal", "3:61: deployments.stable.api_key", "did you mean", "${env:CHAT_KEY}"),
    Mistake("variable that is not set", "run s.yaml", "NO_SUCH_KEY is not set",
            "s.yaml:3:61: deployments.stable.api_key", "the environment variable", "set it and run again",
            change=("model: chat}", 'model: chat, api_key: "${env:NO_SUCH_KEY}"}')),
    # Files that a suite names.
    suite("no such data", "{input: 100,", "{prompts: none.jsonl,",
          "No such file", "8:23: load.workload.prompts", "a JSON or JSONL file", "beside the suite"),
    suite("empty data", "{input: 100,", "{prompts: empty.jsonl,",
          "the file has no prompts", "8:23: load.workload.prompts", "one JSON object", "write one"),
    Mistake("data as CSV", "plan s.yaml", "no column is called prompt", "prompts.csv: columns", "found `question`",
            "write `columns: {prompt: COLUMN}`", change=("{input: 100,", "{prompts: prompts.csv,")),
    Mistake("data with a typo", "plan s.yaml", "found `promt`", "typo.jsonl:1: ", "expected", "`prompt`",
            change=("{input: 100,", "{prompts: typo.jsonl,")),
    Mistake("prices of another model", "plan s.yaml", '"stable" has no price on', "prices.yaml:2:3: prices",
            "the file has other", "add one by its name", change=("load:", "prices: prices.yaml\nload:")),
    Mistake("no such prices", "plan s.yaml", "No such file", "s.yaml:7:9: prices", "the file of prices",
            "`prices` names one beside the suite", change=("load:", "prices: pices.yaml\nload:")),
    # Waivers.
    Mistake("waiver without a reason", "gate bad --waivers unreasoned.yaml", "is required and missing",
            "unreasoned.yaml:1:11: waivers[0].reason", "expected", "the reason why it is tolerated"),
    Mistake("no such waivers", "gate bad --waivers none.yaml", "No such file", "none.yaml", "the file of waivers",
            "which `benchgate waive` writes"),
    Mistake("waiver of an unknown check", "gate good --waivers unknown.yaml", 'has no check "ttft-p95@c4"',
            "unknown.yaml:1:11: ", "did you mean", "`ttft-p50@c4`", code=0),
    Mistake("expired waiver", "gate spare --waivers expired.yaml", "is expired", "the waiver of ttft-p50@c4 (X-1, ada)",
            "expired at the end of 2020-01-01", "look at the candidate", code=10),
    Mistake("waiver in the past", "waive ttft-p50@c4 --run bad --ceiling 20% --expires 2020-01-01 --owner ada --issue "
            "X-1 --reason cold --approved-by ben", "is past", "--expires 2020-01-01", "write a day", "on"),
    # Files on this machine.
    Mistake("store in a folder", "gate --store .", "is a folder", "the store ", "give a file", "benchgate.db"),
    Mistake("store that is no store", "gate --store prompts.csv", "file is not a database", "the store prompts.csv",
            "it is some other file", "give the store another name", code=13),
    Mistake("store with a typo", "gate --store runz/benchgate.db", "there is no benchgate store",
            "at runz/benchgate.db", "check the address", "make one with `benchgate run`"),
    Mistake("new store with a typo", "run s.yaml --store rnus/benchgate.db", "is a new store",
            "--store rnus/benchgate.db", "without earlier runs", "check the name",
            change=("s, requests: 60", "s, requests: 6")),
    Mistake("store that cannot be written", "run s.yaml --store /proc/benchgate.db", "cannot be made",
            "the store /proc/benchgate.db", "/proc: ", "name a file where you may write", code=13),
    Mistake("store below a file", "run s.yaml --store s.yaml/benchgate.db", "cannot be made", "s.yaml/benchgate.db",
            "is no folder", "name a file in a folder", code=13),
    Mistake("store of a newer benchgate", "gate --store newer/benchgate.db", "has schema 0999",
            "the store newer/benchgate.db", "reads up to schema", "install benchgate 9.8.7 or newer", code=13),
    Mistake("report in a folder", "gate good --report .", "is a folder", ".", "name a file", "in it"),
    Mistake("report below a file", "gate good --report s.yaml/r.html", "cannot be written: s.yaml is no folder",
            "s.yaml/r.html", "in a folder", "name a file"),
    Mistake("report in a mistyped folder", "gate good --report nodir/r.html", "made the folder", "nodir", "for",
            "r.html", code=0),
    Mistake("schema of a mistyped language", "schema sute", "'sute' is not one of", "LANGUAGE", "'suite'",
            "benchgate schema --help' for help"),
    # Stored runs.
    Mistake("no store yet", "gate --store none.db", "there is no benchgate store", "at none.db", "check the address",
            "make one with `benchgate run`"),
    Mistake("verdict server without a store", "verdict-server --store none.db", "there is no file", "none.db",
            "check the address", "--store, BENCHGATE_STORE"),
    Mistake("verdict server at a foreign address", "verdict-server --host 203.0.113.9", "nothing can listen there",
            "--host 203.0.113.9", "give another --port", "a --host of this machine"),
    Mistake("mistyped label", "gate goood", "no run is called", "'goood'", "did you mean", "good?"),
    Mistake("mistyped label to show", "show hlaf", "no run is called", "'hlaf'", "did you mean", "half?"),
    Mistake("list of a mistyped suite", "runs --suite made-pu", "no stored run matches", "--suite made-pu",
            "did you mean", "`made-up`", code=0),
    Mistake("mistyped id", "gate <mistyped>", "no run is called", "<mistyped>", "did you mean", "<good>?"),
    Mistake("short id", "gate <short>", "is too short for a run id", "<short>", "at least 13 characters",
            "or the run's label"),
    Mistake("prefix of two ids", "gate 01a20ae1-0cfb-7", "means 2 runs", "'01a20ae1-0cfb-7'", "one of their ids",
            "01a20ae1-0cfb-7000-8000-000000000002, 01a20ae1"),
    Mistake("label of another run", "run s.yaml --label good", "has it already", "--label good",
            "a label means one run", "give another"),
    Mistake("label of a reserved name", "run s.yaml --label @good", "'@good'", "--label", "expected a name on one line",
            "does not begin with @"),
    Mistake("frontier of a mistyped suite", "frontier made-pu", "no stored run is of a suite", "'made-pu'",
            "did you mean", "'made-up'"),
    Mistake("fleet by a partial run", "capacity half --demand sized.yaml", "nothing is sized by it", "run <half>",
            "was cut short", "`benchgate run SUITE --resume --run <half>`"),
    Mistake("report of a run below a file", "report good -o s.yaml/r.html", "cannot be written: s.yaml is no folder",
            "s.yaml/r.html", "in a folder", "name a file"),
    Mistake("trend in a mistyped folder", "trend ttft --format csv -o new/t.csv", "made the folder", "new", "for",
            "t.csv", code=0),
    Mistake("image without a file", "trend ttft --format png", "is written to a file", "--format png", "name it",
            "with -o FILE"),
    Mistake("publication to nowhere", "publish good", "nothing to publish to", "--comment", "add", "--slack"),
    Mistake("no such bundle", "store import none.json", "there is no file", "none.json", "name a bundle",
            "`benchgate store export`"),
    Mistake("unknown name of a run", "gate @last", "names no run", "'@last'", "did you mean @latest?", "Known: "),
    Mistake("unknown check", "gate good --explain ttft-p50@c9", "has no check", "'ttft-p50@c9'", "did you mean",
            "ttft-p50@c4"),
    Mistake("run against itself", "compare good good", "a run says nothing against itself", "good means run",
            "name another", "measure one with `benchgate run`"),
    Mistake("resume of nothing", "run s.yaml --resume", "no interrupted run of chat", "awq against stable",
            "can be resumed", "begin a new run, without --resume"),
    Mistake("resume of a complete run", "run s.yaml --resume --run good", "is complete", "run <good>",
            "nothing of it is left to measure", "judge it with `benchgate gate <good>`"),
    Mistake("run to resume without --resume", "run s.yaml --run good", "is about the run that --resume continues",
            "--run", "add --resume", "or leave it out"),
    Mistake("promotion of a blocked run", "promote bad", "is not promoted", "run <bad>", "it is BLOCK",
            "read it with `benchgate report`", code=10),
    Mistake("promotion of a partial run", "promote half", "it is partial", "run <half>", "only a complete run",
            "`benchgate run SUITE --resume --run <half>`", code=12),
    Mistake("promotion of the newest run", "promote @latest", "may mean another run", "@latest", "name it",
            "by its id or label"),
    Mistake("statement of another suite", "verify good.html.intoto.json --suite s.yaml", "does not hold",
            "the content of s.yaml", "the statement says", "another suite", code=12),
    Mistake("verification of a report", "verify good.html --report good.html", "is no statement", "good.html",
            "as benchgate wrote it", "take the file that the run left", code=12),
    Mistake("trend of an unknown metric", "trend ttfts", "no metric", "'ttfts'", "did you mean", "'ttft'"),
    Mistake("trend of an unknown stage", "trend error_rate --stage c5", "no stored run has error_rate",
            "'c5'", "there are", "c4"),
    Mistake("bundle to import", "store import s.yaml", "is no bundle of `benchgate store export`", "s.yaml",
            "no known tool (vllm, ", "docs/guides/store.md lists"),
    # Options.
    Mistake("unknown option", "run s.yaml --reprot r.html", "No such option", "--reprot", "Possible options",
            "--report"),
    Mistake("cluster without a port", "run s.yaml --cluster tcp://gpu", "is not a scheduler's address", "--cluster",
            "tcp://HOST:8786", "write tcp://"),
    Mistake("no suite", "run", "Missing argument", "'SUITE'", "Usage: ", "Example: benchgate run suite.yaml"),
    Mistake("one run to compare", "compare good", "Missing argument", "'CANDIDATE'", "Usage: ",
            "Example: benchgate compare @promoted @latest"),
    Mistake("unknown part", "run s.yaml --only qualty", "'qualty' is not one of", "--only", "'load', 'quality'",
            "benchgate run --help' for help"),
    Mistake("requests as a word", f"{LOAD} --requests ten --rate 2/s", "found 'ten'", "--requests",
            "expected a whole number", "benchgate load --help' for help"),
    Mistake("port out of range", "sim --port 99999", "is 99999", "--port", "from 0 (any free one) to 65535", "must be"),
    Mistake("suite that is there already", "init other.yaml", "is there already", "other.yaml", "another file", "name"),
    Mistake("unknown drill", "init --drill prefil", "there is no drill", "'prefil'", "did you mean", "'prefill'"),
    Mistake("unknown candidate of the demo", "demo --candidate q4", "no candidate 'q4'", "the demo", "it has",
            "q8_0, q2_k, padded"),
    Mistake("store of another kind", "gate --store mysql://host/runs", "cannot be kept in", "'mysql'",
            "give a file name", "postgresql+psycopg://"),
    Mistake("samples without arms", "run s.yaml --samples f16 q8", "expected a folder of each arm", "--samples f16 q8",
            "like", "baseline=evals/f16 candidate=evals/q8"),
    Mistake("unknown command", "plna s.yaml", "No such command", "'plna'", "Did you mean", "'plan'"),
    Mistake("unknown format", "gate good --format jsn", "'jsn' is not one of", "--format", "'text', 'json'",
            "benchgate gate --help' for help"),
    Mistake("unknown candidate", "run s.yaml --candidate awg", 'no deployment is named "awg"', "candidate: ",
            "did you mean", "`awq`"),
    Mistake("capacity without a demand", "capacity", "Missing option", "'--demand'", "Usage: ",
            "Example: benchgate capacity"),
    Mistake("demand as a number", "capacity --demand 5000", "there is no such file", "5000: ", "write one",
            "like `demand: {output_tokens_per_s: 5000}`"),
    Mistake("unknown key of a demand", "capacity --demand demand.yaml", "unknown key",
            "demand.yaml:1:10: demand.output_tokens_per_sec", "did you mean", "`output_tokens_per_s`"),
    Mistake("load without a form", f"{LOAD} --requests 9", "found none", "--rate (open loop)", "exactly one of",
            "add one, like --concurrency 8"),
    Mistake("load of two forms", f"{LOAD} --requests 9 --rate 2/s --concurrency 3", "found --concurrency and --rate",
            "--concurrency", "exactly one of", "leave out one"),
    Mistake("search without a range", f"{LOAD} --search rate --slo ttft=500ms", "where to begin and where to end",
            "--search", "--from 1/s", "--to 64/s"),
    Mistake("objective with a typo", f"{LOAD} --requests 9 --rate 2/s --slo ttfb=500ms", "'ttfb' is unknown", "--slo",
            "did you mean", "'ttft'"),
    Mistake("objective without a unit", f"{LOAD} --requests 9 --rate 2/s --slo ttft=500", '"500" is not a duration',
            "--slo", "write it like", '"500ms"'),
    Mistake("key that is not set", f"{LOAD} --requests 9 --rate 2/s --api-key-env NO_SUCH_KEY",
            "NO_SUCH_KEY is not set", "--api-key-env", "the environment variable", "set it and run again"),
    Mistake("one endpoint", "init --baseline http://127.0.0.1:9", "a comparison needs two deployments",
            "--candidate URL", "two deployments", "add --candidate URL"),
    # This machine.
    Mistake("rate that this machine cannot send", "run s.yaml --store measured/benchgate.db", "asks for",
            "stage r2", "up to", "`--cluster`", change=("rate: 2/s, requests: 60", "rate: 5000/s, for: 1s")),
    Mistake("lm-eval not installed", "run s.yaml", "quality needs lm-eval", "which is not installed",
            "the extra `eval`", "pip install ",
            change=("gate:", "quality: {tasks: [gsm8k]}\ngate:")),
]  # fmt: skip

SERVERS = [
    Mistake("load on a refused port", "load http://127.0.0.1:9 --model m --requests 9 --concurrency 2",
            "Connection refused", "the server at http://127.0.0.1:9", "cannot be reached", "correct the address",
            code=12),
    Mistake("load of no such host", "load http://gpu.invalid --model m --requests 9 --concurrency 2",
            "Name or service not known", "the server at http://gpu.invalid", "cannot be reached",
            "correct the address", code=12),
    Mistake("run on a refused port", "run s.yaml", "Connection refused", "the baseline at http://127.0.0.1:9",
            "neither did the candidate awq", "check its address", code=12),
    Mistake("refused port", "init --model m --baseline http://127.0.0.1:9 --candidate http://127.0.0.1:9",
            "Connection refused", "the baseline at http://127.0.0.1:9", "does not answer", "correct --baseline"),
    Mistake("no such host", "init --model m --baseline http://gpu.invalid --candidate http://gpu.invalid",
            "Name or service not known", "the baseline at http://gpu.invalid", "does not answer", "correct --baseline"),
    Mistake("https on a plain port", "init --model m --baseline https://<plain> --candidate https://<plain>",
            "no TLS with the server", "the baseline at https://<plain>", "does not speak TLS",
            "write the address with http://"),
    Mistake("self-signed certificate", "init --model m --baseline https://<signed> --candidate https://<signed>",
            "CERTIFICATE_VERIFY_FAILED", "the baseline at https://<signed>", "cannot be trusted",
            "`tls: {ca: FILE}`"),
    Mistake("401", "init --model m --baseline http://<closed> --candidate http://<closed>",
            "HTTP 401: Incorrect API key provided", "the baseline at http://<closed>", "wants a key",
            "--api-key-env SERVING_KEY"),
    Mistake("401 of a run", "run s.yaml", "HTTP 401: Incorrect API key provided", "at http://<closed>",
            "the server is up but rejects requests", "fix the model name, key", change=("127.0.0.1:9", "<closed>"),
            code=12),
    Mistake("404 of a model", "run s.yaml", "HTTP 404: The model `chat` does not exist", "at http://<renamed>",
            "it serves chat-v2", "fix the model name", change=("127.0.0.1:9", "<renamed>"), code=12),
    Mistake("address with /v1", "run s.yaml", "HTTP 404: The model `chat` does not exist",
            "at http://<renamed> refuses", "it serves chat-v2", "fix the model name", code=12,
            change=("127.0.0.1:9", "<renamed>/v1")),
    Mistake("port that is no LLM", "run s.yaml", "is no LLM server", "at http://<page>",
            "expected an OpenAI-compatible API", "correct the host, port or path", code=12,
            change=("127.0.0.1:9", "<page>")),
    Mistake("two runs at once", "run s.yaml", "is being measured by run 0197", "the server at http://<busy>",
            "two loads at once would spoil each other", "`run --wait`", change=("127.0.0.1:9", "<busy>")),
    Mistake("load on a server under a run", "load http://<busy>/v1 --model chat --requests 9 --concurrency 2",
            "is being measured by run 0197", "the server at http://<busy>", "two loads at once", "wait for its end"),
]  # fmt: skip


@dataclass(frozen=True)
class World:
    """A folder with a store of three runs, and the names of what is in it."""

    folder: Path
    names: Mapping[str, str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def make_world(folder: Path) -> World:
    """Return a folder in which every mistake of MISTAKES can be made."""
    (folder / STORE).parent.mkdir()
    with Store.open(str(folder / STORE)) as store:
        names = {
            "good": begun(store, day=days_ago(4), label="good"),
            "bad": begun(store, BLOCKED, day=days_ago(3), label="bad"),
            "spare": begun(store, BLOCKED, day=days_ago(3), label="spare"),
            "half": begun(store, day=days_ago(2), label="half", status=RunStatus.PARTIAL),
        }
        for number in (1, 2):
            begun(store, day=days_ago(9), run_id=f"01a20ae1-0cfb-7000-8000-00000000000{number}")
        decide_stored(store, names["good"])
        decide_stored(store, names["bad"])
    for name, text in FILES.items():
        (folder / name).write_text(text)
    assert here(folder, "gate", "good", "--report", "good.html").returncode == 0
    shutil.copytree(folder / ".benchgate", folder / "newer")
    with closing(sqlite3.connect(folder / "newer" / "benchgate.db")) as newer:
        newer.execute("UPDATE benchgate_schema SET version_num = '0999'")
        newer.execute("UPDATE store_info SET value = '9.8.7' WHERE key = 'tool_version'")
        newer.commit()
    (folder / "measured").mkdir()
    with Store.open(str(folder / "measured" / "benchgate.db")) as store:
        steps = tuple(
            ClientStep(1, rate, rate, 1.0, 10.0, 0.001, 0.0, bound)
            for rate, bound in ((50.0, ()), (100.0, ("too busy",)))
        )
        store.save_client_profile(ClientProfile(utc_now(), client_machine(), steps))
    return World(folder, names | {"mistyped": names["good"][:9] + "x", "short": names["good"][:6]})


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[str, str]]:
    """The addresses of servers with a fault each."""

    def closed(received: Received) -> Iterator[bytes]:
        yield json_response({"error": {"message": "Incorrect API key provided"}}, 401)

    def renamed(received: Received) -> Iterator[bytes]:
        if received.path == "/v1/models":
            yield json_response({"object": "list", "data": [{"id": "chat-v2", "object": "model"}]})
        else:
            yield json_response({"error": {"message": "The model `chat` does not exist."}}, 404)

    def page(received: Received) -> Iterator[bytes]:
        body = b"<html><body>Grafana</body></html>"
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    with ExitStack() as stack:
        plain = stack.enter_context(receiving([200])).port
        signed = stack.enter_context(ScriptedServer(answering(lambda _: "hi"), tls=certificates.serving())).port
        faulty = {"closed": closed, "renamed": renamed, "page": page, "busy": answering(lambda _: "hi")}
        ports = {name: stack.enter_context(ScriptedServer(respond)).port for name, respond in faulty.items()}
        busy = Target(Arm.BASELINE, f"http://127.0.0.1:{ports['busy']}", "chat", DIALECTS["openai"])
        name_holder = stack.enter_context(locked_servers([busy]))
        name_holder("run 0197")
        yield {"plain": f"localhost:{plain}", "signed": f"localhost:{signed}"} | {
            name: f"127.0.0.1:{port}" for name, port in ports.items()
        }


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The addresses that were connected to, which a test expects to be none."""
    tried: list[object] = []

    def connect(own: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, connect)
    return tried


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
def test_a_mistake_is_refused_before_a_request_is_sent(
    world: World, mistake: Mistake, unconnected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake.name == "lm-eval not installed":
        monkeypatch.setattr("benchgate.quality.runner.find_spec", lambda name: None)
    require_parts(world, mistake, {})
    assert unconnected == []


@pytest.mark.parametrize("mistake", SERVERS, ids=lambda one: one.name)
def test_a_server_that_cannot_be_measured_is_named(world: World, mistake: Mistake, servers: Mapping[str, str]) -> None:
    require_parts(world, mistake, servers)


_WRONG_NAMES = (
    "gate nosuch", "run s.yaml --label @good", "trend ttft --store none.db", "capacity --demand none.yaml",
    "report nosuch", "show nosuch", "compare good nosuch", "promote nosuch", "publish good", "publish nosuch --comment",
    "run s.yaml --resume --run nosuch", "gate @last", "gate --store none.db", "runs --store none.db", "trend ttfts",
    "verify none.json --report r.html",
)  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[pytest.mark.slow] if at >= 4 else []) for at, name in enumerate(_WRONG_NAMES)],
)
def test_a_wrong_name_is_refused_before_the_slow_imports(world: World, command: str) -> None:
    (world.folder / "s.yaml").write_text(SUITE)
    slow = ("sqlalchemy", "numpy", "scipy", "ruamel")
    script = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", *[name for name in {slow!r} if name in sys.modules]))
from benchgate.cli.app import main
main()
"""
    words = [sys.executable, "-c", script, *shlex.split(command)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    done = subprocess.run(words, cwd=world.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "loaded:", done.stderr


def test_there_are_sixty_mistakes() -> None:
    assert len(MISTAKES + SERVERS) >= 60


def filled(text: str, names: Mapping[str, str]) -> str:
    """Return the text with the names for `<name>`."""
    for name, value in names.items():
        text = text.replace(f"<{name}>", value)
    return text


def require_parts(world: World, mistake: Mistake, servers: Mapping[str, str]) -> None:
    """Assert the exit code and the four parts of the message, and that every command in it exists."""
    names = {**world.names, **servers}
    result = here(world.folder, *prepared(world, mistake, names))
    said = result.stdout + result.stderr
    assert result.returncode == mistake.code, said
    assert "Traceback" not in said
    for part in (mistake.wrong, mistake.where, mistake.expected, mistake.remedy):
        assert part and filled(part, names) in said, f"{part!r} is not in: {said}"
    commands = {name for section in COMMANDS.values() for name in section}
    assert set(re.findall(r"`benchgate ([a-z-]+)", said)) <= commands
    if mistake in MISTAKES:
        require_golden(mistake, result.stderr, world)


def prepared(world: World, mistake: Mistake, names: Mapping[str, str]) -> list[str]:
    """Write the suite of a mistake and return its command line."""
    file = world.folder / "s.yaml"
    if isinstance(mistake.change, bytes):
        file.write_bytes(mistake.change)
    else:
        old, new = mistake.change
        assert old in SUITE
        file.write_text(SUITE.replace(old, filled(new, names), 1))
    return shlex.split(filled(mistake.command, names))


def require_golden(mistake: Mistake, message: str, world: World) -> None:
    """Assert the whole message, which the golden file has under the mistake's name."""
    for name, value in {**world.names, "FOLDER": str(world.folder), "VERSION": __version__}.items():
        message = message.replace(value, f"<{name}>")
    message = message.replace("python -m pytest.benchgate", "benchgate")
    message = re.sub(r"\d{4}-\d\d-\d\d", "<DAY>", message)
    message = re.sub(r"pip install .*\[", "pip install '<SOURCE>[", message)
    heads = {one.name: f"## {one.name}\n$ benchgate {one.command}\n" for one in MISTAKES}
    written = GOLDEN.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.*)\n\$ .*\n((?:(?!## ).*\n)*)", written, re.MULTILINE))
    if os.environ.get("BENCHGATE_UPDATE_GOLDEN") == "1":
        sections[mistake.name] = message
        GOLDEN.write_text("".join(heads[name] + sections[name] for name in heads if name in sections), encoding="utf-8")
    assert message == sections[mistake.name], "if that is meant, run again with BENCHGATE_UPDATE_GOLDEN=1"
