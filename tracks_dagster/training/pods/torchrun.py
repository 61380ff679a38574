"""torchrun's own machinery, in the process of the pod: the pods meet, and each starts its ranks.

Static rendezvous: the store of the first pod, at a name that is known beforehand. No restarts: a
restarted rank 0 would be another launch (`track.append`). Runs in a thread beside the main one, where
torch takes no signal handlers: of its own, it would end a rank 30 s after SIGTERM, in the middle of
a save. This is the only module of the pod that imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.utils.api import macros

from tracks_dagster.training.pods.environment import PodEnvironment
from tracks_dagster.training.pods.rank_files import log_folder

RANK = "tracks_dagster.training.pods.rank"


def run_ranks(pod: PodEnvironment, *, meet_s_max: float, others_s_max: float) -> Mapping[int, int]:
    """Meet the other pods, run this one's ranks to their ends, and wait for those of the others.

    Returns rank → code of what stood between torchrun and the rank, of those that were not agreed ends
    (-N for signal N). meet_s_max: for all pods to meet; others_s_max: for the other pods' ranks after
    these. Raises whatever torch raises when they do not meet.
    """
    handler = get_rendezvous_handler(
        RendezvousParameters(
            backend="static",
            endpoint=f"{pod.master_addr}:{pod.master_port}",
            run_id=f"{pod.run_id}-a{pod.attempt_id}",
            min_nodes=pod.pods,
            max_nodes=pod.pods,
            rank=pod.index,
            timeout=int(meet_s_max),
        )
    )
    spec = WorkerSpec(
        role="rank",
        local_world_size=pod.ranks,
        entrypoint=sys.executable,
        args=("-m", RANK, str(pod.work), macros.local_rank),
        rdzv_handler=handler,
        max_restarts=0,
        monitor_interval=0.1,
        master_addr=pod.master_addr,
        master_port=pod.master_port,
    )
    agent = LocalElasticAgent(
        spec,
        DefaultLogsSpecs(log_dir=str(log_folder(pod.work)), tee=Std.ALL),
        exit_barrier_timeout=others_s_max,
        log_line_prefix_template="[rank ${rank}] ",
    )
    result = agent.run()
    return {rank: failure.exitcode for rank, failure in result.failures.items()}
