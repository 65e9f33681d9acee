"""Several classes of traffic at once: each asks by its own arrival process and is told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from benchgate.load.http.exchange import Failure, Response
from benchgate.load.results import StageResult, lost_worker, remove_spools
from benchgate.load.shards import stage_shard
from benchgate.load.spool import Spool, SpoolEntry
from benchgate.load.workers import Fleet, run_stage
from benchgate.model.records import ErrorClass
from benchgate.model.request import text_request
from benchgate.plan.model import PlannedClass, PlannedRequest, PlannedStage
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, stream_head, token
from tests.shells.load_helpers import asking, limits, target_at


def chat(count: int, gap_ns: int) -> PlannedClass:
    return PlannedClass("chat", None, 50.0, tuple(asking(i, i * gap_ns) for i in range(count)))


def batch(count: int, concurrency: int, *, background: bool = False) -> PlannedClass:
    requests = tuple(PlannedRequest(i, None, text_request("completions", f"batch {i}", 8), i) for i in range(count))
    return PlannedClass("batch", concurrency, None, requests, background)


def run(url: str, *classes: PlannedClass, workers: int = 1) -> StageResult:
    stage = PlannedStage("mix", classes)
    if workers == 1:
        return run_stage(target_at(url), stage, limits=limits())
    with Fleet(workers) as fleet:
        return fleet.run(stage_shard(target_at(url), stage, limits=limits()))


def test_classes_run_at_once_and_each_keeps_its_own_records() -> None:
    with ScriptedServer(answering(lambda received: "a b c", after_s=0.02)) as server:
        result = run(server.url, chat(6, 15_000_000), batch(7, 2))
        paths = [received.path for received in server.requests]
    assert [group.name for group in result.classes] == ["chat", "batch"]
    talk, rest = result.classes
    assert talk.requests.intended_ns.tolist() == [i * 15_000_000 for i in range(6)]
    assert rest.requests.index.tolist() == list(range(7))
    assert set(talk.requests.error) == set(rest.requests.error) == {None}
    first_batch, last_chat = paths.index("/v1/completions"), len(paths) - 1 - paths[::-1].index("/v1/chat/completions")
    assert first_batch < last_chat  # neither waited for the other


def test_classes_of_several_workers_are_put_together_class_by_class() -> None:
    with ScriptedServer(answering(lambda received: "a b c", after_s=0.01)) as server:
        result = run(server.url, chat(5, 10_000_000), batch(7, 3), workers=2)
    assert [group.requests.index.tolist() for group in result.classes] == [list(range(5)), list(range(7))]
    assert result.client.workers == 2


def test_one_class_in_ten_requests_that_fail_leaves_the_other_whole() -> None:
    def respond(received: Received) -> Iterator[Step]:
        answer = answering(lambda _: "a b c")(received)
        yield from (
            answer if received.path.endswith("chat/completions") else [b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"]
        )

    with ScriptedServer(respond) as server:
        talk, rest = run(server.url, chat(4, 1_000_000), batch(3, 1)).classes
    assert (set(talk.requests.error), set(rest.requests.error)) == ({None}, {"http_5xx"})


class Endless:
    """The third batch request gets its first chunk at once and no end. No chat is answered before it waits for that."""

    def __init__(self) -> None:
        self.waits = False

    def __call__(self, received: Received) -> Iterator[Step]:
        if received.prompt == "batch 2":
            yield stream_head() + token("a")
            self.waits = True
            yield 60.0
        while received.path != "/v1/completions" and not self.waits:
            yield 0.005
        yield from answering(lambda _: "a b c", after_s=0.1)(received)


def test_background_goes_on_until_the_others_are_done_and_is_then_broken_off() -> None:
    """One slot: two answers, then one that never ends; without an end of its own the stage would not end at all."""
    with ScriptedServer(Endless()) as server:
        result = run(server.url, chat(4, 40_000_000), batch(3, 1, background=True))
    talk, rest = result.classes
    assert talk.requests.error == (None,) * 4
    assert (rest.requests.index.tolist(), tuple(rest.requests.error)) == ([0, 1], (None, None))
    assert (rest.left.index.tolist(), tuple(rest.left.error), rest.left.left.tolist()) == ([2], (None,), [1])
    assert len(rest.left.chunk_ns) == 1  # what was seen until then


def hanging(received: Received) -> Iterator[Step]:
    """Background request 2 is never answered, 3 is all the while; chats keep the stage up for half a second."""
    if received.prompt == "batch 2":
        yield 60.0
    if received.prompt == "batch 3":
        yield stream_head()
        for _ in range(400):
            yield token("a")
            yield 0.02
    yield from answering(lambda _: "a b c", after_s=0.02)(received)


def test_a_background_request_that_the_server_forgot_is_a_failure_and_a_long_answer_is_none() -> None:
    with ScriptedServer(hanging) as server:
        _, rest = run(server.url, chat(3, 300_000_000), batch(4, 2, background=True)).classes
    failed = {
        number: error for number, error in zip(rest.requests.index.tolist(), rest.requests.error, strict=True) if error
    }
    assert failed == {2: "timeout"}
    assert "still unanswered when the stage was over" in str(rest.requests.error_detail)
    assert 3 in rest.left.index.tolist()


def test_a_long_document_that_is_still_being_written_is_no_failure() -> None:
    """Its bytes come at its end; the short ones took 20 ms for 3 tokens each, which were all that they were to have."""

    def respond(received: Received) -> Iterator[Step]:
        if received.prompt == "batch 2":
            yield 60.0
        yield from answering(lambda _: "a b c d", after_s=0.02)(received)

    tokens = (3, 3, 4000, 3)
    asks = [replace(text_request("completions", f"batch {i}", n), stream=False) for i, n in enumerate(tokens)]
    documents = tuple(PlannedRequest(i, None, ask, i) for i, ask in enumerate(asks))
    with ScriptedServer(respond) as server:
        background = PlannedClass("batch", 2, None, documents, background=True)
        _, rest = run(server.url, chat(3, 300_000_000), background).classes
    assert set(rest.requests.error) == {None}
    assert 2 in rest.left.index.tolist()


def test_background_begins_again_when_it_has_asked_everything() -> None:
    with ScriptedServer(answering(lambda received: "a b c", after_s=0.005)) as server:
        result = run(server.url, chat(5, 30_000_000), batch(2, 1, background=True))
        prompts = [received.prompt for received in server.requests if received.path == "/v1/completions"]
    rest = result.classes[1]
    assert rest.recorded > 4
    assert sorted([*rest.requests.index.tolist(), *rest.left.index.tolist()]) == list(range(rest.recorded))
    assert prompts[:5] == ["batch 0", "batch 1", "batch 0", "batch 1", "batch 0"]


def test_background_stops_asking_a_target_that_is_down() -> None:
    """It is given up after a second; what is due later in the foreground has its record all the same."""
    with ScriptedServer(answering(lambda received: "a")) as server:
        url = server.url
    talk, rest = run(url, chat(10, 150_000_000), batch(2, 1, background=True)).classes
    assert set(talk.requests.error) == set(rest.requests.error) == {"connect"}
    assert rest.recorded < 100  # a slot without a pause asks thousands of times


def test_worker_that_is_lost_loses_no_planned_request_of_any_class(tmp_path: Path) -> None:
    """It had answered two of the batch class; of the background nobody knows what it would have asked."""
    stage = PlannedStage("mix", (chat(3, 1_000_000), batch(4, 1), replace(batch(2, 1, background=True), name="bg")))
    shard = replace(stage_shard(target_at("http://127.0.0.1:1"), stage, limits=limits()), spool=tmp_path / "answers")
    _, of_batch, _ = shard.spools(tmp_path / "answers")
    with Spool(of_batch) as spool:
        for number in (0, 1):
            spool.append(SpoolEntry(number, 0, 0, Response.unsent(Failure(ErrorClass.CONNECT, "refused"))))
    talk, rest, background = lost_worker(shard).classes
    assert (talk.name, talk.requests.index.tolist(), set(talk.requests.error)) == ("chat", [0, 1, 2], {"client"})
    assert rest.requests.error == ("connect", "connect", "client", "client")
    assert (background.name, background.recorded) == ("bg", 0)
    remove_spools(shard)
    assert list(tmp_path.iterdir()) == []


def test_background_of_fewer_requests_than_workers_keeps_every_worker_busy() -> None:
    """Two requests, four workers: each asks both, beginning at another one, and no two records share a number."""
    stage = PlannedStage("mix", (replace(batch(4, 4), name="short"), batch(2, 8, background=True)))
    shards = stage_shard(target_at("http://127.0.0.1:1"), stage, limits=limits()).split(4)
    asked = [list(islice(shard.parts[1].requests, 4)) for shard in shards]
    assert [requests[0].index % 2 for requests in asked] == [0, 1, 0, 1]
    numbers = [request.index for requests in asked for request in requests]
    assert len(set(numbers)) == 16
    for shard, requests in zip(shards, asked, strict=True):
        find = shard.parts[1].requests.find()
        found = [find(request.index) for request in requests]
        assert [one and one.ask for one in found] == [request.ask for request in requests]


def test_background_of_fewer_slots_than_workers_sends_all_its_requests() -> None:
    stage = PlannedStage("mix", (replace(batch(4, 4), name="short"), batch(5, 2, background=True)))
    parts = [shard.parts[1] for shard in stage_shard(target_at("http://127.0.0.1:1"), stage, limits=limits()).split(4)]
    assert [part.level.concurrency for part in parts] == [1, 1, 0, 0]
    sent = [[request.index for request in islice(part.requests, 5)] for part in parts if part.level.concurrency]
    assert {index % 5 for indexes in sent for index in indexes} == {0, 1, 2, 3, 4}


def test_background_alone_never_keeps_a_worker() -> None:
    """One slot in the foreground, eight behind it: a second worker would have nothing that ends."""
    stage = PlannedStage("mix", (replace(batch(4, 1), name="short"), batch(8, 8, background=True)))
    shards = stage_shard(target_at("http://127.0.0.1:1"), stage, limits=limits()).split(4)
    assert [[part.level.concurrency for part in shard.parts] for shard in shards] == [[1, 8]]
