"""Request contents: synthetic texts, media beside them, recorded prompts, and their lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchgate.model.records import IntArray
from benchgate.model.request import ENDPOINTS, MEDIA_KEYS, MediaKind, ModelRequest, text_request
from benchgate.plan.media import data_url, media_type_of, noise_mp4, noise_png, speech_wav
from benchgate.plan.model import Material, ObservedLengths, RecordedRequest
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary, random_text, stable_text
from benchgate.suite.load import Load, TrafficClass, first_round_of
from benchgate.suite.workload import (
    Audio,
    Images,
    Lengths,
    Media,
    Pauses,
    Prefix,
    Retrieval,
    Videos,
    Workload,
    frequencies,
)

MOONCAKE_BLOCK_TOKENS = 512
WARMUP = -1  # block number of the first warm-up round; round k after it is block -1 - k
_SHARED, _HASHED, _PROMPTS, _DOCUMENTS = 2, 3, 4, 5  # random streams
_ROUND_KEYS = 2**32  # separates the keys of later warm-up rounds, whose blocks are negative, from those of blocks
_QUERY_TOKENS = 16  # of a rerank request
_NO_TEXT = frozenset({"role", "type"}) | MEDIA_KEYS


@dataclass(frozen=True, slots=True)
class SyntheticTexts:
    """Synthetic texts of one class of traffic in one block.

    Shared prefixes and documents are equal in every block and in the warm-up, like a system prompt. Texts of a trace's
    hashes are the block's own: they do not hit a cache filled by another block, so a block's hits are those its rows
    imply.
    """

    seed: int
    block: int  # -1 and below in the rounds of the warm-up
    vocabulary: Vocabulary
    prefix: Prefix | None
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    retrieval: Retrieval | None = None
    _shared: dict[tuple[int, int], str] = field(default_factory=dict)
    _documents: dict[int, str] = field(default_factory=dict)
    _pieces: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, workload: Workload, material: Material, seed: int, block: int, block_tokens: int | None = None
    ) -> SyntheticTexts:
        """Return the texts of a workload."""
        vocabulary = vocabulary_of(workload, material)
        block_tokens = block_tokens or MOONCAKE_BLOCK_TOKENS
        return cls(seed, block, vocabulary, workload.prefix, block_tokens, workload.retrieval)

    def prompt(self, tokens: int, generator: np.random.Generator) -> str:
        """Return a prompt of `tokens` tokens, including its shared prefix and documents."""
        if self.retrieval is not None:
            return self._with_documents(self.retrieval, tokens, generator)
        if self.prefix is None:
            return random_text(self.vocabulary, tokens, generator)
        group = int(generator.integers(self.prefix.groups))
        shared = min(shared_tokens(self.prefix, tokens), tokens - 1)
        own = random_text(self.vocabulary, tokens - shared, generator)
        if shared and (group, shared) not in self._shared:
            self._shared[group, shared] = stable_text(self.vocabulary, shared, [self.seed, _SHARED, group])
        return self._joined([self._shared[group, shared], own] if shared else [own])

    def _with_documents(self, retrieval: Retrieval, tokens: int, generator: np.random.Generator) -> str:
        """Return a prompt with documents before its own text; a short one ends in the midst of them."""
        weights = np.array(frequencies(retrieval.weights, retrieval.pool))
        chosen = generator.choice(retrieval.pool, size=retrieval.each, replace=False, p=weights / weights.sum())
        if retrieval.order == "shuffled":
            chosen = generator.permutation(chosen)
        else:
            chosen.sort()
        parts = []
        if self.prefix is not None:
            group, shared = int(generator.integers(self.prefix.groups)), shared_tokens(self.prefix, tokens)
            parts.append(stable_text(self.vocabulary, min(shared, tokens - 1), [self.seed, _SHARED, group]))
            tokens -= min(shared, tokens - 1)
        for number in chosen.tolist():
            length = min(retrieval.document_tokens, tokens - 1)
            if length < retrieval.document_tokens:
                parts.append(stable_text(self.vocabulary, length, [self.seed, _DOCUMENTS, number]))
            elif number in self._documents:
                parts.append(self._documents[number])
            else:
                parts.append(stable_text(self.vocabulary, length, [self.seed, _DOCUMENTS, number]))
                self._documents[number] = parts[-1]
            tokens -= length
        return self._joined([*filter(None, parts), random_text(self.vocabulary, tokens, generator)])

    def own(self, tokens: int, generator: np.random.Generator) -> str:
        """Return a text that shares nothing."""
        return random_text(self.vocabulary, tokens, generator)

    def hashed(self, hash_ids: tuple[int, ...], tokens: int, generator: np.random.Generator) -> str:
        """Return a prompt whose blocks are given by hashes: equal hashes, equal texts. The rest is its own."""
        left, parts = tokens, []
        for hash_id in hash_ids:
            if left <= 0:
                break
            tokens_here = min(left, self.block_tokens)
            key = [self.seed, _HASHED, (self.block + 1) % _ROUND_KEYS, hash_id]
            if tokens_here == self.block_tokens and hash_id in self._pieces:
                parts.append(self._pieces[hash_id])
            else:
                parts.append(stable_text(self.vocabulary, tokens_here, key))
            if tokens_here == self.block_tokens:
                self._pieces[hash_id] = parts[-1]
            left -= self.block_tokens
        if left > 0:
            parts.append(random_text(self.vocabulary, left, generator))
        return self._joined(parts)

    def _joined(self, parts: list[str]) -> str:
        return self.vocabulary.between.join(parts)


def vocabulary_of(workload: Workload, material: Material) -> Vocabulary:
    """Return the vocabulary of a workload's synthetic texts."""
    return material.vocabulary(workload.tokenizer, workload.text) or VOCABULARIES[workload.text]


def shared_tokens(prefix: Prefix, tokens: int) -> int:
    """Return the length of the shared prefix in a prompt of `tokens` tokens."""
    if prefix.prefix_tokens is not None:
        return prefix.prefix_tokens
    return round(tokens * (prefix.share_ratio or 0.0))


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Builder of the requests of one workload."""

    workload: Workload
    files: Mapping[MediaKind, Sequence[str]]  # addresses of media that are drawn, most of them `data:`
    fields: Mapping[str, object]
    schema: Mapping[str, object] | None

    @classmethod
    def of(cls, workload: Workload, material: Material) -> RequestBuilder:
        """Prepare the builder from the workload's files."""
        answer = workload.answer_schema
        schema = material.schemas[answer] if isinstance(answer, str) else answer
        fields: dict[str, object] = {}
        if workload.tools is not None:
            tools = material.tools[workload.tools] if isinstance(workload.tools, str) else workload.tools
            fields["tools"] = list(tools)
        if schema is not None and workload.constrained:
            described = {"name": "answer", "schema": dict(schema), "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": described}
        if workload.priority is not None:
            fields["priority"] = workload.priority
        files = {
            kind: [address for name in media.files for address in material.media[kind, name]]
            for kind, media in workload.media.items()
        }
        return cls(workload, files, {**fields, **workload.body}, schema)

    def made_up(
        self, texts: SyntheticTexts, prompt: str, output_tokens: int | None, generator: np.random.Generator
    ) -> ModelRequest:
        """Build a request with a synthetic prompt."""
        workload = self.workload
        if workload.endpoint == "rerank":
            length = len(prompt) if not texts.vocabulary.between else prompt.count(texts.vocabulary.between) + 1
            more = [texts.prompt(length, generator) for _ in range(workload.documents - 1)]
            query = texts.own(_QUERY_TOKENS, generator)
            content = {"query": query, "documents": [prompt, *more]}
            return self.whole(ModelRequest("rerank", content, None, stream=False))
        if ENDPOINTS[workload.endpoint].transcribes:
            [recording] = self._media("audio", workload.media["audio"], generator)
            return self.whole(ModelRequest(workload.endpoint, {"file": recording}, None))
        ask = text_request(workload.endpoint, prompt, output_tokens)
        if workload.media:
            ask = replace(ask, content={"messages": [self._with_media(prompt, generator)]})
        return self.whole(ask)

    def turn(self, texts: Sequence[str], output_tokens: int | None, generator: np.random.Generator) -> ModelRequest:
        """Build a turn of a conversation: all user messages so far, with a slot for each answer between them."""
        messages: list[dict[str, object]] = []
        for number, text in enumerate(texts):
            illustrated = number == 0 and self.workload.media
            messages.append(self._with_media(text, generator) if illustrated else {"role": "user", "content": text})
            if number < len(texts) - 1:
                messages.append({"role": "assistant", "content": None})
        return self.whole(self._of_messages(messages, output_tokens))

    def recorded(
        self, row: RecordedRequest, messages: Sequence[Mapping[str, object]], output_tokens: int | None
    ) -> ModelRequest:
        """Build a recorded request; its own settings take precedence."""
        ask = self._of_messages([dict(message) for message in messages], row.output_tokens or output_tokens)
        whole = self.whole(ask)
        return replace(whole, fields={**row.fields, **whole.fields}, recorded=True)

    def whole(self, ask: ModelRequest) -> ModelRequest:
        """Add the workload's settings to a request."""
        workload = self.workload
        return replace(
            ask,
            stream=ask.stream and workload.stream,
            ignore_eos=workload.ignore_eos,
            fields={**self.fields, **ask.fields},
            model=workload.adapter if isinstance(workload.adapter, str) else None,
            schema=self.schema,
        )

    def _of_messages(self, messages: list[dict[str, object]], output_tokens: int | None) -> ModelRequest:
        endpoint = self.workload.endpoint
        key = ENDPOINTS[endpoint].messages_key
        if key is not None:
            return ModelRequest(endpoint, {key: messages}, output_tokens)
        text = messages[-1].get("content")  # the other endpoints have one message, a text
        return text_request(endpoint, text if isinstance(text, str) else "", output_tokens)

    def _with_media(self, text: str, generator: np.random.Generator) -> dict[str, object]:
        parts: list[object] = [{"type": "text", "text": text}]
        for kind, media in self.workload.media.items():
            parts += [_part(kind, media, address) for address in self._media(kind, media, generator)]
        return {"role": "user", "content": parts}

    def _media(self, kind: MediaKind, media: Media, generator: np.random.Generator) -> list[str]:
        """Return the addresses of a request's media of one kind: generated, or files from a random one on."""
        if files := self.files[kind]:
            first = int(generator.integers(len(files)))
            return [files[(first + number) % len(files)] for number in range(media.count)]
        return [_generated(media, generator) for _ in range(media.count)]


def _generated(media: Media, generator: np.random.Generator) -> str:
    if isinstance(media, Images):
        return data_url(noise_png(media.width, media.height, generator), "image/png")
    if isinstance(media, Videos):
        size = (media.width, media.height, media.frames, media.fps)
        return data_url(noise_mp4(*size, generator), "video/mp4")
    assert isinstance(media, Audio)
    return data_url(speech_wav(draw_pause_s(media.duration_s, generator), generator), "audio/wav")


_FORMATS = {"mpeg": "mp3", "mp4": "m4a"}  # names of audio formats where the media type has another one


def _part(kind: MediaKind, media: Media, address: str) -> dict[str, object]:
    """Return a content part as OpenAI spells it, or as vLLM does where OpenAI has none."""
    if isinstance(media, Audio) and media.part == "input_audio" and address.startswith("data:"):
        name = media_type_of(address).partition("/")[2]
        audio = {"data": address.partition(",")[2], "format": _FORMATS.get(name, name)}
        return {"type": "input_audio", "input_audio": audio}
    type_name = {"images": "image_url", "audio": "audio_url", "videos": "video_url"}[kind]
    return {"type": type_name, type_name: {"url": address}}


def text_tokens(content: object, *, letters: bool = False) -> int:
    """Estimate the tokens of a request's texts: its words, or its letters for byte-level models."""
    if isinstance(content, str):
        return len(content) if letters else len(content.split())
    if isinstance(content, Mapping):
        return sum(text_tokens(value, letters=letters) for key, value in content.items() if key not in _NO_TEXT)
    if isinstance(content, list | tuple):
        return sum(text_tokens(value, letters=letters) for value in content)
    return 0


def prompt_pieces(content: object, vocabulary: Vocabulary) -> list[str]:
    """Return the pieces of a request's texts in order, like tokens; those of a model's earlier answers are unknown."""
    if isinstance(content, str):
        return content.split() if vocabulary.between else list(content)
    if isinstance(content, Mapping):
        content = [value for key, value in content.items() if key not in _NO_TEXT]
    parts = content if isinstance(content, list | tuple) else ()
    return [piece for part in parts for piece in prompt_pieces(part, vocabulary)]


def draw_length(length: int | Lengths, generator: np.random.Generator) -> int:
    """Draw a length. A normal or lognormal draw beyond a bound becomes that bound."""
    if isinstance(length, int):
        return length
    if length.uniform is not None:
        least, most = length.uniform
        return int(generator.integers(least, most + 1))
    if length.normal is not None:
        drawn = generator.normal(length.normal.mean_tokens, length.normal.sd_tokens)
    elif length.lognormal is not None:
        drawn = generator.lognormal(np.log(length.lognormal.median_tokens), length.lognormal.sigma)
    else:
        raise ValueError("lengths of a file are drawn row by row")
    bounds = length.normal or length.lognormal
    assert bounds is not None
    return int(np.clip(round(drawn), bounds.least_tokens, bounds.most_tokens))


def draw_pause_s(pause: float | Pauses, generator: np.random.Generator) -> float:
    """Draw a pause in seconds, to the microsecond."""
    if not isinstance(pause, Pauses):
        return pause
    if pause.uniform is not None:
        drawn = generator.uniform(*pause.uniform)
    else:
        assert pause.lognormal is not None
        drawn = generator.lognormal(np.log(pause.lognormal.median_s), pause.lognormal.sigma)
    return round(float(drawn), 6)


def draw_lengths(
    workload: Workload, material: Material, generator: np.random.Generator
) -> Iterator[tuple[int, int | None]]:
    """Yield input and output tokens of requests without end, those of one file as a row; output None without text."""
    while True:
        rows: dict[str, ObservedLengths] = {}
        for name in workload.files:
            if name not in rows:
                seen: Sequence[ObservedLengths] = material.lengths[name]
                rows[name] = seen[int(generator.integers(len(seen)))]
        tokens_in, tokens_out = _length_of(workload.input_tokens or 1, rows, "input_tokens", generator), None
        if workload.output_tokens is not None:
            tokens_out = _length_of(workload.output_tokens, rows, "output_tokens", generator)
        yield tokens_in, tokens_out


def _length_of(
    length: int | Lengths, rows: dict[str, ObservedLengths], column: str, generator: np.random.Generator
) -> int:
    if isinstance(length, Lengths) and length.file is not None:
        seen: int | None = getattr(rows[length.file], column)
        assert seen is not None, "the file was read for this column"
        return seen
    return draw_length(length, generator)


def recorded_rows(
    load: Load, traffic: TrafficClass, material: Material, seed: int, block: int, count: int | None = None
) -> Sequence[RecordedRequest] | None:
    """Return the recorded rows that a class of traffic sends in a block; None for synthetic texts.

    All classes and blocks with the same file go through it in one random order by the seed, the warm-up first, so no
    prompt repeats before all were sent. Later warm-up rounds send `count` rows that no block sends; if there are too
    few, they repeat those of the first round. So a measured prompt is never sent before. Raises ValueError when the
    file has fewer rows than one class sends.
    """
    prompts = traffic.workload.prompt_set
    if prompts is None:
        return None
    rows = material.prompts[prompts.name]
    users, place = _classes_sharing_prompts(load, traffic)
    first_rounds, sent = [first_round_of(load.warmup, one) for one in users], [one.schedule.requests for one in users]
    order = _order(rows, seed)
    if block < WARMUP:
        count = first_rounds[place] if count is None else count
        unused = order[sum(first_rounds) + load.blocks * sum(sent) :]
        order = unused if len(unused) >= count else order[: sum(first_rounds)]
        first = ((WARMUP - block - 1) * len(users) + place) * count
    elif block == WARMUP:
        first, count = sum(first_rounds[:place]), first_rounds[place]
    else:
        first, count = sum(first_rounds) + block * sum(sent) + sum(sent[:place]), sent[place]
        if len(rows) < count:
            raise ValueError(f"{prompts.name} has {len(rows):,} rows and {traffic.name} sends {count:,}")
    return [rows[order[(first + step) % len(order)]] for step in range(count)]


def spare_rows(
    load: Load, traffic: TrafficClass, material: Material, seed: int, block: int
) -> Sequence[RecordedRequest] | None:
    """Return the recorded prompts that the ramp of a class may send in a block; None for synthetic prompts.

    These are rows that no block sends, if any, each block beginning at another one. Otherwise they are those that this
    block does not send, most recently sent first, or all rows of a file that one block sends completely.
    """
    prompts = traffic.workload.prompt_set
    if prompts is None:
        return None
    rows = material.prompts[prompts.name]
    users, place = _classes_sharing_prompts(load, traffic)
    warmup = sum(first_round_of(load.warmup, one) for one in users)
    each = sum(one.schedule.requests for one in users)
    order, sent = _order(rows, seed), warmup + load.blocks * each
    if sent < len(rows):
        unsent, per_class = order[sent:], 4 * (traffic.schedule.concurrency or traffic.schedule.requests)
        return [rows[at] for at in np.roll(unsent, -(block * len(users) + place) * per_class)]
    first = warmup + block * each
    here = {order[(first + step) % len(rows)] for step in range(each)}
    others = (order[(first - 1 - step) % len(rows)] for step in range(len(rows)))
    return [rows[at] for at in others if at not in here] or list(rows)


def look_rows(
    load: Load, traffic: TrafficClass, material: Material, seed: int, used: int
) -> tuple[list[RecordedRequest], Sequence[RecordedRequest]] | None:
    """Return the recorded prompts of a look of a capacity search, and those of its ramp; None for synthetic prompts.

    The looks at a side go through the order of `recorded_rows` from its end, for ramps and warm-ups of the blocks go on
    after these; `used` is how many prompts the side's earlier looks have sent. The ramp has rows from the middle of
    what neither has sent, else the most recently sent.
    """
    if (prompts := traffic.workload.prompt_set) is None:
        return None
    rows, order = material.prompts[prompts.name], _order(material.prompts[prompts.name], seed)
    users = [one for one in load.classes() if one.workload.prompt_set == prompts]
    sent = sum(first_round_of(load.warmup, one) + load.blocks * one.schedule.requests for one in users)
    count, last = traffic.schedule.requests, len(rows) - 1 - used
    here = [int(order[(last - step) % len(rows)]) for step in range(count)]
    unsent = order[sent : max(0, last + 1 - count)]
    if len(unsent):
        return [rows[at] for at in here], [rows[at] for at in np.roll(unsent, -(len(unsent) // 2))]
    before = [int(order[(last + 1 + step) % len(rows)]) for step in range(len(rows))]
    own = {*here}
    return [rows[at] for at in here], [rows[at] for at in before if at not in own] or list(rows)


def _classes_sharing_prompts(load: Load, traffic: TrafficClass) -> tuple[list[TrafficClass], int]:
    """Return all classes of traffic that send prompts of the same file, and the index of this one."""
    users = [one for one in load.classes() if one.workload.prompt_set == traffic.workload.prompt_set]
    return users, [one.name for one in users].index(traffic.name)


def _order(rows: Sequence[RecordedRequest], seed: int) -> IntArray:
    generator = np.random.default_rng([seed, _PROMPTS])
    order: IntArray = generator.permutation(len(rows))
    return order
