"""Weights made from the shipped model: right bytes, made once, made safely."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchgate.embedded import weights
from benchgate.embedded.weights import SHIPPED, WEIGHTS, GgufModel, pad, quantize, read_gguf, weights_file, write_gguf
from benchgate.errors import EmbeddedError
from benchgate.suite.deployment import Embedded


@pytest.fixture(scope="module")
def shipped() -> GgufModel:
    return read_gguf(SHIPPED)


def test_f16_without_added_layers_is_the_shipped_file(tmp_path: Path) -> None:
    assert weights_file("f16", 0, tmp_path / "cache") == SHIPPED
    assert not (tmp_path / "cache").exists()


def test_every_weight_a_suite_can_name_can_be_made() -> None:
    assert get_args(Embedded.model_fields["weights"].annotation) == WEIGHTS


def test_every_step_down_the_ladder_is_a_smaller_file(tmp_path: Path) -> None:
    sizes = [weights_file(name, 0, tmp_path).stat().st_size for name in WEIGHTS]
    assert sizes == sorted(set(sizes), reverse=True)


def test_a_copy_written_back_has_the_same_bytes_as_what_was_read(shipped: GgufModel, tmp_path: Path) -> None:
    write_gguf(shipped, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == SHIPPED.read_bytes()


def test_q8_0_is_within_half_a_step_of_the_original(shipped: GgufModel) -> None:
    """Q8_0 as ggml documents it: blocks of 32, an F16 scale of max/127 and 32 signed bytes."""
    original = next(t for t in shipped.tensors if t.name == "blk.0.attn_q.weight")
    quantized = next(t for t in quantize(shipped, "q8_0").tensors if t.name == original.name)
    blocks = quantized.data.reshape(-1, 34)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    restored = scales * blocks[:, 2:].view(np.int8)
    error = np.abs(restored - original.data.astype(np.float32).reshape(-1, 32))
    scale_rounding = 127 * 2.0**-11  # of the scale to F16, felt most by the largest byte
    assert (error <= (0.5 + scale_rounding) * scales).all()
    assert error.max() > 0


def test_norms_stay_unquantized(shipped: GgufModel) -> None:
    before = {t.name: t for t in shipped.tensors if t.data.ndim == 1}
    after = {t.name: t for t in quantize(shipped, "q2_k").tensors if t.data.ndim == 1}
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name].data, after[name].data) for name in before)


def test_added_layers_write_nothing_to_the_residual_stream(shipped: GgufModel) -> None:
    padded = pad(shipped, 2)
    assert padded.layers == shipped.layers + 2
    assert padded.tensors[: len(shipped.tensors)] == shipped.tensors
    added = {t.name: t.data for t in padded.tensors[len(shipped.tensors) :]}
    assert {name.split(".")[1] for name in added} == {"3", "4"}
    zero = {name for name, data in added.items() if not data.any()}
    assert zero == {f"blk.{i}.{part}.weight" for i in (3, 4) for part in ("attn_output", "ffn_down")}


def test_what_is_made_once_is_not_made_again(tmp_path: Path) -> None:
    first = weights_file("q4_0", 1, tmp_path)
    made = first.stat()
    again = weights_file("q4_0", 1, tmp_path)
    assert (again, again.stat().st_ino) == (first, made.st_ino)


@pytest.mark.parametrize("found", [b"", b"GGUF of somebody else"], ids=["cut", "other"])
def test_a_file_that_is_found_and_is_not_what_was_made_is_made_anew(tmp_path: Path, found: bytes) -> None:
    made = weights_file("q4_0", 0, tmp_path / "mine")
    (tmp_path / "theirs").mkdir()
    placed = tmp_path / "theirs" / made.name
    for _ in range(2):  # put there before this process made one, and after
        placed.write_bytes(found)
        assert weights_file("q4_0", 0, tmp_path / "theirs") == placed
        assert placed.read_bytes() == made.read_bytes()


def test_another_engine_version_makes_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights_file("q4_0", 0, tmp_path)
    monkeypatch.setattr(weights, "require_engine", lambda: "2099.1")
    assert weights_file("q4_0", 0, tmp_path) != before


def test_concurrent_makers_leave_one_valid_file(tmp_path: Path) -> None:
    alone = weights_file("q8_0", 2, tmp_path / "alone").read_bytes()
    together = tmp_path / "together"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        made = list(pool.map(weights_file, ["q8_0"] * 4, [2] * 4, [together] * 4))
    assert set(made) == set(together.iterdir()) == {made[0]}
    assert made[0].read_bytes() == alone


def test_a_failed_making_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_model: GgufModel, path: Path) -> None:
        path.write_bytes(b"GGUF, half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "write_gguf", full_disk)
    with pytest.raises(EmbeddedError, match="No space left on device"):
        weights_file("q4_0", 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_an_error_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="did you mean 'q8_0'"):
        weights_file("q8-0", 0, tmp_path)


def test_a_missing_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(EmbeddedError, match=r"pip install .+\[demo\]'"):
        weights_file("q8_0", 0, tmp_path)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "not-a-model.gguf"
    path.write_bytes(b"not a model at all, but long enough to be read")
    with pytest.raises(EmbeddedError, match=r"not-a-model\.gguf is not a readable GGUF file"):
        read_gguf(path)
