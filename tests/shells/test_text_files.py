"""Files that a reader names: none is read that has no end, or is larger than such a file may be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchgate.cli.options import read_waivers, today
from benchgate.errors import BenchgateError
from benchgate.load.prompt_sets import read_prompt_set
from benchgate.pipeline.suite_file import read_prices, read_suite
from benchgate.shadow.prompts import load_prompts
from benchgate.suite.workload import PromptSet
from benchgate.system import RECORDED_BYTES, read_text_file

METRICS: dict[str, Callable[[Path], object]] = {
    "suite": read_suite,
    "waivers": lambda file: read_waivers(file, today()),
    "prices": read_prices,
    "prompts": lambda file: read_prompt_set(file.parent, PromptSet(source=file.name), conversing=False),
    "recorded": load_prompts,
}


@pytest.mark.parametrize("kind", METRICS)
def test_no_file_without_an_end_or_of_any_size_is_read(kind: str, tmp_path: Path) -> None:
    file = tmp_path / kind
    for made, told in (
        (lambda: os.mkfifo(file), "it is no regular file"),
        (lambda: file.symlink_to("/dev/zero"), "it is no regular file"),
        (lambda: _sized(file, RECORDED_BYTES + 1), "it is larger than 1,0"),
        (lambda: file.write_bytes(b"\xff"), "is not text" if kind == "suite" else "cannot be read"),
    ):
        made()
        with pytest.raises(BenchgateError) as caught:
            METRICS[kind](file)
        assert told in str(caught.value)
        file.unlink()


def _sized(file: Path, n_bytes: int) -> None:
    with file.open("wb") as made:
        made.truncate(n_bytes)


def test_a_text_has_one_kind_of_line_end(tmp_path: Path) -> None:
    file = tmp_path / "of.txt"
    file.write_bytes(b"one\r\ntwo\rthree\n")
    assert read_text_file(file) == "one\ntwo\nthree\n"
    assert read_text_file(file, 15) and file.stat().st_size == 15
    with pytest.raises(OSError, match="larger than 14 bytes"):
        read_text_file(file, 14)
