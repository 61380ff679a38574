# --job-name=tracks-gpt-7-a02-ac1ffe4c
# --comment=tracks gpt-7/a02 t1
# --parsable
# --no-requeue
# --dependency=singleton
# --export=ALL
# --chdir=/
# --open-mode=append
# --output=/logs/%j.out
# --nodes=2
# --ntasks-per-node=1
# --signal=TERM@180
# --partition=high
# --account=team-a
# --qos=urgent
# --constraint=a100&ib
# --reservation=maintenance
# --nice=0
# --gres=gpu:a100:2
# --exclude=n7
# --cpus-per-task=8
# --mem=3072M
# --time=1441
# --switches=1
#!/bin/bash -l
# tracks: attempt gpt-7/a02, submit t1
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then
  echo 'tracks: Slurm has started this job again; its attempt has had its launch.'
  exit 76
fi
module load cuda/12.4
ulimit -n 65536
export PYTHONUNBUFFERED=1
export OMP_NUM_THREADS=4
export NCCL_DEBUG=INFO
export TORCH_NCCL_ASYNC_ERROR_HANDLING=3
export TRACKS_DRILL='x y'
export TRACKS_STORE=/shared/store
export TRACKS_RUN_ID=gpt-7
export TRACKS_ATTEMPT_ID=2
export TRACKS_OPENED_SEQ=9
export TRACKS_COMMAND='{"words": ["train.py", "--lr", "it'"'"'s"], "python": null, "files": {}}'
export TRACKS_NODES=2
export TRACKS_RANKS_PER_NODE=2
export TRACKS_TERMINATION_GRACE_S=180
export TRACKS_ASKED='{"class": "urgent", "partition": "high", "qos": "urgent", "account": "team-a", "reservation": "maintenance", "time limit": "86401 s"}'
export TRACKS_CODE_KEY=codes/abc
export TRACKS_MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
getent hosts "$first" >/dev/null || first=$(hostname)
export TRACKS_MASTER_ADDR=$first
if [ "${SLURM_TOPOLOGY_ADDR_PATTERN:-node}" != node ]; then
  export TRACKS_SWITCHES=$(timeout 20 srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --immediate=10 \
    sh -c 'echo ${SLURM_TOPOLOGY_ADDR%.*}' | sort -u | head -n 8 | paste -sd ' ')
fi
ends=${SLURM_JOB_END_TIME:-}
[ -n "$ends" ] || ends=$(SLURM_TIME_FORMAT=%s timeout 20 \
  squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null) || ends=
case $ends in '' | *[!0-9]*) ends=0 ;; esac
if [ "$ends" -gt 0 ] && [ "$ends" -lt $(($(date +%s) + 31104000)) ]; then
  export TRACKS_ENDS_AT=$ends
fi
export TRACKS_JOB_WORK=/tmp/tracks-$SLURM_JOB_ID
trap : TERM  # the ranks get it too, and save: their end is waited for
tracks_code=0
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=8 --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL \
  sh -c 'export JOB_COMPLETION_INDEX=$SLURM_PROCID TRACKS_NODE=${SLURMD_NODENAME:-$(hostname)}
export TRACKS_POD=$SLURM_JOB_ID-$SLURM_PROCID TRACKS_POD_UID=slurm-$SLURM_JOB_ID-$SLURM_PROCID
export TRACKS_WORK=$TRACKS_JOB_WORK/$SLURM_PROCID
mkdir -p "$TRACKS_WORK" || exit 1
exec /venv/bin/python -m tracks_dagster.training.pod' || tracks_code=$?
timeout 20 srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --overlap --immediate=5 rm -rf "$TRACKS_JOB_WORK" >/dev/null 2>&1 || :
exit $tracks_code
