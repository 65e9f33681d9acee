"""Generated media are what their names say, byte for byte the same everywhere, and changed by a salt in every part."""

from __future__ import annotations

import hashlib
import io
import struct
import wave
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.plan.media import data_of, data_url, noise_mp4, salted_media, speech_wav

SALTS = st.integers(1, 2**32 - 1)
Samples = npt.NDArray[np.int16]


def samples_of(wav: bytes) -> Samples:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (1, 16_000, 2)
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")


def boxes_of(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    while content:
        size = int.from_bytes(content[:4])
        yield content[4:8], content[8:size]
        content = content[size:]


def frames_of(mp4: bytes, blocks: int) -> list[npt.NDArray[np.uint8]]:
    """Return the luma of each frame, as stated by ITU-T H.264 for macroblocks of the type I_PCM."""
    media = dict(boxes_of(mp4))[b"mdat"]
    frames = []
    while media:
        unit, media = media[4 : 4 + int.from_bytes(media[:4])], media[4 + int.from_bytes(media[:4]) :]
        assert (unit[0] & 0x1F, unit[-1]) == (5, 0x80)  # a slice of an IDR picture, and its last bit
        raw = unit[-1 - 384 :]
        bodies = [unit[-1 - 384 - 386 * at : -1 - 386 * at] for at in reversed(range(blocks))]
        assert raw[:-1] == bodies[-1]
        assert b"\0\0" not in unit[1:]  # so nothing needs an escape
        frames.append(np.array([np.frombuffer(body, dtype=np.uint8)[:256] for body in bodies]))
    return frames


@given(st.integers(1, 40_000), st.integers(0, 2**32))
def test_speech_has_its_length_to_the_sample(count: int, seed: int) -> None:
    clip = samples_of(speech_wav(count / 16_000, np.random.default_rng(seed)))
    assert len(clip) == count


def test_speech_sounds_like_speech_and_no_two_clips_are_alike() -> None:
    clips = [samples_of(speech_wav(8.0, np.random.default_rng(seed))) for seed in range(8)]
    assert len({clip.tobytes() for clip in clips}) == 8
    for clip in clips:
        windows = np.abs(clip[: 16_000 * 8 // 800 * 800].reshape(-1, 800).astype(np.int64)).max(axis=1)
        assert 0.05 < (windows < 100).mean() < 0.5  # pauses
        assert 5_000 < windows.max() < 2**15
        power = np.abs(np.fft.rfft(clip.astype(np.float64))) ** 2
        hz = np.fft.rfftfreq(len(clip), 1 / 16_000)
        assert power[(hz > 80) & (hz < 4_000)].sum() > 0.9 * power.sum()


@pytest.mark.parametrize(
    ("made", "digest"),
    [
        (lambda: speech_wav(3.0, np.random.default_rng(7)), "6aaf994ac946cf55"),
        (lambda: noise_mp4(32, 48, 3, 2, np.random.default_rng(7)), "6c1c6a21e231b0fe"),
    ],
)
def test_media_are_the_same_bytes_on_every_machine(made: object, digest: str) -> None:
    assert callable(made)
    assert hashlib.sha256(made()).hexdigest()[:16] == digest


def test_video_holds_the_pixels_that_were_drawn_and_a_table_of_its_frames() -> None:
    """The same files were decoded to these pixels by FFmpeg and OpenCV."""
    drawn = np.random.default_rng(3).integers(128, 256, size=(3, 6, 256), dtype=np.uint8)
    video = noise_mp4(48, 32, 3, 2, np.random.default_rng(3))
    assert np.array_equal(np.array(frames_of(video, 6)), drawn)
    kinds = [kind for kind, _ in boxes_of(video)]
    assert kinds == [b"ftyp", b"moov", b"mdat"]
    assert sum(struct.unpack_from(">3I", video, video.index(b"stsz") + 16)) == len(dict(boxes_of(video))[b"mdat"])
    assert struct.unpack_from(">I", video, video.index(b"stco") + 12) == (video.index(b"mdat") + 4,)
    assert struct.unpack_from(">HH", video, video.index(b"avc1\0\0") + 28) == (48, 32)


@given(SALTS)
def test_salt_changes_every_part_of_a_medium_and_is_its_own_opposite(salt: int) -> None:
    speech, video = speech_wav(0.1, np.random.default_rng(1)), noise_mp4(16, 32, 2, 1, np.random.default_rng(1))
    for content, kind in ((speech, "audio/wav"), (video, "video/mp4")):
        before = data_url(content, kind)
        after = salted_media(before, salt)
        assert len(after) == len(before)
        assert salted_media(after, salt) == before
    heard = samples_of(data_of(salted_media(data_url(speech, "audio/wav"), salt)))
    assert (heard != samples_of(speech)).all()
    assert np.abs(heard.astype(int) - samples_of(speech)).max() < 16  # and nobody hears it
    seen = frames_of(data_of(salted_media(data_url(video, "video/mp4"), salt)), 2)
    assert all((one != other).all() for one, other in zip(seen, frames_of(video, 2), strict=True))
