from __future__ import annotations

import hashlib
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.records import ShadowItem
from benchgate.model.run import ShadowObservation
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.mirror import mirror
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.quality import Shadow
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.certificates import serving
from tests.fakes.scripted_server import ABORT, Received, Respond, ScriptedServer, Step, answering, json_response

PROMPTS = tuple(ShadowPrompt(f"p{n}", f"say {n}") for n in range(6))
API_KEY = "key-5b21"


def echo(received: Received) -> str:
    return f"said: {received.prompt}"


def saying(content: object, finish: object = "stop") -> Respond:
    def respond(received: Received) -> Iterator[Step]:
        yield json_response({"choices": [{"message": {"content": content}, "finish_reason": finish}]})

    return respond


def target(arm: Arm, url: str) -> Target:
    return Target(arm, url, "scripted", DIALECTS["vllm"], API_KEY)


def compare(
    baseline: Respond,
    candidate: Respond,
    prompts: tuple[ShadowPrompt, ...] = PROMPTS,
    *,
    store_text: bool = False,
    limits: Limits | None = None,
) -> ShadowObservation:
    settings = Shadow(prompts="unused", concurrency=2, store_text=store_text)
    with ScriptedServer(baseline) as ours, ScriptedServer(candidate) as theirs:
        arms = target(Arm.BASELINE, ours.url), target(Arm.CANDIDATE, theirs.url)
        [observation] = mirror(*arms, prompts, settings, limits or Limits())
    return observation


def test_what_a_server_repeats_of_a_prompt_is_not_kept_with_an_error() -> None:
    def repeating(received: Received) -> Iterator[Step]:
        yield json_response({"detail": [{"input": received.prompt}]}, status=422)

    item = compare(answering(echo), repeating, PROMPTS[:1]).items[0]
    assert item.error == "candidate: HTTP 422"
    assert PROMPTS[0].prompt not in repr(item)


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def only(observation: ShadowObservation) -> ShadowItem:
    [item] = observation.items
    return item


@pytest.mark.slow
def test_messages_of_servers_with_equal_answers_agree_and_of_others_do_not() -> None:
    prompts = tuple(replace(prompt, endpoint="messages", fields={"stop": "END"}) for prompt in PROMPTS)
    settings = Shadow(prompts="unused")
    shown = {}
    for name, seed in (("same", 1), ("other", 2)):
        with serve_sim(sim_settings(seed=1)) as ours, serve_sim(sim_settings(seed=seed)) as theirs:
            baseline = replace(target(Arm.BASELINE, ours.url), model="sim")
            candidate = replace(target(Arm.CANDIDATE, theirs.url), model="sim")
            [shown[name]] = mirror(baseline, candidate, prompts, settings, Limits())
            assert set(theirs.truth()["by_endpoint"]) == {"messages"}
    assert all(item.error is None and item.primary == item.candidate for item in shown["same"].items)
    assert not any(item.primary == item.candidate for item in shown["other"].items)


def test_identical_servers_agree_on_every_prompt() -> None:
    seen = compare(answering(echo), answering(echo))
    assert (seen.fault, seen.expected_n) == (None, 6)
    assert [item.prompt_id for item in seen.items] == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert all(item.primary == item.secondary == item.candidate is not None for item in seen.items)
    assert len({item.primary for item in seen.items}) == 6
    assert seen.items[0].prompt_sha256 == hashlib.sha256(b"say 0").hexdigest()
    assert seen.items[0].candidate_finish == "stop"


def test_a_baseline_that_disagrees_with_itself_is_seen() -> None:
    class Flaky:
        """The second of two equal questions is answered differently."""

        def __init__(self) -> None:
            self.asked: set[str] = set()

        def __call__(self, received: Received) -> Iterator[Step]:
            again = received.prompt in self.asked
            self.asked.add(received.prompt)
            yield from answering(lambda r: "other" if again else "one")(received)

    seen = compare(Flaky(), answering(lambda r: "one"))
    assert seen.fault is None
    assert all(item.primary != item.secondary for item in seen.items)
    assert all(item.candidate in (item.primary, item.secondary) for item in seen.items)


def test_the_order_of_json_keys_is_not_a_disagreement() -> None:
    item = only(compare(saying('{"a": 1, "b": 2}'), saying('{"b": 2.0,\n"a": 1}'), PROMPTS[:1]))
    assert item.primary == item.candidate


def test_the_three_calls_of_a_prompt_are_under_way_at_once_and_alike() -> None:
    baseline_asked: list[Received] = []
    candidate_asked: list[Received] = []

    def respond(asked: list[Received]) -> Respond:
        def when_all_are_there(received: Received) -> Iterator[Step]:
            asked.append(received)
            for _ in range(1000):
                if len(baseline_asked) == 2 and len(candidate_asked) == 1:
                    yield from answering(echo)(received)
                    return
                yield 0.01

        return when_all_are_there

    seen = compare(respond(baseline_asked), respond(candidate_asked), PROMPTS[:1])
    assert only(seen).error is None
    first, second, third = (r.body or {} for r in [*baseline_asked, *candidate_asked])
    assert first == second == third
    assert (first["temperature"], first["max_tokens"], first.get("stream")) == (0, 128, None)
    assert isinstance(first["seed"], int)
    assert baseline_asked[0].headers["authorization"] == f"Bearer {API_KEY}"


def test_each_prompt_has_its_own_seed_and_keeps_it() -> None:
    seeds: list[dict[str, object]] = []

    def note(received: Received) -> str:
        assert received.body is not None
        seen[received.prompt] = received.body["seed"]
        return "ok"

    for _ in range(2):
        seen: dict[str, object] = {}
        compare(answering(note), answering(note))
        seeds.append(seen)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 6


def test_texts_are_kept_only_when_asked_for() -> None:
    kept = only(compare(answering(echo), answering(lambda r: "no"), PROMPTS[:1], store_text=True))
    assert (kept.prompt_text, kept.primary_text, kept.candidate_text) == ("say 0", "said: say 0", "no")
    dropped = only(compare(answering(echo), answering(echo), PROMPTS[:1]))
    assert (dropped.prompt_text, dropped.primary_text, dropped.secondary_text, dropped.candidate_text) == (None,) * 4


def test_an_answer_that_says_nothing_is_no_answer() -> None:
    null = only(compare(saying("x"), saying(None), PROMPTS[:1]))
    assert null.candidate is None
    assert null.error == "candidate: the content of the answer is null"
    empty = only(compare(saying("x"), saying(" \n"), PROMPTS[:1]))
    assert (empty.candidate, empty.error) == (None, "candidate: an empty answer")
    cut = only(compare(saying("x"), saying("", "length"), PROMPTS[:1]))
    assert cut.candidate is None
    assert cut.error == "candidate: an empty answer with finish reason length"


def test_two_silent_deployments_do_not_agree() -> None:
    seen = compare(saying(""), saying(""), PROMPTS[:2])
    assert seen.fault is not None
    assert "an empty answer" in seen.fault
    assert all(item.primary is None and item.candidate is None for item in seen.items)


def test_an_interrupt_is_raised_after_what_was_answered_until_then() -> None:
    def interrupt(done: int) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGINT)

    with ScriptedServer(answering(echo)) as server:
        arms = target(Arm.BASELINE, server.url), target(Arm.CANDIDATE, server.url)
        compared = mirror(*arms, PROMPTS, Shadow(prompts="unused", concurrency=1), Limits(), on_progress=interrupt)
        seen = next(compared)
        with pytest.raises(KeyboardInterrupt):
            next(compared)
    assert (seen.fault, seen.expected_n) == ("interrupted", 6)
    assert [item.prompt_id for item in seen.items] == ["p0", "p1", "p2"]
    assert all(item.error is None for item in seen.items)


def test_a_failed_call_says_which_and_why_and_leaves_the_others() -> None:
    def sometimes(received: Received) -> Iterator[Step]:
        if received.prompt == "say 1":
            yield json_response({"error": {"message": f"bad key {API_KEY}"}}, status=500)
        elif received.prompt == "say 2":
            yield json_response({"choices": []})
        elif received.prompt == "say 3":
            yield ABORT
        elif received.prompt == "say 4":
            yield b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
        else:
            yield from answering(echo)(received)

    seen = compare(answering(echo), sometimes, store_text=True)
    assert seen.fault is None
    errors = [item.error for item in seen.items]
    assert errors[0] is errors[5] is None
    assert errors[1] == "candidate: HTTP 500: bad key [redacted]"
    assert errors[2] == 'candidate: HTTP 200 without choices: {"choices": []}'
    assert errors[3] == "candidate: the connection failed (ReadError)"
    assert errors[4] == "candidate: HTTP 307: an empty body"
    assert [item.candidate is None for item in seen.items] == [False, True, True, True, True, False]
    assert all(item.primary is not None for item in seen.items)


def test_a_refused_certificate_is_explained_although_servers_are_not_quoted() -> None:
    with ScriptedServer(answering(echo)) as ours, ScriptedServer(answering(echo), tls=serving()) as theirs:
        arms = target(Arm.BASELINE, ours.url), target(Arm.CANDIDATE, theirs.url)
        [seen] = mirror(*arms, PROMPTS[:1], Shadow(prompts="unused"), Limits())
    assert str(only(seen).error).startswith("candidate: no TLS with the server: ")


def test_an_answer_that_never_comes_is_a_failed_call() -> None:
    def hang(received: Received) -> Iterator[Step]:
        yield 60.0

    item = only(compare(answering(echo), hang, PROMPTS[:1], limits=Limits.model_validate({"total": "200ms"})))
    assert item.primary is not None
    assert item.error == "candidate: no answer within 200 ms"


def test_a_dead_candidate_ends_the_comparison_with_its_reason() -> None:
    prompts = tuple(ShadowPrompt(f"p{n}", f"say {n}") for n in range(500))
    settings = Shadow(prompts="unused", concurrency=4)
    done: list[int] = []
    with ScriptedServer(answering(echo)) as server:
        arms = target(Arm.BASELINE, server.url), target(Arm.CANDIDATE, closed_port())
        [seen] = mirror(*arms, prompts, settings, Limits(), on_progress=done.append)
    assert seen.fault is not None
    assert seen.fault.startswith("the candidate left 10 prompts in a row unanswered: could not connect")
    assert seen.expected_n == 500
    assert 10 <= len(seen.items) < 20
    assert len(server.requests) < 40
    assert done == list(range(1, len(seen.items) + 1))
    assert all(item.candidate is None and item.primary is not None for item in seen.items)


def test_few_prompts_that_all_failed_are_a_fault_too() -> None:
    seen = compare(saying("x", "abort"), answering(echo), PROMPTS[:2])
    assert seen.fault is not None
    assert seen.fault.startswith("no prompt was answered by all three: primary: the answer ended with finish reason")


def test_no_prompts_make_an_empty_observation() -> None:
    assert compare(answering(echo), answering(echo), ()) == ShadowObservation(items=(), expected_n=0, fault=None)
