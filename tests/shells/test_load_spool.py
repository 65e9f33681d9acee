import resource
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.errors import StoreError
from benchgate.load.decode.body import RawBody
from benchgate.load.http.exchange import Failure, Response
from benchgate.load.http.parser import Head
from benchgate.load.spool import Phase, Spool, SpoolEntry, read_spool
from benchgate.model.records import ErrorClass
from tests.fakes.scripted_server import ScriptedServer
from tests.shells.load_helpers import WHOLE, closed, run

UNSENT = Response(sent_ns=None, over_ns=3, body=[], fault=Failure(ErrorClass.CONNECT, "nobody there \ud800"))
CUT = Response(
    sent_ns=5,
    over_ns=90,
    head=Head("HTTP/1.1", 200, {"content-type": "text/event-stream", "x-odd": "é: ü"}),
    body=[(20, b"data: a\n\n"), (30, b"\xff\x00"), (40, b"x")],
    fault=Failure(ErrorClass.STREAM_BROKEN, "the server reset the connection"),
    reconnects=1,
    connecting_ns=40,
)
WELL = Response(sent_ns=0, over_ns=7, head=Head("HTTP/1.0", 500, {}), body=[(6, b"no")], whole=True)
DROPPED = Response(sent_ns=-3, over_ns=8, body=[], unanswered=True, fault=Failure(ErrorClass.STREAM_BROKEN, "closed"))
LEFT = Response(sent_ns=4, over_ns=9, body=[], left=True)
FRAMED = Response(  # as it is gathered: with its head, in chunks
    sent_ns=1,
    over_ns=80,
    head=Head("HTTP/1.1", 200, {"transfer-encoding": "chunked"}),
    body=RawBody(bytearray(b"HTTP 200\r\n\r\n3\r\nabc\r\n4\r\nde"), array("q", (20, 15, 30, 9, 40, 1)), 12, None, True),
)
SPOOLED = [
    SpoolEntry(number, 10 * number, 1_000, response)
    for number, response in enumerate([UNSENT, CUT, WELL, DROPPED, FRAMED, LEFT])
]


def written(path: Path, spooled: list[SpoolEntry]) -> bytes:
    with Spool(path) as spool:
        for one in spooled:
            spool.append(one)
    return path.read_bytes()


def read(path: Path) -> list[SpoolEntry]:
    """What a spool gives back, with every body as the reads it consists of."""
    return [plain(spooled) for spooled in read_spool(path)]


def plain(spooled: SpoolEntry) -> SpoolEntry:
    return spooled._replace(response=replace(spooled.response, body=list(spooled.response.body)))


PLAIN = [plain(spooled) for spooled in SPOOLED]


def test_what_went_in_comes_out(tmp_path: Path) -> None:
    written(tmp_path / "spool", SPOOLED)
    assert read(tmp_path / "spool") == PLAIN
    assert list(read_spool(tmp_path / "spool"))[4] == SPOOLED[4]
    assert list(SPOOLED[4].response.body) == [(30, b"abc"), (30, b"d"), (40, b"e")]


def test_responses_come_back_in_order_of_their_requests(tmp_path: Path) -> None:
    written(tmp_path / "spool", SPOOLED[::-1])
    assert read(tmp_path / "spool") == PLAIN


def test_torn_file_gives_every_response_before_the_tear(tmp_path: Path) -> None:
    ends = [len(written(tmp_path / f"first-{count}", SPOOLED[:count])) for count in range(len(SPOOLED) + 1)]
    raw, torn = written(tmp_path / "whole", SPOOLED), tmp_path / "torn"
    for size in range(len(raw) + 1):
        torn.write_bytes(raw[:size])
        whole = max(count for count, end in enumerate(ends) if end <= size)
        assert read(torn) == PLAIN[:whole]


def test_a_file_that_goes_on_with_zeros_ends_where_they_begin(tmp_path: Path) -> None:
    """As after a loss of power: the length of the file was on the disk before its last bytes."""
    raw = written(tmp_path / "whole", SPOOLED)
    (tmp_path / "torn").write_bytes(raw + bytes(500))
    assert read(tmp_path / "torn") == PLAIN


def test_response_whose_bytes_changed_is_not_given_back(tmp_path: Path) -> None:
    start = len(written(tmp_path / "first", SPOOLED[:1]))
    raw = bytearray(written(tmp_path / "whole", SPOOLED))
    raw[raw.index(b"data: a", start)] ^= 1
    (tmp_path / "damaged").write_bytes(raw)
    assert read(tmp_path / "damaged") == [PLAIN[0], *PLAIN[2:]]


@given(
    body=st.lists(st.tuples(st.integers(0, 2**62), st.binary(min_size=1, max_size=30))),
    intended_ns=st.integers(-(2**62), 2**62),
    detail=st.text(),
    phase=st.sampled_from(Phase),
)
def test_any_bytes_and_instants_survive(
    tmp_path_factory: pytest.TempPathFactory,
    body: list[tuple[int, bytes]],
    intended_ns: int,
    detail: str,
    phase: Phase,
) -> None:
    response = Response(sent_ns=1, over_ns=2, body=body, fault=Failure(ErrorClass.PROTOCOL, detail))
    path = tmp_path_factory.mktemp("spool") / "spool"
    spooled = [SpoolEntry(7, intended_ns, 3, response, phase)]
    written(path, spooled)
    assert read(path) == spooled


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    written(tmp_path / "spool", SPOOLED)
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("size", "file"), [(20_000, "benchgate-load-[^/]*"), (600_000, "answers")])
def test_full_disk_ends_the_stage_with_what_to_do(size: int, file: str) -> None:
    """A limit on the size of files stands in for the disk: what is too much is refused in the middle of a frame."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ScriptedServer(lambda received: [WHOLE]) as server:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(StoreError, match=f"could not write [^ ]*/{file}: File too large; free some space"):
                run(server.url, closed(1000, concurrency=8))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
