"""Scoring given texts by an echoed prompt: what is summed, and every answer that is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.quality.logprobs import (
    Score,
    echoed,
    next_token,
    read_echo,
    score_continuations,
    scoring_fault,
    text_positions,
    tied,
)
from benchgate.targets.client import RETRY, AsyncJsonClient
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.echoing import UNSTATED, Echoing, told
from tests.fakes.replay import capture, replay
from tests.fakes.scripted_server import Received, Respond, ScriptedServer, Step, json_response

CONTEXT = "Two and two are"
KEY = "key-5e1d"
VLLM = "vllm-0.32.0-cpu/completions_echo_logprobs"

Answer = TypeVar("Answer")


def ask(respond: Respond, about: Callable[[AsyncJsonClient], Awaitable[Answer]], engine: str = "vllm") -> Answer:
    async def asked() -> Answer:
        async with AsyncJsonClient(
            Target(Arm.BASELINE, server.url, "m", DIALECTS[engine], KEY), connect_s=10, total_s=60, retry=RETRY
        ) as client:
            return await about(client)

    with ScriptedServer(respond) as server:
        return asyncio.run(asked())


def always(answer: bytes) -> Respond:
    return lambda received: [answer]


def scores(respond: Respond, *options: str, context: str = CONTEXT) -> list[Score]:
    return ask(respond, lambda client: score_continuations(client, "echo", context, options))


def sums(respond: Respond, *options: str, context: str = CONTEXT) -> list[float]:
    return [score.logprob for score in scores(respond, *options, context=context)]


# --- what is summed --------------------------------------------------------------------------------------------------


def test_vllms_recording_is_read_with_ids_and_without_its_generated_token() -> None:
    document = json.loads(capture(VLLM).body)
    seen = read_echo(document, "Hello world")
    assert seen.tokens == ("H", "#315", "#335", "#569", "#746")
    assert seen.logprobs[0] is None
    assert seen.logprobs[1:] == pytest.approx([-7.3464, -7.7548, -6.8891, -7.3473], abs=1e-4)
    assert list(seen.tops[1]) == ["#1810", "#315"]  # the likeliest first


def test_a_continuation_is_scored_with_all_its_tokens_and_nothing_else() -> None:
    server = Echoing({" four": -0.25, " thirty": -1.5, "-": -0.5, "five": -0.125})
    found = scores(server, " four", " thirty-five")
    assert [(score.logprob, score.tokens) for score in found] == [(-0.25, 1), (-2.125, 3)]


def test_it_is_greedy_only_if_every_token_was_the_likeliest() -> None:
    server = Echoing({" a": -0.5, " b": -0.75, " c": -1.5})  # another one has -1.0 everywhere
    assert [score.is_greedy for score in scores(server, " a", " a b", " a c")] == [True, True, False]


def test_the_last_token_counts_where_the_generated_one_is_not_told() -> None:
    server = Echoing({" four": -0.25, " now": -8.0}, tells_generated=False)
    assert sums(server, " four now") == [-8.25]


def test_a_first_token_of_the_servers_own_shifts_nothing() -> None:
    server = Echoing({" four": -0.25}, lead=("<s>",))
    assert sums(server, " four", " five") == [-0.25, UNSTATED]


def test_spaces_that_a_server_swallows_shift_nothing() -> None:
    server = Echoing({" four": -0.25, " ever": -0.5}, shown=str.strip)
    assert sums(server, " four ever") == [-0.75]


def test_tokens_that_are_half_a_character_shift_nothing() -> None:
    def halves(text: str) -> list[str]:
        return [part for token in text.split("|") for part in (("\ufffd", "\ufffd") if token == "é" else (token,))]

    server = Echoing({" x": -0.25, " y": -0.5}, tokenise=halves)
    seen = ask(server, lambda client: echoed(client, "caf|é|| x", top=1))
    assert len(seen.tokens) == 5


def test_options_with_one_value_for_all_or_for_every_token_are_told_from_those_that_were_read() -> None:
    assert tied(scores(Echoing(), " four", " five"))
    assert tied(scores(Echoing(), " four", " thirty-five"))  # -2 for every token
    assert not tied(scores(Echoing({" four": -0.5}), " four", " thirty-five"))
    assert not tied(scores(Echoing(), " four"))


def test_a_space_at_the_end_of_the_context_belongs_to_what_follows() -> None:
    assert sums(Echoing({" four": -0.25}), "four", context=CONTEXT + " ") == [-0.25]


def test_a_token_that_reaches_over_the_border_counts_for_the_continuation() -> None:
    assert sums(Echoing({" areas": -0.75}), "as", context=CONTEXT) == [-0.75]


def test_texts_are_sent_and_never_ids() -> None:
    sent = []

    def respond(received: Received) -> Sequence[Step]:
        sent.append(received.body)
        return list(Echoing()(received))

    scores(respond, " four", " five")
    asked = {"model": "m", "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    assert sent == [{**asked, "prompt": prompt} for prompt in (CONTEXT, CONTEXT + " four", CONTEXT + " five")]


def test_positions_are_those_chosen_with_the_tokens_that_were_likely_there() -> None:
    server = Echoing({" two": -0.25})
    found = ask(server, lambda client: text_positions(client, "echo", CONTEXT, top=1, choose=lambda n: [n - 1, n - 2]))
    assert [(p.place, p.token, p.logprob) for p in found] == [(2, " two", -0.25), (3, " are", UNSTATED)]
    assert dict(found[1].top) == {"likely": -1.0, " are": UNSTATED}


# --- what is refused -------------------------------------------------------------------------------------------------


def set_value(value: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: told(document)["token_logprobs"].__setitem__(2, value)


def replace_logprobs(logprobs: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["choices"][0].update(logprobs=logprobs)


def keep(count: int) -> Callable[[dict[str, Any]], object]:
    def spoil(document: dict[str, Any]) -> None:
        for name, values in told(document).items():
            told(document)[name] = values[:count]

    return spoil


def rename(document: dict[str, Any]) -> None:
    told(document)["tokens"][1] = " other"


CHAT_SHAPE = {"content": [{"token": "l", "logprob": -0.5, "top_logprobs": []}]}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (set_value(float("nan")), "is nan, which is not finite"),
        (set_value(float("-inf")), "is -inf, which is not finite"),
        (set_value(-9999.0), "is -9999.0, which is not finite"),
        (set_value(None), "is None, not a number"),
        (set_value("-1"), "is '-1', not a number"),
        (set_value(0.5), "is 0.5, which is above zero"),
        (replace_logprobs(None), "returned no log-probabilities; it seems to ignore `echo`"),
        (replace_logprobs(CHAT_SHAPE), "no log-probabilities of the prompt's tokens; it seems to ignore `echo`"),
        (keep(1), "scored 1 tokens of a prompt that has 4; it seems to ignore `echo`"),
        (keep(3), "scored 3 tokens of a prompt that has 4"),
        (rename, "scored another text than the one it got: 'Two other two are' for 'Two and two are'"),
        (lambda document: document.pop("usage"), "does not report how many tokens the prompt had"),
        (lambda document: told(document).pop("top_logprobs"), "lists no probable tokens at token 1"),
        (lambda document: document.pop("choices"), "HTTP 200 without choices"),
        (lambda document: document.update(error={"message": "out of blocks"}), "HTTP 200 with an error in it: out of"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_about_the_whole_text_is_refused(spoil: Callable[..., object], said: str) -> None:
    with pytest.raises(TargetError) as refusal:
        scores(Echoing(spoil=spoil), " four")
    assert said in str(refusal.value)


def test_a_continuation_without_any_context_is_refused_where_the_first_token_has_no_value() -> None:
    with pytest.raises(TargetError, match="a continuation needs a context"):
        scores(Echoing(), "four", context="")
    assert sums(Echoing({"four": -0.5}, lead=("<s>",)), "four", context="") == [-0.5]


def test_a_prompt_that_is_too_long_is_an_error_with_the_servers_words() -> None:
    error = {"error": {"message": f"maximum context length is 2048 tokens, {KEY}"}}
    with pytest.raises(TargetError, match=r"^HTTP 400: maximum context length is 2048 tokens, \[redacted\]$"):
        scores(lambda received: [json_response(error, status=400)], " four")


def test_what_may_pass_is_asked_again_and_counted() -> None:
    answers = iter([json_response({"error": "busy"}, status=503)])

    def respond(received: Received) -> Sequence[Step]:
        return [next(answers, None) or json_response(Echoing().document(received.prompt))]

    async def asked(client: AsyncJsonClient) -> int:
        await echoed(client, CONTEXT, top=1)
        return client.retries

    assert ask(respond, asked) == 1


# --- the probe -------------------------------------------------------------------------------------------------------


def probed(respond: Respond, engine: str = "vllm") -> str | None:
    return ask(respond, lambda client: scoring_fault(client, "n_probs" if engine == "llamacpp" else "echo"), engine)


def test_a_server_that_scores_given_texts_is_found_fit() -> None:
    assert probed(Echoing({" four": -0.25, " three": -0.5, ",": -0.75})) is None


def test_a_server_that_gives_every_token_the_same_is_found_out() -> None:
    fault = probed(Echoing())
    assert fault is not None
    assert fault.startswith("it gives every token of a text the same log-probability, -2; ")


def test_a_server_that_gives_every_option_the_same_is_found_out() -> None:
    fault = probed(Echoing({",": -0.75, " sky": -1.0, " is": -1.0}))
    assert fault is not None
    assert fault.startswith("it gives 3 different texts the same log-probability, -2; ")


@pytest.mark.parametrize(("echoed_value", "is_fit"), [(-0.25, True), (-6.0, False)])
def test_a_server_that_echoes_the_values_of_other_places_is_found_out(echoed_value: float, is_fit: bool) -> None:
    """llama-cpp-python, of models without a first token: each token as likely after itself."""
    echoing = Echoing({" four": echoed_value, " three": -0.5, ",": -0.75})

    def respond(received: Received) -> Sequence[Step]:
        if (received.body or {}).get("echo"):
            return [json_response(echoing.document(received.prompt))]
        listed = {"top_logprobs": [{" four": -0.25, " five": -3.0}]}
        return [json_response({"choices": [{"text": " four", "logprobs": listed, "finish_reason": "length"}]})]

    fault = probed(respond)
    assert (fault is None) == is_fit
    assert is_fit or "it seems to report the values of other places" in str(fault)


@pytest.mark.parametrize("generated", [["!"], [" "], [""], []])
def test_a_first_token_that_is_counted_and_not_listed_shifts_nothing(generated: list[str]) -> None:
    """llama-cpp-python, of models with a first token (BOS); without a generated token where the text ended."""

    def spoil(document: dict[str, Any]) -> None:
        listed = told(document)
        for values in listed.values():
            values[-1:] = values[-1:] if generated else []
        listed["tokens"][len(listed["tokens"]) - len(generated) :] = generated
        document["usage"]["prompt_tokens"] += 1

    text = CONTEXT + " four"
    plain = read_echo(Echoing({" four": -0.25}).document(text), text)
    assert read_echo(Echoing({" four": -0.25}, spoil=spoil).document(text), text) == plain


def test_a_server_that_ignores_echo_without_a_word_is_found_out() -> None:
    fault = probed(replay("transformers-serve-5.19.0/completions_echo_logprobs"))
    assert fault is not None
    assert "it seems to ignore `echo`" in fault
    assert "say `engine: llamacpp`" in fault
    assert "output_type: generate_until" in fault


def test_a_server_that_always_scores_one_and_the_same_text_is_found_out() -> None:
    fault = probed(replay(VLLM))
    assert fault is not None
    assert "scored another text than the one it got: 'Hello world' for 'One, two" in fault


# --- llama.cpp's way, scripted ---------------------------------------------------------------------------------------


def entry(token: int, logprob: object) -> dict[str, object]:
    return {"id": token, "token": chr(token), "bytes": [token], "logprob": logprob}


def llama(received: Received, **changed: object) -> dict[str, Any]:
    """A byte is a token. It takes what it is biased to, and lists only the letter `e`."""
    body = received.body or {}
    if received.path == "/tokenize":
        return {"tokens": [1, *body["content"].encode()]}
    [[token, _]] = body["logit_bias"]
    listed = [entry(ord("e"), -0.5)]
    taken = listed[0] if token == ord("e") else entry(token, -token / 8)
    return {
        "completion_probabilities": [{**taken, "top_logprobs": listed}],
        "tokens_evaluated": len(body["prompt"]),
        "truncated": False,
        **(changed if received.path == "/completion" else {}),
    }


def llama_sums(*options: str, **changed: object) -> list[float]:
    def respond(received: Received) -> Sequence[Step]:
        return [json_response(llama(received, **changed))]

    found = ask(respond, lambda client: score_continuations(client, "n_probs", "th", options), "llamacpp")
    return [score.logprob for score in found]


def test_a_token_inside_a_character_is_looked_up_in_a_longer_list() -> None:
    """llama.cpp shows no token before its character is whole: the first byte of `é` is taken, and nothing is said."""
    [first, second] = "é".encode()

    def respond(received: Received) -> Sequence[Step]:
        answer = llama(received)
        body = received.body or {}
        if body.get("logit_bias", [[None]])[0][0] == first:
            del answer["completion_probabilities"]
        elif body.get("n_probs", 0) >= 256:
            answer["completion_probabilities"][0]["top_logprobs"] = [entry(token, -6.0) for token in range(256)]
        return [json_response(answer)]

    found = ask(respond, lambda client: score_continuations(client, "n_probs", "th", ["é"]), "llamacpp")
    assert [score.logprob for score in found] == [-6.0 - second / 8]


def test_listed_and_unlisted_tokens_are_both_summed() -> None:
    assert llama_sums("e", "a", "ea") == [-0.5, -97 / 8, -0.5 - 97 / 8]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"completion_probabilities": [{**entry(120, -1.0), "top_logprobs": [entry(101, -0.5)]}]},
         "could not be made to take token 97, which is not among the 1 most probable ones"),
        ({"completion_probabilities": [{**entry(97, float("nan")), "top_logprobs": [entry(101, -0.5)]}]},
         "the log-probability of token 97 is nan"),
        ({"completion_probabilities": [{**entry(97, -1.0), "top_logprobs": [entry(101, -0.1), entry(102, -0.1)]}]},
         "add up to more than one"),
        ({"completion_probabilities": [{"content": "a", "probs": [{"tok_str": "a", "prob": 0.5}]}]},
         "it is no llama.cpp server, or one from before December 2024"),
        ({"completion_probabilities": []}, "returned no `completion_probabilities`"),
        ({"truncated": True}, "did not read all of the 3 tokens"),
        ({"tokens_evaluated": 2}, "did not read all of the 3 tokens"),
    ],
)  # fmt: skip
def test_an_answer_of_llama_cpp_that_is_none_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(TargetError) as refusal:
        llama_sums("a", **changed)
    assert said in str(refusal.value)


# --- one token at a time ---------------------------------------------------------------------------------------------


def test_rivals_of_the_next_token_are_read_in_both_shapes_without_stand_ins_and_doubles() -> None:
    pairs = [("a", -0.5), ("b", -2.0), ("b", -6.0), ("\ufffd", -3.0), ("c", -9999.0)]
    new = {"content": [{"token": "a", "top_logprobs": [{"token": t, "logprob": p} for t, p in pairs]}]}
    old = {"tokens": ["a"], "top_logprobs": [{"b": -2.0, "a": -0.5, "c": -9999.0}]}
    for logprobs in (new, old):
        answer = json_response({"choices": [{"text": "a", "logprobs": logprobs, "finish_reason": "length"}]})
        found = ask(always(answer), lambda client: next_token(client, "x", top=5))
        assert list(found.items()) == [("a", -0.5), ("b", -2.0)]


def test_a_server_that_lists_no_rivals_is_refused() -> None:
    bare = replay("transformers-serve-5.19.0/completions_echo_logprobs")
    with pytest.raises(TargetError, match="lists 0 probable tokens for the next one"):
        ask(bare, lambda client: next_token(client, "x", top=5))
