"""Every mistake a suite can hold: where it is shown, and what is said of it."""

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite

SUITE = """\
suite: chat
seed: 7
deployments:
  a: {url: "http://one:8000", model: m, engine: vllm, price: $4/h}
  b: {url: "http://two:8000", model: m, api_key: "${env:KEY}"}
  c: {embedded: {weights: q8_0}}
baseline: a
candidate: b
limits: {total: 2min}
slo: {ttft: 500ms, target: 95%}
load:
  workload: {input: 64 tokens, output: 32 tokens}
  blocks: 10
  sweep:
    - {stage: c4, concurrency: 4, requests: 40}
    - {stage: r8, rate: 8/s, requests: 5}
quality:
  tasks: [tasks/add.yaml]
shadow:
  prompts: data/shadow.jsonl
gate:
  alpha: 0.05
  checks:
    - {metric: ttft, statistic: p95, stage: c4, margin: 5%}
    - {metric: goodput, stage: r8}
    - {metric: accuracy, task: add, margin: 2 points}
    - {metric: shadow_excess, margin: 3 points}
    - {metric: error_rate, max: 1%}
"""

LOAD = SUITE[SUITE.index("load:") : SUITE.index("quality:")]
QUALITY = SUITE[SUITE.index("quality:") : SUITE.index("shadow:")]
SHADOW = SUITE[SUITE.index("shadow:") : SUITE.index("gate:")]
CHECKS = SUITE[SUITE.index("    - {metric: ttft") :]

# One row a rule: what stands in SUITE, what is written instead, and all that is then said of it (None: nothing).
Row = tuple[str, str, str | None]

# fmt: off
KEYS: list[Row] = [
    ("seed: 7", "sede: 7", "2:1 sede: unknown key; did you mean `seed`?"),
    ("seed: 7", "Seed: 7", "2:1 Seed: unknown key; did you mean `seed`?"),
    ("seed: 7", "zzz: 7", "2:1 zzz: unknown key; expected one of suite, seed, deployments, prices, baseline"),
    ("seed: 7", "alpha: 0.1", "2:1 alpha: unknown key here; it belongs in `gate`"),
    ("seed: 7", "requests: 8", "2:1 requests: unknown key here; it belongs in `load.sweep[]`"),
    ("prompts: data", "tasks: [x]\n  prompts: data", "20:3 shadow.tasks: unknown key here; it belongs in `quality`"),
    ("limits: {", "limits: {ready_s: 3, ", "9:10 limits.ready_s: unknown key; did you mean `ready`?"),
    ("concurrency: 4", "concurency: 4", "15:19 load.sweep[0].concurency: unknown key; did you mean `concurrency`?"),
    ("output: 32", "outputs: 32", "12:32 load.workload.outputs: unknown key; did you mean `output`?"),
    ("price: $4/h", "prize: $4/h", "4:55 deployments.a.prize: unknown key; did you mean `price`?"),
    ("weights:", "weight:", "6:18 deployments.c.embedded.weight: unknown key; did you mean `weights`?"),
    ("suite: chat\n", "", "1:1 suite: is required and missing; expected a name of at most 64 letters"),
    (", output: 32 tokens", "",
     '12:13 load.workload.output: is required and missing; expected a count like "128 tokens"'),
    (", requests: 5", "", "16:7 load.sweep[1]: a stage at a `rate` needs exactly one of `requests` and `for`"),
    ("  tasks: [tasks/add.yaml]", "  limit: 5",
     "18:3 quality.tasks: is required and missing; expected a list"),
]

VALUES: list[Row] = [
    ("seed: 7", "seed: seven", '2:7 seed: found "seven"; expected a whole number, at least 0'),
    ("seed: 7", 'seed: "7"', '2:7 seed: found "7"; expected a whole number'),
    ("seed: 7", "seed: 7.5", "2:7 seed: found 7.5; expected a whole number"),
    ("seed: 7", "seed: -1", "2:7 seed: found -1; expected a whole number, at least 0"),
    ("seed: 7", "seed:", "2:1 seed: has no value; write one or leave the key out"),
    ("suite: chat", "suite: my chat", '1:8 suite: found "my chat"; expected a name of at most 64 letters'),
    ("suite: chat", "suite: 8", "1:8 suite: found 8; expected a name"),
    ("blocks: 10", "blocks: true",
     "13:11 load.blocks: found true; expected a whole number, at least 2 and at most 200"),
    ("blocks: 10", "blocks: 1", "13:11 load.blocks: found 1; expected a whole number, at least 2"),
    ("total: 2min", "total: 120", '9:17 limits.total: 120 is not a duration; write it with its unit, like "500ms"'),
    ("total: 2min", "total: 2 minutes", '9:17 limits.total: "2 minutes" is not a duration; write it like "500ms"'),
    ("total: 2min", "total: 0s", '9:17 limits.total: "0s" is not a usable duration'),
    ("rate: 8/s", "rate: 8 rps", '16:25 load.sweep[1].rate: "8 rps" is not a rate; write it like "8/s"'),
    ("input: 64 tokens", "input: 64 words", '12:21 load.workload.input: "64 words" is not a token count'),
    ("input: 64 tokens", "input: 0", '12:21 load.workload.input: "0" is not a usable token count'),
    ("input: 64 tokens", "input: 9999999", "12:21 load.workload.input: found 9999999; expected a count"),
    ("price: $4/h", "price: 4", '4:62 deployments.a.price: 4 is not a price; write it with its unit, like "$32/h"'),
    ("target: 95%", "target: 95", '10:28 slo.target: 95 is not a percentage; write it with its unit, like "5%"'),
    ("target: 95%", "target: 195%", '10:28 slo.target: "195%" is more than the whole'),
    ("target: 95%", "target: 0%", '10:28 slo.target: "0%" is not above 0%'),
    ("alpha: 0.05", "alpha: 0.5", "22:10 gate.alpha: found 0.5; expected a number, at least 1e-12 and below 0.5"),
    ("alpha: 0.05", "alpha: 0.0000000000001", "22:10 gate.alpha: found 1e-13; expected a number, at least 1e-12"),
    ("alpha: 0.05", "alpha: 5%", '22:10 gate.alpha: found "5%"; expected a number'),
    ("engine: vllm", "engine: vlm", '4:49 deployments.a.engine: found "vlm"; did you mean `vllm`?'),
    ("engine: vllm", "engine: [vllm]", "4:49 deployments.a.engine: found a list; expected one of openai, vllm"),
    ("weights: q8_0", "weights: Q8_K", '6:27 deployments.c.embedded.weights: found "Q8_K"; did you mean `q8_0`?'),
    ("metric: goodput", "metric: godput", '25:16 gate.checks[1].metric: found "godput"; did you mean `goodput`?'),
    ("metric: goodput", "metric: speed",
     '25:16 gate.checks[1].metric: found "speed"; expected one of ttft, ttfot, tpot'),
    ("statistic: p95", "statistic: p99.9", '24:33 gate.checks[0].statistic: found "p99.9"; did you mean `p99`?'),
    ("margin: 3 points", "margin: 3 points, required: no",
     '27:59 gate.checks[3].required: found "no"; expected true or false'),
    ("tasks: [tasks/add.yaml]", "tasks: tasks/add.yaml",
     '18:10 quality.tasks: found "tasks/add.yaml"; expected a list'),
    ("tasks: [tasks/add.yaml]", "tasks: []",
     "18:10 quality.tasks: found an empty list; expected a list"),
    ("limits: {total: 2min}", "limits: 2min",
     '9:9 limits: found "2min"; expected a mapping with the keys connect, first_token'),
    ("  c: {", "  c/1: {", '6:3 deployments.c/1: "c/1" is not a name'),
]

DEPLOYMENTS: list[Row] = [
    ('"${env:KEY}"', "sk-secret-123", "5:50 deployments.b.api_key: holds a literal of 13 characters"),
    ('"${env:KEY}"', '"$KEY"', "5:50 deployments.b.api_key: holds a literal of 4 characters"),
    ('"${env:KEY}"', '"Bearer ${env:KEY}"', "5:50 deployments.b.api_key: holds a literal of 17 characters"),
    ('"${env:KEY}"', "12345", "5:50 deployments.b.api_key: found a value of another kind; expected a reference like"),
    ("http://one:8000", "http://u:pw@one", "4:12 deployments.a.url: holds credentials; take them out"),
    ("http://one:8000", "http://one?key=x", "4:12 deployments.a.url: has a query or a fragment"),
    ("http://one:8000", "one:8000", None),
    ("http://one:8000", "one",
     '4:12 deployments.a.url: "one" is not an address; write it like http://one, unix:/run/server.sock or'),
    ("http://one:8000", "ftp://one", '4:12 deployments.a.url: "ftp://one" is not an address'),
    ("http://one:8000", "http://one:port", '4:12 deployments.a.url: "http://one:port" is not an address'),
    ("http://one:8000", "http://${env:HOST}", '4:12 deployments.a.url: "http://${env:HOST}" is not an address'),
    ("http://one:8000", "http://one:8000/v1/", None),
    ("http://one:8000", "http://one:8000/v1/chat/completions",
     "4:12 deployments.a.url: ends in /v1/chat/completions, which benchgate adds itself; remove it"),
    ("http://one:8000", "http://one:8000/chat/completions",
     "4:12 deployments.a.url: ends in /chat/completions, which benchgate adds itself; remove it"),
    ("suite: chat", 'suite: "${env:NAME}"',
     "1:8 suite: a reference is resolved only in a deployment's `api_key`, `url`, `proxy`, `metrics`, "
     "`gpu`, `ready.metrics` and"),
    ("price: $4/h", 'price: "${env:PRICE}"', "4:62 deployments.a.price: a reference is resolved only in"),
    ("embedded: {weights: q8_0}", "price: $1/h",
     "6:6 deployments.c: a deployment needs exactly one of `url`, `embedded` and `sim`"),
    ("price: $4/h", "extra: {min_tokens: 4, stop: [x], kwargs: {thinking: false}}", None),
    ("price: $4/h", "extra: {max_tokens: 4}",
     "4:62 deployments.a.extra: `max_tokens` is set by benchgate itself; write `max_tokens_field`"),
    ("price: $4/h", "extra: {ignore_eos: true}", "4:62 deployments.a.extra: `ignore_eos` is set by benchgate itself"),
    ("price: $4/h", "extra: {stream: false}", "4:62 deployments.a.extra: `stream` is set by benchgate itself; remove"),
    ("price: $4/h", 'extra: {user: "${env:USER}"}', "4:69 deployments.a.extra.user: a reference is resolved only in"),
    ("price: $4/h", "extra: [min_tokens]",
     "4:62 deployments.a.extra: found a list; expected a mapping of fields for the body of every request"),
    ("price: $4/h", "leave_out: [ignore_eos, seed]", None),
    ("price: $4/h", "leave_out: [ignore_eso]",
     '4:67 deployments.a.leave_out[0]: found "ignore_eso"; did you mean `ignore_eos`?'),
    ("price: $4/h", "max_tokens_field: max_length",
     '4:73 deployments.a.max_tokens_field: found "max_length"; did you mean `max_tokens`?'),
    ("http://two:8000", "unix:/run/b.sock:/base", None),
    ("http://two:8000", "unix:run/b.sock", "5:12 deployments.b.url: the socket of a unix: address is a whole path"),
    ("http://two:8000", "unix:/run/b.sock:base", "5:12 deployments.b.url: the base path after the socket starts"),
    ("http://two:8000", "unix:/" + "x" * 120, "5:12 deployments.b.url: the path of a socket has at most 107 bytes"),
    ("http://two:8000", "unix:/run/b.sock:/v1", None),
    ("price: $4/h", "headers: {X-Team: ml, x-api-key: '${env:TEAM_KEY}'}", None),
    ("price: $4/h", "metrics: '${env:PAGE}', gpu: '${env:GPUS}'", None),
    ("price: $4/h", "metrics: 'http://me:pw@host/metrics'", "4:64 deployments.a.metrics: holds credentials"),
    ("price: $4/h", "headers: {Host: me}",
     '4:64 deployments.a.headers: the header "Host" cannot be set: it is the address itself; write it in the address'),
    ("price: $4/h", "headers: {accept-encoding: gzip}",
     '4:64 deployments.a.headers: the header "accept-encoding" cannot be set: it is always identity'),
    ("price: $4/h", "headers: {Transfer-Encoding: chunked}",
     '4:64 deployments.a.headers: the header "Transfer-Encoding" cannot be set: it says how the message is framed'),
    ("price: $4/h", "headers: {x y: z}", "4:64 deployments.a.headers: 'x y' is no name of a header"),
    ("price: $4/h", "headers: {x-team: ml, X-Team: it}",
     '4:64 deployments.a.headers: the header "x-team" is set twice'),
    ("price: $4/h", "headers: {Authorization: Bearer sk-secret-123}",
     '4:64 deployments.a.headers: the header "authorization" holds a literal of 20 characters; a secret is never'),
    ("price: $4/h", "headers: {x-api-key: sk-secret-123}",
     '4:64 deployments.a.headers: the header "x-api-key" holds a literal of 13 characters'),
    ("price: $4/h", "headers: {x-team: 'a${env:TEAM}'}",
     '4:64 deployments.a.headers: the header "x-team" holds a reference among other text'),
    ("price: $4/h", 'headers: {x-team: "a\\nb: sk-secret-123"}',
     '4:64 deployments.a.headers: the header "x-team" is empty or has characters that no header may have'),
    ("price: $4/h", "headers: {x-team: 12345}", "4:73 deployments.a.headers.x-team: found a value of another kind"),
    ('api_key: "${env:KEY}"', 'api_key: "${env:KEY}", headers: {authorization: "${env:KEY}"}',
     "5:6 deployments.b: `api_key` is sent as the header authorization, which `headers` sets too; keep one of them"),
    ("http://one:8000", 'https://one:8000", tls: {ca: a, cert: c, key: k}, proxy: "http://p:3128/', None),
    ("price: $4/h", "tls: {ca: ca.pem}", "4:6 deployments.a: `tls` is for https; write the `url` with https://"),
    ("price: $4/h", "tls: {}", "4:60 deployments.a.tls: needs at least one of `ca` and `cert`"),
    ("price: $4/h", "tls: {ca: ca.pem, key: c.key}", "4:60 deployments.a.tls: `key` belongs to a `cert`"),
    ("price: $4/h", "tls: {verify: false}",
     "4:61 deployments.a.tls.verify: unknown key; certificates are always verified; name your own authority's"),
    ("price: $4/h", "proxy: http://u:sk-secret-123@p", "4:62 deployments.a.proxy: holds credentials"),
    ("price: $4/h", "proxy: socks5://p", "4:62 deployments.a.proxy: is not the address of a proxy; write it like"),
    ("price: $4/h", "proxy: http://p/sk-secret-123", "4:62 deployments.a.proxy: is not the address of a proxy"),
    ('http://one:8000", model: m, engine: vllm, price: $4/h', 'unix:/run/a", model: m, proxy: http://p',
     "4:6 deployments.a: `proxy` means nothing for a socket of this machine; remove it"),
    ("q8_0}}", "q8_0}, headers: {x-team: ml}}", "6:43 deployments.c.headers: means nothing for an embedded deployment"),
    ('two:8000", model: m, api_key', 'one:8000", model: m, headers: {x-route: canary}, api_key', None),
    ('two:8000", model: m, api_key', 'one:8000", model: m, headers: {x-route: "${env:R}"}, api_key',
     '8:12 candidate: "a" and "b" are the same endpoint in both arms'),
    ("c: {embedded", 'c: {url: "http://h", embedded', "6:6 deployments.c: a deployment needs exactly one of"),
    ("model: m, engine: vllm", "engine: vllm",
     "4:6 deployments.a: a deployment with a `url` needs the `model` name it serves"),
    ("q8_0}}", "q8_0}, engine: vllm}",
     "6:42 deployments.c.engine: the embedded engine is llamacpp, not vllm; remove it"),
    ("q8_0}}", "q8_0}, model: m}", "6:41 deployments.c.model: means nothing for an embedded deployment; remove it"),
    ("q8_0}}", "q8_0}, context: 64}", "6:43 deployments.c.context: means nothing for an embedded deployment"),
    ("q8_0}}", 'q8_0}, api_key: "${env:KEY}"}', "6:43 deployments.c.api_key: means nothing for an embedded deployment"),
    ("baseline: a", "baseline: A1", '7:11 baseline: no deployment is named "A1"; did you mean `a`?'),
    ("candidate: b", "candidate: zzz", '8:12 candidate: no deployment is named "zzz"; expected one of a, b, c'),
    ("candidate: b\n", "", '1:1 candidate: no deployment is named "candidate"'),
    ("http://two:8000", "http://one:8000/", '8:12 candidate: "a" and "b" are the same endpoint in both arms'),
]

MEASUREMENTS: list[Row] = [
    (LOAD + QUALITY + SHADOW, "",
     "1:1 : nothing to measure; add at least one of `start`, `load`, `quality`, `divergence` and `shadow`"),
    ("rate: 8/s, requests", "rate: 8/s, concurrency: 2, requests",
     "16:7 load.sweep[1]: a stage needs exactly one of `concurrency`"),
    ("concurrency: 4, ", "", "15:7 load.sweep[0]: a stage needs exactly one of `concurrency`"),
    ("concurrency: 4, ", "concurrency: 4, arrival: constant, ",
     "15:7 load.sweep[0]: `arrival` means nothing in a closed loop"),
    ("requests: 5}", "requests: 5}\n    - {stage: c4, rate: 1/s, requests: 9}",
     '17:15 load.sweep[2].stage: the name "c4" is taken by load.sweep[0]'),
    ("requests: 5}", "requests: 5}\n    - {stage: capacity, rate: 1/s, requests: 9}",
     '17:15 load.sweep[2].stage: the name "capacity" is that of the stages of `load.capacity`; name this stage'),
    ("requests: 5}", "requests: 5}\n    - {stage: add, rate: 1/s, requests: 9}", None),
    ("add.yaml]", "add.yaml, sort.yaml]", '18:27 quality.tasks[1]: "sort" could regress unjudged: no check bounds'),
    ("add.yaml]", "add.yaml, more/add.yaml]", '18:27 quality.tasks[1]: the name "add" is taken by quality.tasks[0]'),
    ("prompts: data/shadow.jsonl",
     "prompts: data/shadow.jsonl\n  similarity: {url: 'http://e', model: m, send_text: true, api_key: '${env:K}', "
     "headers: {authorization: '${env:K}'}}",
     "21:15 shadow.similarity: `api_key` is sent as the header authorization, which `headers` sets too; keep one of"),
    ("prompts: data/shadow.jsonl",
     "prompts: data/shadow.jsonl\n  judge: {url: 'http://j', model: m, send_text: true, api_key: '${env:K}', "
     "headers: {authorization: '${env:K}'}}",
     "21:10 shadow.judge: `api_key` is sent as the header authorization, which `headers` sets too; keep one of"),
    ("slo: {ttft: 500ms, ", "slo: {", "10:6 slo: an slo needs at least one of `ttft`, `tpot` and `e2e`"),
]

GATE: list[Row] = [
    ("margin: 5%", "margin: 5 points",
     '24:57 gate.checks[0].margin: "5 points" is not a percentage; write it like "5%": the margin of ttft'),
    ("margin: 2 points", "margin: 2%",
     '26:45 gate.checks[2].margin: "2%" is not a difference in points; write it like "2 points"'),
    ("margin: 5%", "margin: 0%", '24:57 gate.checks[0].margin: "0%" is not a usable margin'),
    ("margin: 5%", "margin: 0.05", "24:57 gate.checks[0].margin: 0.05 is not a percentage"),
    ("margin: 5%", "margin: 5%, max: 1s", "24:7 gate.checks[0]: a check needs exactly one of `margin`"),
    (", margin: 5%", "",
     "24:7 gate.checks[0]: a check needs exactly one of `margin` (against the baseline), `max` and `min` (an SLO);"),
    ("margin: 5%", "max: 5%", '24:54 gate.checks[0].max: "5%" is not a duration'),
    ("margin: 5%", "min: 1s", "24:54 gate.checks[0].min: ttft has no lower bound; use `max` or `margin`"),
    ("margin: 2 points", "min: 0%", '26:42 gate.checks[2].min: "0%" is not above 0%'),
    ("margin: 3 points", "max: 3%", "27:36 gate.checks[3].max: shadow_excess has no upper bound; use `margin`"),
    ("goodput, stage: r8", "error_rate, max: 100%", '25:33 gate.checks[1].max: "100%" is met by every deployment'),
    ("goodput, stage: r8", "goodput, stage: r9",
     '25:32 gate.checks[1].stage: no stage of the sweep is named "r9"; expected one of c4, r8'),
    ("goodput, stage: r8", "goodput, statistic: p50",
     "25:36 gate.checks[1].statistic: means nothing for goodput; it belongs to ttft"),
    ("goodput, stage: r8", "goodput, task: add",
     "25:31 gate.checks[1].task: means nothing for goodput; it belongs to accuracy"),
    ("shadow_excess, margin: 3", "shadow_excess, stage: c4, margin: 3",
     "27:38 gate.checks[3].stage: means nothing for shadow_excess"),
    ("{metric: shadow_excess", "{metric: accuracy, stage: c4, margin: 2 points}\n    - {metric: shadow_excess",
     '27:33 gate.checks[3].stage: stage "c4" sends no eval items; give it `verify: 5%`'),
    ("task: add, margin: 2", "task: ad, margin: 2",
     '26:32 gate.checks[2].task: no task of `quality` is named "ad"; did you mean `add`?'),
    ("slo: {ttft: 500ms, target: 95%}\n", "",
     "24:16 gate.checks[1].metric: goodput counts the requests that meet the `slo`"),
    (QUALITY, "", "24:16 gate.checks[2].metric: accuracy is measured by `quality`, which this suite has not"),
    ("prompts: data/shadow.jsonl",
     "prompts: data/shadow.jsonl\n  judge: {url: 'http://j', model: m, send_text: true}",
     "21:3 shadow.judge: is sent texts, and no check uses its verdicts; add {metric: judge_loss, margin: 5"),
    (SHADOW, "", "25:16 gate.checks[3].metric: shadow_excess is measured by `shadow`, which this suite has not"),
    ("p95, stage: c4", "p95, stage: r8",
     '24:33 gate.checks[0].statistic: p95 needs at least 59 requests in a stage over all blocks, and "r8" has 10 *'),
    ("p95, stage: c4", "p99, stage: r8", "24:33 gate.checks[0].statistic: p99 needs at least 299 requests"),
    ("p95, stage: c4", "p95",
     '24:33 gate.checks[0].statistic: p95 needs at least 59 requests in a stage over all blocks, and "r8" has'),
    ("requests: 40", "requests: 6", None),
    ("requests: 40", "requests: 5", "24:33 gate.checks[0].statistic: p95 needs at least 59 requests"),
    ("p95, stage: c4", "p90, stage: r8", None),
    ("alpha: 0.05", "alpha: 0.00000000001", "24:33 gate.checks[0].statistic: p95 needs at least 494 requests"),
    ("p95, stage: c4", "p99, stage: c4", None),
    ("output: 32", "output: 1", None),
    ("goodput, stage: r8}", "goodput, stage: r8}\n    - {metric: goodput, stage: r8, min: 90%}",
     '26:7 gate.checks[2]: the SLO of goodput of "r8" is already judged by gate.checks[1]; keep one of them'),
    ("goodput, stage: r8}", "goodput, stage: r8}\n    - {metric: goodput}",
     '26:7 gate.checks[2]: the SLO of goodput of "r8" is already'),
    ("goodput, stage: r8}", "goodput, stage: r8}\n    - {metric: goodput, margin: 3 points}", None),
    ("goodput, stage: r8}", "tpot, margin: 5%}\n    - {metric: tpot, statistic: p50, stage: c4, margin: 5%}",
     '26:7 gate.checks[2]: the margin of tpot p50 of "c4" is already judged by gate.checks[1]'),
    ("margin: 2 points}", "margin: 2 points}\n    - {metric: accuracy, task: each, margin: 5 points}",
     '27:7 gate.checks[3]: the margin of accuracy of "add" is already judged by gate.checks[2]'),
    ("{metric: error_rate, max: 1%}", "{metric: error_rate, max: 1%, required: false}",
     '24:7 gate.checks[0]: requests of stage "c4" could fail unjudged: no required check bounds `error_rate` or'),
    ("{metric: error_rate, max: 1%}", "{metric: error_rate, stage: r8, max: 1%}",
     '24:7 gate.checks[0]: requests of stage "c4" could fail unjudged'),
    ("{metric: error_rate, max: 1%}", "{metric: output_throughput, stage: r8, margin: 5%}",
     '24:7 gate.checks[0]: requests of stage "c4" could fail unjudged'),
    ("{metric: error_rate, max: 1%}", "{metric: goodput, stage: c4, margin: 3 points}", None),
    ("{metric: error_rate, max: 1%}", "{metric: error_rate, stage: c4, max: 1%}", None),
    (CHECKS, "    []\n", "24:5 gate.checks: found an empty list; expected a list with at least one entry"),
]
# fmt: on


def problems_of(text: str) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        parse_suite(text, "s.yaml")
    return [f"{p.line}:{p.column} {p.path}: {p.message}" for p in caught.value.problems]


def test_stage_is_not_named_like_a_task_whose_items_it_sends() -> None:
    """Otherwise `accuracy@add` would be the id of two checks."""
    text = SUITE.replace("requests: 5}", "requests: 5}\n    - {stage: add, rate: 1/s, requests: 9, verify: 50%}")
    text = text.replace("task: add, margin: 2 points}", "task: add, margin: 2 points}\n    - ACCURACY")
    told = problems_of(text.replace("ACCURACY", "{metric: accuracy, stage: add, margin: 5 points}"))
    assert told == ['17:15 load.sweep[2].stage: the name "add" is that of a task whose items it sends; name this stage '
                    "differently"]  # fmt: skip


@pytest.mark.parametrize(("found", "written", "said"), KEYS + VALUES + DEPLOYMENTS + MEASUREMENTS + GATE)
def test_each_mistake_is_the_only_problem_and_is_shown_where_it_stands(
    found: str, written: str, said: str | None
) -> None:
    assert SUITE.count(found) >= 1
    text = SUITE.replace(found, written, 1)
    if said is None:
        parse_suite(text, "s.yaml")
        return
    problems = problems_of(text)
    assert len(problems) == 1, problems
    assert problems[0].startswith(said)


def test_six_mistakes_are_six_problems_in_order_of_place() -> None:
    text = SUITE
    for found, written in [
        ("seed: 7", "sede: 7"),
        ("engine: vllm", "engine: vlm"),
        ("baseline: a", "baseline: x"),
        ("total: 2min", "total: 2"),
        ("rate: 8/s", "rate: 8 rps"),
        ("margin: 2 points", "margin: 2%"),
    ]:
        text = text.replace(found, written, 1)
    assert [line.split(" ")[:2] for line in problems_of(text)] == [
        ["2:1", "sede:"],
        ["4:49", "deployments.a.engine:"],
        ["7:11", "baseline:"],
        ["9:17", "limits.total:"],
        ["16:25", "load.sweep[1].rate:"],
        ["26:45", "gate.checks[2].margin:"],
    ]


def test_problem_reads_as_one_line_with_file_line_and_column() -> None:
    with pytest.raises(SuiteError) as caught:
        parse_suite(SUITE.replace("seed", "sede"), "suites/chat.yaml")
    assert str(caught.value) == "suites/chat.yaml:2:1: sede: unknown key; did you mean `seed`?"


@pytest.mark.parametrize(
    "text",
    [
        SUITE.replace('"${env:KEY}"', "hunter2hunter2"),
        SUITE.replace('"${env:KEY}"', "[hunter2hunter2]"),
        SUITE.replace('"${env:KEY}"', "*hunter2hunter2"),
        SUITE.replace('"${env:KEY}"', "!hunter2hunter2"),
        SUITE.replace('"${env:KEY}"', "{hunter2hunter2: "),
        SUITE.replace('"${env:KEY}"', "hunter2hunter2: x"),
        SUITE.replace("http://one", "http://me:hunter2hunter2@one"),
        SUITE.replace("http://one", "me:hunter2hunter2@one"),
        SUITE.replace("http://one:8000", "http://one?key=hunter2hunter2"),
        SUITE.replace("api_key:", "apikey:").replace('"${env:KEY}"', "hunter2hunter2"),
    ],
)
def test_no_message_repeats_a_secret(text: str) -> None:
    assert text != SUITE
    assert "hunter2" not in "\n".join(problems_of(text))
