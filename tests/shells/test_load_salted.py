"""Prompts are salted on their way to the wire: by a stage's salt, and by that of `benchgate load`."""

import pickle
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.load.shards import SaltedRequests, stage_shard
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import SyntheticRequests, run_load_test
from benchgate.load.standalone.search import SearchOptions, run_search
from benchgate.load.workers import Fleet
from benchgate.model.request import LARGEST_SALT, text_request
from benchgate.plan.model import PlannedClass, PlannedRequest, PlannedStage
from benchgate.plan.slot_share import SlotShare
from benchgate.plan.vocabulary import VOCABULARIES, keyed_text
from tests.fakes.scripted_server import ScriptedServer, answering
from tests.shells.load_helpers import WHOLE, limits, target_at

WORDS = VOCABULARIES["words"]
NOWHERE = target_at("http://127.0.0.1:1")


def group(name: str, count: int, *, background: bool = False, offset_ns: int | None = None) -> PlannedClass:
    asks = (text_request("chat", keyed_text(WORDS, 20, f"{name}{index}"), 4) for index in range(count))
    requests = tuple(PlannedRequest(index, offset_ns, ask, index) for index, ask in enumerate(asks))
    return PlannedClass(name, 2, None, requests, background)


def prompts(requests: Any, count: int | None = None) -> list[str]:
    return [request.ask.prompt for request in islice(requests, count)]


def test_the_shares_of_all_workers_have_the_prompts_of_the_whole_and_find_requests_as_planned() -> None:
    stage = PlannedStage("s", (group("", 10),))
    (plain,), (whole,) = (stage_shard(NOWHERE, stage, limits=limits(), salt=salt).parts for salt in (0, 5))
    assert isinstance(whole.requests, SaltedRequests)
    assert prompts(plain.requests) == [request.ask.prompt for request in stage.requests]
    assert not set(prompts(whole.requests)) & set(prompts(plain.requests))
    shares = [pickle.loads(pickle.dumps(whole.requests.share(SlotShare(worker, 3, 3)))) for worker in range(3)]
    assert Counter(text for share in shares for text in prompts(share)) == Counter(prompts(whole.requests))
    assert whole.requests.find()(3) == stage.requests[3]
    assert not whole.requests.endless


def test_background_requests_come_again_with_the_words_they_had() -> None:
    stage = PlannedStage("s", (group("front", 2), group("behind", 3, background=True)))
    _, behind = stage_shard(NOWHERE, stage, limits=limits(), salt=5).parts
    sent = prompts(behind.requests, 6)
    assert sent[:3] == sent[3:]
    assert not set(sent) & {request.ask.prompt for request in stage.classes[1].requests}
    found = behind.requests.find()(4)
    assert found is not None
    assert found.ask.prompt == sent[4]


def test_both_arms_and_any_number_of_workers_send_the_same_bytes() -> None:
    stage = PlannedStage("s", (group("", 12),))
    sent: list[Counter[str]] = []
    for workers in (1, 2):
        with ScriptedServer(answering(lambda received: "a b c d")) as server, Fleet(workers) as fleet:
            fleet.run(stage_shard(target_at(server.url), stage, limits=limits(), salt=5))
            sent.append(Counter(received.prompt for received in server.requests))
    assert sent[0] == sent[1]
    assert sum(sent[0].values()) == 12
    assert not set(sent[0]) & {request.ask.prompt for request in stage.requests}


def options(url: str = "http://127.0.0.1:1", **given: Any) -> LoadOptions:
    load = {"model": "m", "engine": "openai", "concurrency": 2, "requests": 6, "input_tokens": 16, "workers": "1"}
    return LoadOptions.parse(url=url, **{**load, **given})


def sent(**given: Any) -> tuple[set[str], Mapping[str, Any]]:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        document: Any = run_load_test(options(server.url, **given))
        return {received.prompt for received in server.requests}, document["load"]


def test_each_bare_load_sends_its_own_words_and_says_by_which_salt_to_send_them_again() -> None:
    first, told = sent()
    second, other = sent()
    assert not first & second
    assert told["salt"] != other["salt"]
    assert all(1 <= load["salt"] <= LARGEST_SALT for load in (told, other))
    again, repeated = sent(salt=told["salt"])
    measured = {request.ask.prompt for request in SyntheticRequests(options(salt=told["salt"]))}
    assert repeated == told
    assert measured <= first & again  # how many more the ramp sends depends on the server


def test_salt_of_zero_sends_the_words_of_the_seed_and_others_keep_lengths_and_instants() -> None:
    plain = list(SyntheticRequests(options(salt=0, concurrency=None, rate="9/s")))
    assert [request.ask.prompt for request in plain] == [keyed_text(WORDS, 16, f"0/{number}") for number in range(6)]
    salted = list(SyntheticRequests(options(salt=8, concurrency=None, rate="9/s")))
    assert [(one.index, one.offset_ns, one.seed) for one in salted] == [
        (one.index, one.offset_ns, one.seed) for one in plain
    ]
    for one, other in zip(plain, salted, strict=True):
        assert [len(word) for word in str(one.ask.prompt).split()] == [len(w) for w in str(other.ask.prompt).split()]
        assert one.ask.prompt != other.ask.prompt


@pytest.mark.parametrize("salt", [-1, LARGEST_SALT + 1])
def test_a_salt_that_is_none_is_refused(salt: int) -> None:
    with pytest.raises(UsageError, match=f"--salt is {salt}; write a number from 0 to {LARGEST_SALT}"):
        options(salt=salt)


def test_a_search_has_one_salt_for_all_its_looks() -> None:
    base: dict[str, Any] = {"url": "http://127.0.0.1:9", "model": "m", "engine": "vllm", "slo": "ttft=5s", "salt": 8}
    asked = SearchOptions.parse(
        over="concurrency", lowest="1", highest="4", target="95%", resolution="10%", probe=40, budget=None, least=None,
        load=base,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:  # no look gets an answer
        patched.setattr("benchgate.load.standalone.run.require_listener", lambda options: None)
        document: Any = run_search(asked)
    assert document["search"]["salt"] == asked.base.salt == 8
