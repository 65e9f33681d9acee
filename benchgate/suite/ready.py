"""How many replicas a deployment has, and what counts those that are there."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchgate.suite.fields import Expected, StrictSection, Text, Whole
from benchgate.suite.watching import check_page

MOST_COUNTED = 10_000


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"is no command: {error}; quote it as for a shell") from None
    if not words or "\0" in text:
        raise ValueError("is no command; write a program and its arguments")
    return text


class Ready(StrictSection):
    """The number of replicas, counted by at most one of `metrics` and `command`; by neither, the server is asked."""

    replicas: Whole = Field(ge=1, le=MOST_COUNTED)
    metrics: tuple[
        Annotated[
            str,
            AfterValidator(check_page),
            Expected('the address of a replica\'s page like "http://host-1:8000/health"'),
        ],
        ...,
    ] = Field(default=(), min_length=1)  # one of each replica
    command: (
        Annotated[Text, AfterValidator(_command), Expected("a command that prints how many replicas are ready")] | None
    ) = None  # prints a whole number; run without a shell

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.metrics and self.command is not None:
            raise ValueError("`metrics` and `command` both count the replicas; keep one of them")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError("`metrics` names an address twice; each replica has an address of its own")
        if self.metrics and len(self.metrics) < self.replicas:
            what = f"`metrics` names {len(self.metrics)} addresses, and there are {self.replicas} replicas"
            raise ValueError(f"{what}; name the address of every replica, or correct `replicas`")
        return self

    @model_serializer(mode="wrap")
    def _what_is_said(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value}

    @property
    def command_words(self) -> tuple[str, ...]:
        """Return the command as a program and its arguments; empty without one."""
        return tuple(shlex.split(self.command)) if self.command is not None else ()
