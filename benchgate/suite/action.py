"""What is done to a deployment while a stage runs."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchgate.suite.fields import Span, StrictSection, Text, Whole
from benchgate.suite.practice import MOST_REPLICAS
from benchgate.units import as_written, show_duration

_Replica = Annotated[Whole, Field(ge=0, lt=MOST_REPLICAS)]


class Action(StrictSection):
    """One thing at one instant: a replica killed, a replica started, or a command run."""

    at_s: Span = Field(alias="at")  # after the start of the stage
    kill: _Replica | None = None  # its number, of a `sim` deployment; by SIGKILL
    start: _Replica | None = None
    run: tuple[Text, ...] | None = Field(default=None, min_length=1)  # a command and its arguments, without a shell

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if sum(what is not None for what in (self.kill, self.start, self.run)) != 1:
            raise ValueError("an action is exactly one of `kill`, `start` and `run`")
        return self

    @model_serializer(mode="wrap")
    def _what_is_said(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None}

    @property
    def shown(self) -> str:
        """For a person: `kill replica 1 at 2 s`."""
        if self.run is not None:
            what = f"run {' '.join(self.run)}"
        else:
            what = f"kill replica {self.kill}" if self.kill is not None else f"start replica {self.start}"
        return f"{what} at {as_written(show_duration(self.at_s)) if self.at_s else '0 s'}"
