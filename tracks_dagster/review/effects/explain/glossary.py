"""The glossary of explanations: a reader needs no knowledge of the project.

Design section 3 says which words are used. A word is explained where the text uses it, with the others
of its topic, so that all of them take up a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

BUCKET_WORDS = {
    "queue": "from the attempt's opening until its first process started",
    "startup": "from the first process until all ranks had come together",
    "restore": "reading the checkpoint, or preparing to begin afresh",
    "step_kept": "steps that the run still rests on",
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
        "attempt": "one start of it, a01 the first, which ends once and for one reason",
        "record": "an entry of the run's log, numbered from 0, which is only ever appended to",
        "stage": "how serious the run is: smoke, canary or full",
    },
    {
        "launch": "the processes of an attempt, started together",
        "gang": "all of these",
        "rank": "one of them, with one device, rank 0 speaking for all",
        "detached HEAD": "the code was at a commit and on no branch",
    },
    {
        "evidence": "all that was seen of the end, stored before it was judged",
        "rule": "of the classifier, which read the reason from the evidence",
        "confidence": "what that kind of evidence is worth, not a probability",
        "last word": "what a rank wrote down as it ended",
        "against it": "what the same evidence shows for another reason, by a weaker kind of signal",
        "fenced": "refused to write, as its attempt had ended or another had taken over",
    },
    {
        "budget": "how many retries for one reason need no person (`tracks policy`)",
        "counted record": "one that the decision weighed",
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
        "samples": "places in the order of samples: the first is used, the last is the next one's",
        "skip window": "steps whose samples are left out, because the numbers went wrong there",
    },
    {
        "checkpoint": "the state of training at a step, there once its commit is recorded",
        "manifest": "the list of all that is in it, whose sha256 names it",
        "committed": "whole, one may go on from it",
        "superseded": "whole, but newer ones took its place and its bytes may be removed",
        "quarantined": "no run may start from it; a record says why",
        "deleted": "its bytes are removed, its record stays",
        "interval": "saved because so many steps had passed",
        "time": "saved because so many seconds had passed",
        "final": "saved at the last step",
        "sigterm": "saved because the attempt was told to end",
        "demand": "saved because somebody asked",
        "continuity": "whether steps that were run again gave the very same losses",
        "eval": "a measurement of a checkpoint on other data, whose failure does not harm the training",
    },
    {
        "kept": "steps that the run rests on",
        "lost": "steps that no checkpoint holds, or that a later attempt ran again",
        "device seconds": "devices times seconds, of whatever use",
        **{
            bucket_label(bucket): words
            for bucket, words in BUCKET_WORDS.items()
            if bucket not in STEPS
        },
    },
)
GLOSSARY: dict[str, str] = {word: meaning for topic in TOPICS for word, meaning in topic.items()}

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
_FOUND = {word: re.compile(_NEEDS.get(word, rf"\b{re.escape(word)}s?\b")) for word in GLOSSARY}


def used_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield (word, meaning) of the words of the glossary that `text` uses."""
    for word, meaning in GLOSSARY.items():
        if _FOUND[word].search(text):
            yield word, meaning


def used_topics(text: str) -> Iterator[str]:
    """Yield a line for each topic of which `text` uses words: "word = meaning; word = meaning"."""
    used = dict(used_words(text))
    for topic in TOPICS:
        meanings = [f"{word} = {used[word]}" for word in topic if word in used]
        if meanings:
            yield "; ".join(meanings)
