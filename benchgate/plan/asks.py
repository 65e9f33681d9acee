"""From a workload and a text to the request that asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.model.ask import Ask, text_ask
from benchgate.plan.material import Material, Recorded
from benchgate.plan.pictures import data_address, noise_png
from benchgate.plan.texts import Texts
from benchgate.suite.workload import Workload

_QUERY_TOKENS = 16  # of a rerank request


@dataclass(frozen=True, slots=True)
class Asking:
    """Makes the requests of one workload: what all of them have in common is worked out once."""

    workload: Workload
    images: Sequence[str]  # files as `data:` addresses
    fields: Mapping[str, object]
    schema: Mapping[str, object] | None

    @classmethod
    def of(cls, workload: Workload, material: Material) -> Asking:
        """Of a workload whose files have been read."""
        files = workload.images.files if workload.images is not None else ()
        schema = _schema(workload, material)
        return cls(workload, [material.images[name] for name in files], _fields(workload, material, schema), schema)

    def made_up(self, texts: Texts, prompt: str, output_tokens: int | None, generator: np.random.Generator) -> Ask:
        """A request with this prompt."""
        workload = self.workload
        if workload.endpoint == "rerank":
            length = len(prompt) if not texts.vocabulary.between else prompt.count(texts.vocabulary.between) + 1
            more = [texts.prompt(length, generator) for _ in range(workload.documents - 1)]
            query = texts.own(_QUERY_TOKENS, generator)
            return self.whole(Ask("rerank", {"query": query, "documents": [prompt, *more]}, None, stream=False))
        ask = text_ask(workload.endpoint, prompt, output_tokens)
        if workload.images is not None:
            ask = replace(ask, content={"messages": [self._pictured(prompt, generator)]})
        return self.whole(ask)

    def talk(self, said: Sequence[str], output_tokens: int | None, generator: np.random.Generator) -> Ask:
        """A turn of a conversation: what the user has said so far, with a place for each answer in between."""
        messages: list[dict[str, object]] = []
        for number, text in enumerate(said):
            pictured = number == 0 and self.workload.images is not None
            messages.append(self._pictured(text, generator) if pictured else {"role": "user", "content": text})
            if number < len(said) - 1:
                messages.append({"role": "assistant", "content": None})
        return self.whole(self._of_messages(messages, output_tokens))

    def recorded(self, row: Recorded, messages: Sequence[Mapping[str, object]], output_tokens: int | None) -> Ask:
        """A recorded request, by what it said itself where it did."""
        ask = self._of_messages([dict(message) for message in messages], row.output_tokens or output_tokens)
        whole = self.whole(ask)
        return replace(whole, fields={**row.fields, **whole.fields}, recorded=True)

    def whole(self, ask: Ask) -> Ask:
        """The request with all that its workload adds."""
        workload = self.workload
        return replace(
            ask,
            stream=ask.stream and workload.stream,
            ignore_eos=workload.ignore_eos,
            fields={**self.fields, **ask.fields},
            model=workload.adapter,
            schema=self.schema,
        )

    def _of_messages(self, messages: list[dict[str, object]], output_tokens: int | None) -> Ask:
        endpoint = self.workload.endpoint
        if endpoint == "chat":
            return Ask("chat", {"messages": messages}, output_tokens)
        if endpoint == "responses":
            return Ask("responses", {"input": messages}, output_tokens)
        text = messages[-1].get("content")  # what is read for the other endpoints has one message, a text
        return text_ask(endpoint, text if isinstance(text, str) else "", output_tokens)

    def _pictured(self, text: str, generator: np.random.Generator) -> dict[str, object]:
        images = self.workload.images
        assert images is not None
        if self.images:
            first = int(generator.integers(len(self.images)))
            shown = [self.images[(first + number) % len(self.images)] for number in range(images.count)]
        else:
            pictures = (noise_png(images.width, images.height, generator) for _ in range(images.count))
            shown = [data_address(picture, "png") for picture in pictures]
        parts: list[object] = [{"type": "text", "text": text}]
        parts += [{"type": "image_url", "image_url": {"url": address}} for address in shown]
        return {"role": "user", "content": parts}


def text_tokens(content: object, *, letters: bool = False) -> int:
    """About how many tokens the texts in a request's content are: its words, or its letters for byte-level models.

    Names of roles and kinds, and images, are not counted, nor are the answers that a conversation carries on.
    """
    if isinstance(content, str):
        return len(content) if letters else len(content.split())
    if isinstance(content, Mapping):
        return sum(text_tokens(value, letters=letters) for key, value in content.items() if key not in _NO_TEXT)
    if isinstance(content, list | tuple):
        return sum(text_tokens(value, letters=letters) for value in content)
    return 0


_NO_TEXT = frozenset({"role", "type", "image_url"})


def _schema(workload: Workload, material: Material) -> Mapping[str, object] | None:
    found = workload.answer_schema
    return material.schemas[found] if isinstance(found, str) else found


def _fields(workload: Workload, material: Material, schema: Mapping[str, object] | None) -> dict[str, object]:
    fields: dict[str, object] = {}
    if workload.tools is not None:
        tools = material.tools[workload.tools] if isinstance(workload.tools, str) else workload.tools
        fields["tools"] = list(tools)
    if schema is not None and workload.constrained:
        wanted = {"name": "answer", "schema": dict(schema), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
    if workload.priority is not None:
        fields["priority"] = workload.priority
    return {**fields, **workload.body}
