#!/bin/sh
# A trainer that knows no Python: a chain of digests, saved every fourth step, at the end and on SIGTERM.
# $1: the last step; $2: seconds a step takes; $3: how it ends after its last step; $4: its batch, which
# must be at most 2 in step 22.
set -eu
oom() {
  echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB" >&2
  exit 1
}
step=0
digest=
stop=
trap 'stop=1' TERM
if [ -n "$TRACKS_RESUME_FOLDER" ]; then
  read -r step digest < "$TRACKS_RESUME_FOLDER/rank-$RANK.txt"
fi
save() {
  half="$TRACKS_CHECKPOINTS/.half-$step"
  mkdir "$half"
  echo "$step $digest" > "$half/rank-$RANK.txt"
  sleep "$2"
  echo "more" >> "$half/rank-$RANK.txt"
  mv "$half" "$TRACKS_CHECKPOINTS/step-$step"
}
while [ "$step" -lt "$1" ]; do
  step=$((step + 1))
  if [ "$step" = 22 ] && [ "${4:-0}" -gt 2 ]; then oom; fi
  digest=$(echo "$digest $step $RANK" | sha256sum | cut -c1-64)
  echo "{\"step\": $step, \"loss\": $step.5, \"lr\": 0.1}" >> "$TRACKS_METRICS"
  if [ "${3:-0}" = twice ]; then echo "{\"step\": $step, \"loss\": 9}" >> "$TRACKS_METRICS"; fi
  sleep "$2"
  if [ -n "$stop" ]; then
    save "$@"
    exit 75
  fi
  if [ $((step % 4)) = 0 ] || [ "$step" = "$1" ]; then save "$@"; fi
done
case "${3:-0}" in
  oom) oom ;;
  early) echo "{\"step\": $step, \"last\": true}" >> "$TRACKS_METRICS" ;;
  killed) kill -9 $$ ;;
  twice) ;;
  *) exit "${3:-0}" ;;
esac
