#!/usr/bin/env bash
# Makes slurm-VERSION.* beside this file on a real two-node Slurm with accounting, partitions `low` and `high`
# (which preempts `low` by requeue), nodes n1 and n2 with two GPUs each; SLURM_CONF names it. Six minutes.
# usage: make_slurm.sh OUT_FOLDER
set -euo pipefail
out=$(cd "$1" && pwd); cd /tmp
job() { sbatch --parsable --output=/dev/null --nodes=1 --ntasks=1 "$@"; }
wait_empty() { for _ in $(seq 200); do [ -z "$(squeue -h -t R,PD,CG -o %j | grep -v never || true)" ] && return; sleep 1; done; }
wait_running() { for _ in $(seq 200); do [ "$(squeue -h -j "$1" -o %t)" = R ] && return; sleep 1; done; }
both=(--partition=low --nodes=2 --ntasks=2 --exclusive)
job --job-name=done --gres=gpu:1 --wrap='srun sleep 3'
job --job-name=code-error --exclude=n1 --gres=gpu:2 --wrap='srun bash -c "exit 3"'
job --job-name=segfault --wrap='srun bash -c "kill -SEGV \$\$"'
job --job-name=array --array=1-2 --wrap='sleep 1'
job --job-name=too-long --time=1 --wrap='srun sleep 200'
cancelled=$(job --job-name=cancelled --wrap='srun sleep 300'); wait_running "$cancelled"; scancel "$cancelled"; wait_empty
preempted=$(job --job-name=12.52a "${both[@]}" --gres=gpu:2 --requeue --wrap='trap "" TERM; srun bash -c "trap \"\" TERM; sleep 30"')
wait_running "$preempted"; sleep 3; job --job-name=urgent --partition=high --exclusive --nodes=2 --ntasks=2 --wrap='srun sleep 5'
wait_empty
ends=$(job --job-name=ends-on-sigterm "${both[@]}" --wrap='srun sleep 60'); wait_running "$ends"; sleep 3
job --job-name=urgent-too --partition=high --exclusive --nodes=2 --ntasks=2 --wrap='srun sleep 5'; wait_empty
requeued=$(job --job-name=requeued --requeue --wrap='srun sleep 20'); wait_running "$requeued"; sleep 3
scontrol requeue "$requeued"; wait_empty
lost=$(job --job-name=node-fail --nodelist=n2 --no-requeue --wrap='srun sleep 300'); wait_running "$lost"; sleep 3
scontrol update nodename=n2 state=down reason='NHC: GPU 1 fell off the bus'; wait_empty
scontrol update nodename=n2 state=drain reason='NHC: GPU 1 fell off the bus'
running=$(job --job-name=still-running --nodelist=n1 --wrap='srun sleep 300'); wait_running "$running"
fields=JobIDRaw,JobID,JobName,User,Account,Partition,Cluster,State,ExitCode,DerivedExitCode,Submit,Eligible,Start,End,ElapsedRaw,NNodes,NCPUS,AllocTRES,ReqTRES,NodeList,Reason,Comment,WorkDir,SubmitLine
version=$(sacct --version | awk '{print $2}'); version=${version%.*}
TZ=UTC sacct -D -P -a -S now-1hours --format="$fields" >"$out/slurm-$version.sacct"
TZ=America/New_York sacct -D -P -a -S now-1hours --format="$fields" >"$out/slurm-$version-new-york.sacct"
TZ=UTC scontrol show node -o >"$out/slurm-$version.nodes"
TZ=UTC sinfo -R -h -o '%E|%u|%H|%N' >"$out/slurm-$version.reasons"
scancel "$running"; scontrol update nodename=n2 state=resume
