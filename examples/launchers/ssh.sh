#!/usr/bin/env bash
# One load test by several machines over SSH, one shard on each:
#   HOSTS="load-0 load-1" SPOOL=/shared/run-1 ./ssh.sh gpu:8000 --model m --rate 80/s --duration 60s --service-time 2s
# Every machine has benchgate, a synchronised clock, and SPOOL: a shared folder, or an object store like s3://bucket/run-1.
set -euo pipefail
read -r -a hosts <<< "${HOSTS:?}"
shards=${#hosts[@]}
start=$(($(date +%s) + ${START_IN_S:-30}))
for shard in "${!hosts[@]}"; do
  command=(benchgate load "$@" --shard "$shard/$shards" --start-at "$start" --spool "$SPOOL")
  # shellcheck disable=SC2029  # the command is quoted here, for the other side
  ssh -n -o BatchMode=yes "${hosts[shard]}" "$(printf '%q ' "${command[@]}")" &
done
wait # `load merge` names a shard that failed; to stop them all, put a file `stop` into SPOOL
benchgate load merge "$SPOOL"
