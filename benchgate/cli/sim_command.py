"""The practice server as a command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def sim(
    port: Annotated[int, typer.Option("--port", help="TCP port; 0 is any free one.")] = 0,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    uds: Annotated[str | None, typer.Option("--uds", help="Listen on this Unix socket instead.")] = None,
    cert: Annotated[str | None, typer.Option("--cert", help="Certificate file: speak TLS.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key file of the certificate.")] = None,
    client_ca: Annotated[str | None, typer.Option("--client-ca", help="Demand client certificates of this CA.")] = None,
    model: Annotated[str, typer.Option("--model", help="Name of the model it serves.")] = "sim",
    context: Annotated[int, typer.Option("--context", help="Most tokens of prompt and answer.")] = 131_072,
    seed: Annotated[int, typer.Option("--seed", help="Seed of answers, jitter and faults.")] = 0,
    ttft: Annotated[str | None, typer.Option("--ttft", help="Paced: first token after this; 50ms.")] = None,
    itl: Annotated[str | None, typer.Option("--itl", help="Paced: a token every so long; 10ms.")] = None,
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
    output_tokens: Annotated[
        str | None, typer.Option("--output-tokens", help="Answers end by themselves within MIN:MAX tokens.")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="NAME[:VALUE...][+NAME...][@SHARE]; may be repeated.")
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Print every fault and leave.")] = False,
    keep_alive: Annotated[str | None, typer.Option("--keep-alive", help="Close connections idle for so long.")] = None,
    ready_after: Annotated[str, typer.Option("--ready-after", help="Refuse connections for so long.")] = "0s",
) -> None:
    """Serve a practice server: OpenAI's API with stated costs, limits and faults, and the truth about what it did."""
    from benchgate.sim import options

    if list_faults:
        sys.stdout.write(options.list_faults())
        return
    settings = options.parse_settings(
        ttft=ttft,
        itl=itl,
        jitter=jitter,
        chunk_tokens=chunk_tokens,
        prefill=prefill,
        decode=decode,
        decode_per_sequence=decode_per_sequence,
        batch=batch,
        kv_tokens=kv_tokens,
        prefill_chunk=prefill_chunk,
        queue=queue,
        queue_status=queue_status,
        output_tokens=output_tokens,
        model=model,
        context=context,
        seed=seed,
        faults=fault or (),
        keep_alive=keep_alive,
        ready_after=ready_after,
        host=host,
        port=port,
        uds=uds,
        cert=cert,
        key=key,
        client_ca=client_ca,
    )
    from benchgate.sim.running import run_sim

    def ready(url: str) -> None:
        sys.stdout.write(f"listening on {url}\n")
        sys.stdout.flush()

    run_sim(settings, ready)
