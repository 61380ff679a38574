"""The glossary: a reader needs no knowledge of the project.

`TOPICS` are the words of explanations. One is explained where the text uses it, with the others of its
topic, so that all of them take up a few lines. `FIELD` has the other words of the field, as commands,
pages and messages use them; docs/glossary.md lists both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

BUCKET_WORDS = {
    "queue": "from the attempt's opening until its first process started",
    "startup": "from the first process until all ranks had come together",
    "restore": "reading the checkpoint, or preparing to begin afresh",
    "step_kept": "steps that the run's result contains",
    "step_lost": "steps that no checkpoint holds, or that a later attempt ran again",
    "checkpoint_blocking": "training waited while a checkpoint was taken",
    "data_wait": "training waited for samples",
    "inline_eval": "evaluating between two steps",
    "detection": "nothing worked any more, and nobody had noticed or recorded it yet",
    "idle": "between attempts, and while evals ran: backoff, or a person's turn",
    "unknown": "not in the record",
}
STEPS = ("step_kept", "step_lost")  # said by "kept" and "lost"


def bucket_label(bucket: str) -> str:
    """Return a bucket's name as people write it."""
    return bucket.replace("_", " ")


TOPICS: tuple[Mapping[str, str], ...] = (
    {
        "training run": "one intent, however often it is started",
        "attempt": "one start of a run, a01 the first; it ends once, for one reason",
        "record": "an entry of a run's log, numbered from 0; records are only ever added",
        "stage": "what a run is meant to show: kitchen_sink, smoke, canary or full",
    },
    {
        "launch": "the processes of an attempt, started together",
        "gang": "all processes of a launch",
        "rank": "one process of a gang, with one device; rank 0 speaks for all",
        "detached HEAD": "the code was at a commit and on no branch",
    },
    {
        "evidence": "all that was seen of an attempt's end, stored before it was judged",
        "rule": "what read the reason from the evidence; of an alert, what has to hold for it",
        "confidence": "how much that kind of evidence is worth, not a probability",
        "last word": "what a rank wrote down as it ended",
        "against it": "what the same evidence shows for another reason, by a weaker kind of signal",
        "fenced": "refused to write: its attempt had ended, or another had taken over",
    },
    {
        "budget": "how many retries for one reason need no person (`tracks policy`)",
        "counted record": "a record that the decision counted",
        "fingerprint": "a hash of reason, message, config, snapshot and nodes: the very same failure",
        "device-hours": "devices times hours, of all attempts",
        "first": "the cause of an attempt: the run was declared",
        "retry": "the cause of an attempt: a sensor decided it",
        "manual_retry": "the cause of an attempt: a person asked for it",
        "sensor": "a part of the daemon that decides what follows: retry_…, watch_attempts, run_evals",
        "Dagster run": "what supervises an attempt, until another takes over",
    },
    {
        "snapshot": "a frozen state of a dataset, named by its content",
        "samples": "a range in the order of samples; its last number is not part of it",
        "skip window": "steps whose samples are left out, because the numbers went wrong there",
    },
    {
        "checkpoint": "the state of training at a step, there once its commit is recorded",
        "manifest": "the list of all that is in a checkpoint, whose sha256 names it",
        "committed": "a whole checkpoint, from which a run may resume",
        "superseded": "a whole checkpoint that newer ones replaced; its bytes may be removed",
        "quarantined": "no run may start from it; a record says why",
        "deleted": "a checkpoint whose bytes are removed; its record stays",
        "interval": "a checkpoint that was due after a number of steps",
        "time": "a checkpoint that was due after a number of seconds",
        "final": "the checkpoint of the last step",
        "sigterm": "a checkpoint that was saved because the attempt was asked to end",
        "demand": "a checkpoint that a person asked for",
        "continuity": "whether steps that were run again gave the very same losses",
        "eval": "a measurement of a checkpoint on other data, whose failure does not harm the training",
    },
    {
        "kept": "steps that the run's result contains",
        "lost": "steps that no checkpoint holds, or that a later attempt ran again",
        "device seconds": "devices times seconds, of whatever use",
        **{
            bucket_label(bucket): words
            for bucket, words in BUCKET_WORDS.items()
            if bucket not in STEPS
        },
    },
)
FIELD: Mapping[str, str] = {
    # what is tried
    "project": "a folder with its code, its config's keys and a tracks.yaml",
    "code": "what a run executes, stored with it and named by its sha256",
    "config": "the settings of a run by key, as its project names them",
    "environment": "versions of Python, libraries and platform that a gang finds",
    "image": "the container image that a gang on a cluster runs in",
    "declaration": "the first record of a run: all that was asked for it",
    "experiment": "runs that ask one question, by the name that they were declared with",
    "baseline": "the run of an experiment that the others are compared with",
    "intent": "what a run is for, in its owner's words",
    "owner": "the person who answers for a run",
    "on call": "whom to call when a run needs a person",
    "kitchen sink": "a small model on all of the data, to find what is wrong with the data",
    "smoke": "a stage: minutes, a few steps on few samples, to see that everything is wired up",
    "canary": "a stage: real data and config within strict limits, whose loss must fall",
    "full": "a stage: the run that is meant, once the others have passed",
    "gate": "what must have passed before a run of a stage may start",
    "valid": "a run that has left all that the policy asked for when it was declared",
    "policy": "the file with what is asked of runs, what is retried and who gets devices first",
    "submission": "a section of the policy: what a declaration must have",
    "tracking": "a section of the policy: what a valid run leaves",
    "monitoring": "a section of the policy: metrics that a valid run reports, and who gets its alerts",
    "tuning": "a section of the policy: how many trials an experiment has, on how many devices",
    "governance": "a section of the policy: who may promote, waive and raise a cap, by name",
    "cap": "the most money or time that something may use",
    "certificate": "a record that a code passed its own tests, or `tracks conform`",
    "drill": "a fault that is caused on purpose",
    # how it trains
    "artifact": "what a run leaves: checkpoints, logs, packages, files of evals and of its script",
    "model": "the weights, and how an output is made with them",
    "batch": "samples that are used together",
    "context": "how many tokens of text a sample has at most",
    "gradient": "how the loss changes with a weight",
    "gradient norm": "the length of all gradients together; it leaps where numbers go wrong",
    "loader worker": "a process that reads samples ahead for a rank",
    "step": "one change of the weights, from one global batch",
    "epoch": "one pass over the data",
    "progress": "steps done of those it is to have",
    "world size": "ranks of a gang",
    "micro-batch": "samples of one forward pass of one rank",
    "accumulation": "forward passes whose gradients make one step",
    "global batch": "samples of one step: micro-batch times accumulation times ranks",
    "learning rate": "how far one step moves the weights; a schedule changes it",
    "schedule": "how the learning rate changes; of a project, when it is trained again by itself",
    "warm-up": "the first steps, in which the learning rate grows",
    "weight decay": "by how much each step shrinks the weights",
    "seed": "the number that weights, order and dropout are drawn from",
    "metric": "a number that the script reports of a step, or an eval of a checkpoint",
    "loss": "the metric that training makes smaller",
    "suite": "the name of an eval",
    "validation": "measuring on data that the training does not learn from",
    "evaluation": "one validation: an eval, or what the script measures between two steps",
    "median": "half of the values are below",
    "slope": "by how much a curve changes in a step",
    "Theil–Sen slope": "the median of the slopes between all pairs of points; outliers hardly move it",
    "modified z-score": "how far a value is from the median, in the usual distance from there",
    "spike": "a loss far above its recent range",
    "diverge": "of a loss: to go far above its recent range, step after step",
    "onset": "the step in which the numbers went wrong",
    "throughput": "samples or steps in a second",
    "pace": "seconds that a step takes now",
    "time left": "steps left times the pace",
    "parameters": "the weights; where a policy asks for them, the settings of a config",
    # what becomes of it
    "status": "of a checkpoint: committed, superseded, quarantined or deleted",
    "state": "of a run: running, waiting, succeeded, refused or cancelled",
    "running": "an attempt of the run is open",
    "waiting": "nothing runs; a sensor or a person has the next turn, and status says which",
    "succeeded": "the run has all its steps, or stopped early as it was meant to",
    "refused": "no automatic retry is left; a person decides",
    "finished": "a run whose end is recorded: no attempt follows",
    "cancelled": "a person, or a cap in money, ended the run",
    "imported": "another system ran it; its records are read here, and nothing acts on it",
    "reason": "why an attempt ended: its termination reason",
    "cause": "why an attempt was opened: first, retry or manual_retry",
    "termination reason": "why an attempt ended, one of a fixed list",
    "verdict": "the reason that the evidence was judged to show, with rule and confidence",
    "receipt": "all that is recorded of one attempt",
    "retry budget": "how many retries a reason has, over which window",
    "backoff": "the delay before a retry, longer each time",
    "free retry": "a retry that costs nothing of a budget, because the attempt never started",
    "remediation": "what a retry changes so that it may end otherwise",
    "remedy": "the kind of remediation that the policy names for a reason",
    "dead retry": "a retry that kept no step",
    "lost steps": "steps that have to be run again",
    "preemption": "devices were taken away for other work",
    "straggler": "a rank that is slower than the others, who all wait for it",
    "own time": "what a rank spends of a step without waiting for other ranks",
    "systemic": "of all ranks alike: none is slower than the others",
    "storm": "many ends in one pool within minutes; of a run, retry upon retry without progress",
    "supervisor": "the process that starts a gang, watches it and records its end",
    "heartbeat": "a rank's sign of life, every few seconds",
    "journal": "lines of a rank about steps and devices, too frequent for records",
    # checkpoints and data
    "commit": "the record that makes a checkpoint real; of code, a version in git",
    "dataset": "data under one name, frozen as snapshots",
    "writing": "a checkpoint whose commit is not recorded: no reader sees it",
    "object store": "the folder or bucket that has all tracks, checkpoints and snapshots",
    "save": "the writing of a checkpoint, whose end is the commit",
    "cadence": "after how many steps or seconds the next checkpoint is due",
    "resume": "to go on from a committed checkpoint, in a new process",
    "branch": "a run that starts from a checkpoint of another run",
    "pin": "a person's record that a checkpoint stays",
    "retention": "which checkpoints stay when nothing pins them",
    "stop cause": "why training stopped at a checkpoint: converged, step_budget, early_stop, cut_off",
    "verified": "every byte was read again and was as its hash says",
    "milestone": "a checkpoint that is kept because its step is a round one",
    "promotion": "giving a checkpoint an alias, on the record of an eval",
    "promoted": "a checkpoint that was given an alias",
    "waive": "to do without a required eval, or a gate, on the record",
    "alias": "a name that a promoted checkpoint has, as candidate",
    "quarantine": "the act that keeps new work from a source",
    "release": "the act that ends a quarantine",
    "hold": "why something may not start, by which record, until when",
    "lineage": "what a thing was made from, and what was made from it",
    "blast radius": "all that descends from a source",
    "cursor": "how many samples of the order were used",
    "shard": "one rank's part of a tensor, or one file of a snapshot",
    # devices and the queue
    "device": "one GPU, or one process on CPUs",
    "accelerator": "a GPU, or another chip that a model is trained on",
    "device time": "devices times time, of whatever use",
    "node": "one machine",
    "excluded": "of a node: a run's next attempt may not use it",
    "host memory": "the memory of a node, not of its devices",
    "shared memory": "host memory through which loader workers hand over batches",
    "cluster": "nodes on which Kubernetes starts gangs",
    "pod": "what a rank runs in on a cluster",
    "registry": "the server that a cluster fetches images from",
    "pool": "nodes whose devices are given out together",
    "placement": "which devices, on which nodes",
    "locality": "how near a gang's devices are to each other: by links, in a node, in a zone",
    "scheduler": "the part that decides which waiting work gets which devices, and when",
    "lease": "the record that gives devices to an attempt",
    "workload class": "how a run is treated in the queue, and its objectives",
    "class": "a workload class",
    "team": "whose share of the devices a run takes",
    "priority": "of a class: the greater comes first",
    "gang scheduling": "all ranks start together, or none does",
    "fair share": "the team that used the least comes first",
    "backfill": "a smaller run goes first where that delays nobody",
    "promise": "a class's longest wait, after which runs of lower classes make room",
    "objective": "the longest wait that a class should have; it is measured and decides nothing",
    "recovery": "from an attempt's end to the first step of the next",
    "strike": "an end that counts against a node",
    "sweep": "runs that search for settings, and the class that they are of",
    "search": "trying configs to find the best one: a sweep; of `tracks search`, finding words",
    "study": "a search of a project's config for the best metric, under a budget",
    "trial": "one run of a study or sweep; of `tracks conform`, one that is interrupted and resumed",
    # what is watched and counted
    "light": "the answer to one of three questions: healthy? improving? resources well used?",
    "grey": "a light about which nothing can be said now",
    "yellow": "a light or an alert that somebody should look at",
    "red": "a light or an alert that somebody has to act on",
    "alert": "a record that a rule has been broken for long enough",
    "cleared": "an alert whose rule no longer holds",
    "advice": "one word on a run that trains: continue, retune or stop",
    "retune": "the advice that another config would probably do better",
    "runbook": "the page that says what an alert means and what to do",
    "goodput": "the share of device time that went into kept steps",
    "ETTR": "the share of the wall time that went into kept steps",
    "MTBI": "mean time between interruptions",
    "MTTR": "mean time from an interruption to the next step",
    "p50": "half of them are at most this",
    "p95": "95 of 100 are at most this",
    "refund": "the part of a debit that later progress gives back",
    "debit": "what a retry takes from its reason's budget",
    # the record itself
    "track": "the log of a run, a dataset or a pool",
    "ledger": "the tracks as tables for SQL, which can be made again from them",
    "fold": "to read a track from its first record and keep what holds now",
    "decider": "a part that decides what follows, one record at a time",
    "follower": "a part that does something with each new record",
}
GLOSSARY: dict[str, str] = {
    **{word: meaning for topic in TOPICS for word, meaning in topic.items()},
    **FIELD,
}

_NEEDS = {  # what shows that a word is used, where it is not the word itself
    **{bucket_label(bucket): rf"{bucket_label(bucket)} [0-9]" for bucket in BUCKET_WORDS},
    **{cause: rf"\({cause}\)" for cause in ("first", "retry", "manual_retry")},
    **{why: rf"\({why}\)" for why in ("interval", "time", "final", "sigterm", "demand")},
    **{status: rf": {status}" for status in ("committed", "superseded", "deleted")},
    "training run": r"[Tt]raining run|\brun\b",
    "kept": r"steps kept",
    "lost": r"\d lost",
    "sensor": r"\b(sensor|retry_\w+|watch_attempts|launch_attempts|run_evals)\b",
    "confidence": r"confidence \d",
    "rule": r"rule \w",
    "samples": r"samples? \d",
    "stage": r"stage \w",
}
_FOUND = {
    word: re.compile(_NEEDS.get(word, rf"\b{re.escape(word)}s?\b"))
    for topic in TOPICS
    for word in topic
}


def used_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield (word, meaning) of the words of `TOPICS` that `text` uses."""
    for word, pattern in _FOUND.items():
        if pattern.search(text):
            yield word, GLOSSARY[word]


def used_topics(text: str) -> Iterator[str]:
    """Yield a line for each topic of which `text` uses words: "word = meaning; word = meaning"."""
    used = dict(used_words(text))
    for topic in TOPICS:
        meanings = [f"{word} = {used[word]}" for word in topic if word in used]
        if meanings:
            yield "; ".join(meanings)
