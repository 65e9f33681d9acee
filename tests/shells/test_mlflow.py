"""A version in MLflow's registry gets its tags and its alias, by a server that answers as MLflow's was seen to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchgate.errors import PublishError, UsageError
from benchgate.publish.mlflow import ModelVersion, Registry, asked_model, checked_alias
from tests.fakes import mlflow_server

TAGS = {"benchgate.run_id": "r1", "benchgate.verdict": "PASS"}


@pytest.fixture
def server() -> Iterator[mlflow_server.Registry]:
    with mlflow_server.registry({"chat": {"1", "2"}}) as state:
        state.aliases["chat", "candidate"] = "2"
        yield state


def client(server: mlflow_server.Registry, slept: list[float] | None = None, **environment: str) -> Registry:
    waits = [] if slept is None else slept
    return Registry({"MLFLOW_TRACKING_URI": server.url, **environment}, sleep=waits.append)


def test_an_alias_is_followed_once_and_the_version_behind_it_is_tagged_and_then_named(
    server: mlflow_server.Registry,
) -> None:
    with client(server) as registry:
        found = registry.find(asked_model("models:/chat@candidate"))
        assert found == ModelVersion("chat", "2")
        server.aliases["chat", "candidate"] = "1"  # somebody moves it meanwhile: what was found stays what is meant
        registry.promote(found, "champion", TAGS)
    assert server.aliases["chat", "champion"] == "2"
    assert server.tags == {("chat", "2"): TAGS}
    written = [one for one in server.asked if one.startswith("POST")]
    assert written == ["POST /model-versions/set-tag"] * 2 + ["POST /registered-models/alias"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("models:/chat/9", "version=9) not found"),
        ("models:/ghost/1", "version=1) not found"),
        ("models:/chat@nobody", "alias nobody not found"),
    ],
)
def test_a_version_that_is_not_there_is_told_in_the_words_of_the_server(
    server: mlflow_server.Registry, model: str, says: str
) -> None:
    with client(server) as registry, pytest.raises(PublishError, match="MLflow refused GET") as refused:
        registry.find(asked_model(model))
    assert says in str(refused.value) and len(server.asked) == 1


def test_what_may_pass_is_asked_again_and_what_does_not_pass_ends(server: mlflow_server.Registry) -> None:
    slept: list[float] = []
    server.troubles = [(503, {}, "starting"), (429, {"Retry-After": "7"}, "slow down")]
    with client(server, slept) as registry:
        assert registry.find(asked_model("models:/chat/1")) == ModelVersion("chat", "1")
    assert slept == [1.0, 7.0]
    server.troubles = [(500, {}, "broken")] * 9
    with (
        client(server) as registry,
        pytest.raises(PublishError, match=r"could not be asked .* 4 times: HTTP 500: broken"),
    ):
        registry.find(asked_model("models:/chat/1"))


def test_credentials_are_sent_to_one_address_and_stand_in_no_error(server: mlflow_server.Registry) -> None:
    server.troubles = [(401, {}, "bad token hunter22 of you"), (302, {"Location": "http://127.0.0.1:1/"}, "")]
    with client(server, MLFLOW_TRACKING_TOKEN="hunter22") as registry:
        with pytest.raises(PublishError, match=r"HTTP 401: bad token .redacted. of you; set MLFLOW_TRACKING_TOKEN"):
            registry.find(asked_model("models:/chat/1"))
        with pytest.raises(PublishError, match=r"HTTP 302.*set MLFLOW_TRACKING_URI to where it moved"):
            registry.find(asked_model("models:/chat/1"))
    with client(server, MLFLOW_TRACKING_USERNAME="anna", MLFLOW_TRACKING_PASSWORD="hunter22") as registry:
        registry.find(asked_model("models:/chat/1"))
        server.troubles = [(403, {}, "not for Basic YW5uYTpodW50ZXIyMg==")]
        with pytest.raises(PublishError, match=r"not for Basic .redacted.;"):
            registry.find(asked_model("models:/chat/1"))
    server.authorization.pop()
    assert server.authorization == ["Bearer hunter22", "Bearer hunter22", "Basic YW5uYTpodW50ZXIyMg=="]


def test_an_alias_that_was_taken_and_is_not_there_is_a_failure(server: mlflow_server.Registry) -> None:
    server.forgets = True
    server.aliases["chat", "champion"] = "1"
    with client(server) as registry, pytest.raises(PublishError, match="shows another version behind it"):
        registry.promote(ModelVersion("chat", "2"), "champion", TAGS)


@pytest.mark.parametrize("text", ["", "[]", '{"model_version": {"name": "other", "version": "1"}}', "<html>"])
def test_an_answer_that_is_none_of_mlflow_names_no_version(server: mlflow_server.Registry, text: str) -> None:
    server.troubles = [(200, {}, text)]
    with client(server) as registry, pytest.raises(PublishError, match=r"is it an MLflow server|MLFLOW_TRACKING_URI"):
        registry.find(asked_model("models:/chat/1"))


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "expected the address of an MLflow server"),
        ({"MLFLOW_TRACKING_URI": "databricks"}, "expected the address of an MLflow server"),
        ({"MLFLOW_TRACKING_URI": "https://anna:hunter22@host"}, "has credentials in it"),
        ({"MLFLOW_TRACKING_URI": "http://mlflow.example", "MLFLOW_TRACKING_TOKEN": "hunter22"}, "use https"),
        ({"MLFLOW_TRACKING_URI": "https://host", "MLFLOW_TRACKING_USERNAME": "anna"}, "belong together"),
        ({"MLFLOW_TRACKING_URI": "https://host", "MLFLOW_TRACKING_TOKEN": "a b"}, "is no token"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_before_anything_is_sent(
    environment: dict[str, str], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Registry(environment)
    assert "hunter22" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["chat", "models:/chat", "models:/chat/Production", "models:/chat@", "models:/a/b/1", "runs:/x"]
)
def test_what_names_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected models:/NAME/VERSION"):
        asked_model(text)


@pytest.mark.parametrize("text", ["latest", "Latest", "v1", "a b", "", "x" * 256])
def test_an_alias_that_mlflow_keeps_for_itself_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--alias"):
        checked_alias(text)
