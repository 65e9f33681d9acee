"""A suite file: its errors have the place of the key that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.errors import BudgetError, Problem, StoreError, SuiteError, UsageError
from benchgate.pipeline.suite_file import SuiteFile, read_suite
from benchgate.suite.address import resolve_secret

SUITE = """\
suite: placed
baseline: old
candidate: new
deployments:
  old: {url: "${env:OLD_URL}", model: m}
  new: {url: "http://new:8000", model: m}
shadow: {prompts: prompts.jsonl}
"""


@pytest.fixture
def file(tmp_path: Path) -> SuiteFile:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return read_suite(path)


def test_an_error_with_a_path_gets_its_place_and_keeps_its_class(file: SuiteFile) -> None:
    with pytest.raises(BudgetError) as raised, file.located_errors():
        raise BudgetError("it does not answer", path=("deployments", "new", "url"))
    assert str(raised.value) == f"{file.path}:6:14: it does not answer"


def test_a_variable_that_is_not_set_gets_the_place_of_its_reference(file: SuiteFile) -> None:
    with pytest.raises(UsageError) as raised, file.located_errors():
        resolve_secret("${env:OLD_URL}", {})
    assert str(raised.value).startswith(f"{file.path}:5:14: the environment variable OLD_URL is not set")


@pytest.mark.parametrize("error", [UsageError("no such run"), StoreError("the environment variable OLD_URL is odd")])
def test_an_error_without_a_path_stays_as_it_is(file: SuiteFile, error: UsageError | StoreError) -> None:
    with pytest.raises(type(error)) as raised, file.located_errors():
        raise error
    assert str(raised.value) == error.message


def test_problems_of_the_suite_and_of_its_files_get_places(file: SuiteFile) -> None:
    of_key = Problem("", None, None, "deployments.new.model", "is unknown")
    of_file = Problem(str(file.folder / "prompts.jsonl"), None, None, "", "is empty")
    with pytest.raises(SuiteError) as raised, file.located_errors():
        raise SuiteError([of_key, of_file])
    assert str(raised.value).splitlines() == [
        f"{file.path}:6:40: deployments.new.model: is unknown",
        f"{file.path}:7:19: shadow.prompts: {file.folder / 'prompts.jsonl'}: is empty",
    ]


def test_places_survive_the_file(file: SuiteFile) -> None:
    file.path.unlink()
    with pytest.raises(UsageError, match=rf"^{file.path}:5:8: "), file.located_errors():
        raise UsageError("it is wrong", path=("deployments", "old"))


def test_other_arms_leave_the_file_as_it_was_read(file: SuiteFile) -> None:
    swapped = file.with_arms("new", "old")
    assert (swapped.suite.baseline, swapped.unpriced.candidate, swapped.text) == ("new", "old", file.text)
    with pytest.raises(UsageError, match="did you mean"):
        file.with_arms(None, "neww")
