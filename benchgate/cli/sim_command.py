"""The practice server as a command."""

from __future__ import annotations

from typing import Annotated

import typer

from benchgate.cli.saying import say


def sim(
    port: Annotated[int, typer.Option("--port", help="TCP port; 0 is any free one.")] = 0,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    uds: Annotated[str | None, typer.Option("--uds", help="Listen on this Unix socket instead.")] = None,
    cert: Annotated[str | None, typer.Option("--cert", help="Certificate file: speak TLS.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key file of the certificate.")] = None,
    client_ca: Annotated[str | None, typer.Option("--client-ca", help="Demand client certificates of this CA.")] = None,
    model: Annotated[str, typer.Option("--model", help="Name of the model it serves.")] = "sim",
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", help="Name of an adapter of it; may be repeated.")
    ] = None,
    context: Annotated[int, typer.Option("--context", help="Most tokens of prompt and answer.")] = 131_072,
    seed: Annotated[int, typer.Option("--seed", help="Seed of answers, jitter and faults.")] = 0,
    ttft: Annotated[str | None, typer.Option("--ttft", help="Paced: first token after this; 50ms.")] = None,
    itl: Annotated[str | None, typer.Option("--itl", help="Paced: a token every so long; 10ms.")] = None,
    service: Annotated[
        str | None, typer.Option("--service", help="Queue: one request's time at a server; 60ms.")
    ] = None,
    servers: Annotated[int | None, typer.Option("--servers", help="Queue: servers, each for one request; 1.")] = None,
    service_law: Annotated[
        str | None, typer.Option("--service-law", help="Queue: services are constant or exponential; constant.")
    ] = None,
    service_until: Annotated[
        str | None, typer.Option("--service-until", help="Queue: a service ends with first-token or last-token.")
    ] = None,
    jitter: Annotated[str, typer.Option("--jitter", help="Spread of every such time, or of each step.")] = "0%",
    chunk_tokens: Annotated[int, typer.Option("--chunk-tokens", help="Tokens in an event, after the first.")] = 1,
    prefill: Annotated[str | None, typer.Option("--prefill", help="Engine: per prompt token; 0.2ms.")] = None,
    decode: Annotated[str | None, typer.Option("--decode", help="Engine: per decoding step; 8ms.")] = None,
    decode_per_sequence: Annotated[
        str | None, typer.Option("--decode-per-sequence", help="Engine: more per sequence in the step; 0.3ms.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Engine: most sequences at once; 32.")] = None,
    kv_tokens: Annotated[int | None, typer.Option("--kv-tokens", help="Engine: room in the KV cache; 65536.")] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option("--prefill-chunk", help="Engine: most prompt tokens in a step; 512.")
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", help="Engine: refuse when so many wait.")] = None,
    queue_status: Annotated[int | None, typer.Option("--queue-status", help="Engine: refuse with this status.")] = None,
    shed_above: Annotated[int | None, typer.Option("--shed-above", help="Engine: 429 when so many wait.")] = None,
    shed_exempt: Annotated[
        int | None, typer.Option("--shed-exempt", help="Engine: never shed this priority number or a lower one; -1.")
    ] = None,
    prefix_cache: Annotated[
        int | None, typer.Option("--prefix-cache", help="Engine: keep so many blocks of what was read.")
    ] = None,
    prefix_block: Annotated[int | None, typer.Option("--prefix-block", help="Engine: tokens in a block; 16.")] = None,
    adapter_cost: Annotated[
        str | None, typer.Option("--adapter-cost", help="Engine: more per step for every sequence with an adapter.")
    ] = None,
    preempt: Annotated[bool, typer.Option("--preempt", help="Engine: take KV room token by token, preempt.")] = False,
    leak_kv: Annotated[bool, typer.Option("--leak-kv", help="Engine: keep the KV room of clients that left.")] = False,
    output_tokens: Annotated[
        str | None, typer.Option("--output-tokens", help="Answers end by themselves within MIN:MAX tokens.")
    ] = None,
    reasoning_tokens: Annotated[
        str | None, typer.Option("--reasoning-tokens", help="Answers begin with MIN:MAX tokens of reasoning.")
    ] = None,
    invalid_json: Annotated[str, typer.Option("--invalid-json", help="Share of JSON answers that are none.")] = "0%",
    says: Annotated[
        str | None, typer.Option("--says", help="Share of the prompts `say: TEXT` that are answered by TEXT.")
    ] = None,
    image_tokens: Annotated[int | None, typer.Option("--image-tokens", help="Take images, at so many tokens.")] = None,
    embedding_size: Annotated[int, typer.Option("--embedding-size", help="Numbers in an embedding.")] = 64,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="NAME[:VALUE...][+NAME...][@SHARE]; may be repeated.")
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Print every fault and leave.")] = False,
    metrics_as: Annotated[
        str, typer.Option("--metrics-as", help="Names in /metrics: vllm, sglang, tgi or llamacpp.")
    ] = "vllm",
    keep_alive: Annotated[str | None, typer.Option("--keep-alive", help="Close connections idle for so long.")] = None,
    ready_after: Annotated[str, typer.Option("--ready-after", help="Refuse connections for so long.")] = "0s",
    load_time: Annotated[
        str, typer.Option("--load-time", help="The first request waits so long for the model.")
    ] = "0s",
    replicas: Annotated[int, typer.Option("--replicas", help="So many processes behind a router.")] = 1,
    lose_replica_after: Annotated[
        int | None, typer.Option("--lose-replica-after", help="Router: kill the last replica after so many requests.")
    ] = None,
    affinity: Annotated[
        str | None, typer.Option("--affinity", help="Router: keep together by prefix, session or this header.")
    ] = None,
) -> None:
    """Serve a practice server: OpenAI's API with stated costs, limits and faults, and the truth about what it did."""
    given = dict(locals())
    from benchgate.sim import options

    if given.pop("list_faults"):
        say(options.list_faults())
        return
    faults, adapters = given.pop("fault") or (), given.pop("adapter") or ()
    settings = options.parse_settings(faults=faults, adapters=adapters, **given)
    from benchgate.sim.server import run_sim

    def ready(url: str) -> None:
        say(f"listening on {url}\n")

    run_sim(settings, ready)
