"""A small GPT-2 that learns a text byte by byte, with Hugging Face's Trainer.

A script as people write it, but for the lines with `# +`, which let an attempt save, watch and stop it.
"""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tracks_dagster.training import attempt as tracks  # +
from tracks_dagster.training.adapters.huggingface import follow  # +

CONTEXT = 32  # bytes of a sample

a = tracks.joined()  # +
args = TrainingArguments("out", disable_tqdm=True, report_to="none", **a.config)  # +
set_seed(args.seed)
text = torch.tensor(list(Path("text.txt").read_bytes()))
samples = [{"input_ids": each, "labels": each} for each in text.unfold(0, CONTEXT, CONTEXT)]


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
)
trainer = Trainer(model, args, train_dataset=samples, data_collator=collate)
trainer.train(resume_from_checkpoint=follow(a, trainer))  # +
