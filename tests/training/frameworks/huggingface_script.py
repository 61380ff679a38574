"""A script for Hugging Face's Trainer as people write it; `# +` marks the lines that join it.

Run by real ranks: see `tests.training.test_frameworks`. With IS_RANDOM its collator masks by chance.
"""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tracks_dagster.training import attempt  # +
from tracks_dagster.training.adapters.huggingface import follow  # +

IS_RANDOM = False
a = attempt.joined()  # +
os.chdir(a.work)  # a launcher starts it in a folder of its own
set_seed(3)
tokens = torch.randint(0, 32, (42, 12))
rows = [{"input_ids": row, "labels": row} for row in tokens]


def collate(batch):
    columns = {name: torch.stack([row[name] for row in batch]) for name in batch[0]}
    if IS_RANDOM:
        columns["input_ids"] = torch.where(
            torch.rand(columns["input_ids"].shape) < 0.15, 0, columns["input_ids"]
        )
    return columns


model = GPT2LMHeadModel(
    GPT2Config(vocab_size=32, n_positions=12, n_embd=8, n_layer=1, n_head=2, bos_token_id=0)
)
args = TrainingArguments(
    "out",
    max_steps=16,
    learning_rate=0.01,
    per_device_train_batch_size=a.config["per_device_train_batch_size"],  # +
    gradient_accumulation_steps=a.config["gradient_accumulation_steps"],  # +
    use_cpu=True,
    disable_tqdm=True,
    report_to="none",
)
trainer = Trainer(model, args, train_dataset=rows, data_collator=collate)
trainer.train(resume_from_checkpoint=follow(a, trainer))  # +
