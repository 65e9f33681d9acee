#!/usr/bin/env bash
# One load test by several processes of this machine:
#   SPOOL=run-1 ./local.sh 4 gpu:8000 --model m --rate 80/s --duration 60s --service-time 2s
set -euo pipefail
shards=$1
shift
start=$(($(date +%s) + ${START_IN_S:-15}))
mkdir -p "$SPOOL"
trap 'touch "$SPOOL/stop"' INT TERM # ends every shard within 2 s; what was answered is kept
for ((shard = 0; shard < shards; shard++)); do
  benchgate load "$@" --shard "$shard/$shards" --start-at "$start" --spool "$SPOOL" &
done
wait # `load merge` names a shard that failed
benchgate load merge "$SPOOL"
