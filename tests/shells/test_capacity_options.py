"""`benchgate capacity` from numbers alone: what cannot be is refused, and nothing that is said is without effect."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from tests.fakes.quick_command import answer

FLEET = {
    "--target-tokens-per-s": "5000", "--p95": "6000", "--peak": "7000", "--replica-tokens-per-s": "700",
    "--output-tokens": "50", "--request-time": "2s", "--price-per-hour": "1.2", "--overhead": "25%",
    "--safety-factor": "1.2", "--spares": "1",
}  # fmt: skip
CACHE = {
    "--model-config": "config.json",
    "--cache-memory": "80GB",
    "--request-tokens": "8192",
    "--tensor-parallel": "2",
}
REPLAY = {
    "--traffic": "day.csv", "--replica-requests-per-s": "3", "--request-time": "2s", "--places": "8",
    "--min-replicas": "1", "--max-replicas": "4", "--cold-start": "60s", "--wait": "1s", "--target-load": "80%",
    "--look": "15s", "--cooldown": "5min", "--request-cv": "1", "--seed": "0", "--price-per-hour": "4",
}  # fmt: skip
STRANGE = "0", "-1", "nan", "inf", "1e308", "1" + "0" * 400, "1e-320", "many", ""
UNITS = "0s", "1e300h", "nans", "0%", "1e-300%", "1e300%", "1ns", "1e290TB", "0GB"
MODEL = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bf16"}
Options = dict[str, str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "day.csv").write_text("requests_per_s\n0.01\n0.02\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(options: Options, *more: str) -> str:
    """The answer as JSON or text; the refusal, where it is one."""
    words = [word for pair in options.items() for word in pair]
    try:
        code, said, complained = answer("capacity", *words, *more)
    except UsageError as error:
        return f"refused: {error}"
    assert code in (0, 2), complained
    return said if code == 0 else f"refused: {complained}"


def test_usual_numbers_are_answered() -> None:
    for options in (FLEET, FLEET | CACHE, REPLAY):
        assert json.loads(asked(options, "--format", "json"))["levels"]


@pytest.mark.parametrize("options", [FLEET | CACHE, REPLAY], ids=["fleet", "replay"])
def test_number_that_cannot_be_is_refused_and_never_told(options: Options) -> None:
    """Each in each option: an answer has finite numbers alone, and a refusal is no crash and no endless replay."""

    def never(constant: str) -> float:
        raise AssertionError(f"{constant} in the answer")

    for option, value in itertools.product(options, (*STRANGE, *UNITS)):
        said = asked(options | {option: value}, "--format", "json")
        if said.startswith("refused"):
            continue
        found = json.loads(said, parse_constant=never)
        assert found["levels"][0]["sized"]["with_spares"] <= 2_000_001, option
        text = asked(options | {option: value})
        assert not {"nan", "inf", "∞"} & set(text.replace(",", " ").split()), option


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--output-tokens", "0", "--output-tokens is 0.0; expected a number above 0"),
        ("--request-time", "0s", "--request-time: "),
        ("--price-per-hour", "nan", "--price-per-hour is nan; expected dollars"),
        ("--price-per-hour", "0", "--price-per-hour is 0.0; expected dollars above 0"),
        ("--price-per-hour", "dear", '"dear"; expected dollars per hour of a whole replica, like 1.2 or $1.2/h'),
        ("--overhead", "25", "did you mean 25%?"),
        ("--target-tokens-per-s", "0", "nothing to be carried needs no fleet"),
        ("--cache-dtype", "fp9", "--cache-dtype: 'fp9' is not a known"),
        ("--model-config", "nowhere.json", "nowhere.json: there is no such file"),
        ("--safety-factor", "0.5", "--safety-factor is 0.5; expected 1 or more"),
        ("--spares", "2000000", "at most 1,000,000"),
        ("--target-tokens-per-s", "inf", "the mean of a demand is inf; expected a rate"),
        ("--replica-tokens-per-s", "1e-6", "takes more than 1,000,000 replicas of 1e-06; expected both in one unit"),
        ("--cache-memory", "80", '--cache-memory: "80" is not a size of a memory; write it like "80GB"'),
        ("--request-tokens", "0", "--request-tokens in pages of 16; expected 1 or more"),
        ("--tensor-parallel", "3", "8 KV heads cannot be shared by 3 accelerators"),
        ("--tensor-parallel", "0", "0 accelerators share a layer; expected 1 to 1,024"),
    ],
)
def test_refusal_names_the_option_and_what_was_expected(option: str, value: str, said: str) -> None:
    assert said in asked(FLEET | CACHE | {option: value})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--places", "4", "has 6 inside at once (Little's law), and 4 places carry no more than 2 requests/s"),
        ("--places", "0", "--places is 0; it cannot be but 1 to 1,000,000"),
        ("--max-replicas", "20000", "at most 10,000"),
        ("--min-replicas", "5", "cannot be of 5 to 4 replicas"),
        ("--look", "1ns", "looks of the autoscaler; at most 20,000,000 are replayed"),
        ("--look", "0s", "--look cannot be 0"),
        ("--target-load", "0%", "--target-load cannot be 0; expected 0.01 to 1 of places"),
        ("--request-cv", "nan", "a variation (cv) cannot be nan; expected 0 to 10"),
        ("--request-cv", "100", "a variation (cv) cannot be 100; expected 0 to 10"),
    ],
)
def test_replay_that_cannot_be_is_refused(option: str, value: str, said: str) -> None:
    assert said in asked(REPLAY | {option: value})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ("--places", "8", "--seed", "1"),
            "--places is of a replay: give --max-replicas and --traffic (and so for --seed)",
        ),
        (("--stage", "c8"), "--stage is of a stored run: name one, or leave it out"),
        (("--arm", "candidate"), "--arm is of a stored run"),
        (("--store", "x.db"), "--store is of a stored run"),
        (
            ("--cold-start", "60s"),
            "--cold-start is held against how fast the demand rises: give its hours as --traffic",
        ),
        (("--tensor-parallel", "2"), "what the cache holds also needs --model-config"),
    ],
)
def test_option_without_effect_is_refused_with_what_it_belongs_to(more: tuple[str, ...], said: str) -> None:
    assert said in asked(FLEET, *more)


def test_numbers_that_would_not_be_used_are_refused() -> None:
    bare = {"--target-tokens-per-s": "5000", "--replica-tokens-per-s": "700"}
    assert "--overhead is of dollars, and no price is known: give --price-per-hour" in asked(
        bare | {"--overhead": "5%"}
    )
    assert "--output-tokens is of what is in flight: give --request-time" in asked(bare | {"--output-tokens": "50"})
    requests = {"--target-requests-per-s": "50", "--replica-requests-per-s": "7", "--output-tokens": "50"}
    assert "--output-tokens is of dollars" in asked(requests)
    fixed = REPLAY | {"--min-replicas": "4"}
    assert "--target-load does nothing where --min-replicas is --max-replicas (and so for --look, --cooldown)" in asked(
        fixed
    )


def test_price_is_read_as_suites_have_it() -> None:
    assert asked(FLEET | {"--price-per-hour": "$1.2/h"}) == asked(FLEET)


def test_numbers_that_are_not_known_are_named_with_the_option_that_says_them() -> None:
    bare = {"--target-requests-per-s": "50", "--replica-requests-per-s": "7"}
    assert "No dollars: what a replica costs is not known; give --price-per-hour." in asked(bare)
    assert "$/1M tok follows from the tokens of an answer; give --output-tokens." in asked(
        bare | {"--price-per-hour": "1"}
    )
    assert "So a replica cannot answer one: give the cache more" in asked(FLEET | CACHE | {"--cache-memory": "1GB"})


def test_traffic_that_is_of_nothing_or_not_parted_by_commas_is_refused(folder: Path) -> None:
    (folder / "day.csv").write_text("requests_per_s\n0\n0\n")
    assert "day.csv: every hour's requests_per_s is 0" in asked(REPLAY)
    (folder / "day.csv").write_text("hour;requests_per_s\n0;3,5\n")
    assert "day.csv:1: its cells are separated by ';'; write commas, and a point in numbers: 3.5" in asked(REPLAY)


def test_file_that_is_none_or_has_no_end_is_refused(folder: Path) -> None:
    refused = {
        "/dev/zero": "it is no regular file", str(folder): "Is a directory",
        "deep.json": "nested too deep", "long.json": "a number is too long", "huge.json": "larger than 16,777,216 b",
    }  # fmt: skip
    (folder / "deep.json").write_text("[" * 200_000)
    (folder / "long.json").write_text('{"num_hidden_layers": ' + "9" * 5000 + "}")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(2**24 + 1)
    for name, said in refused.items():
        assert said in asked(FLEET | CACHE | {"--model-config": name}), name
    assert "it is no regular file" in asked(REPLAY | {"--traffic": "/dev/zero"})


def test_backlog_at_the_end_of_the_hours_is_paid_and_told(folder: Path) -> None:
    (folder / "day.csv").write_text("requests_per_s\n0.1\n9\n")
    options = REPLAY | {"--max-replicas": "2"}
    found = json.loads(asked(options, "--format", "json"))["replayed"]
    assert found["left_waiting"] > 1000
    assert found["over_s"] > 100
    assert found["replica_hours"] * 3600 > 7200 + found["over_s"]
    assert math.isclose(found["usd"], 4 * found["replica_hours"])
    assert math.isclose(found["usd_per_month"], found["usd"] * 730 / 2)
    said = asked(options | {"--request-cv": "2.5"})
    assert " of them in line: the fleet goes on for" in said
    assert "requests of 2.00 s each on the mean (cv 2.50) against" in said


def test_share_that_waited_is_not_told_as_all_of_them_by_rounding(folder: Path) -> None:
    """About one of 10,000 requests waits: all places are taken that rarely."""
    (folder / "day.csv").write_text("requests_per_s\n20\n20\n")
    said = {"--replica-requests-per-s": "20", "--places": "63", "--min-replicas": "1", "--max-replicas": "1"}
    options = {key: value for key, value in (REPLAY | said).items() if key not in _SCALING} | {"--wait": "0ms"}
    found = json.loads(asked(options, "--format", "json"))["replayed"]
    assert 0.9995 < found["within_ratio"] < 1
    assert "nearly 100 % waited at most 0 s for a place" in asked(options)


_SCALING = "--target-load", "--look", "--cooldown"
