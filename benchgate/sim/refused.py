"""Requests that are answered with an error document."""

from __future__ import annotations


class Refused(Exception):
    """A request that is answered with an error document, in vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        self.status = status
        self.document = {"error": {"message": message, "type": kind, "param": param, "code": status}}
        super().__init__(message)
