"""What can be wrong with a trainer, by name: what it means, and the line that cures it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.wings.lab.conformance.seen import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """What a finding's name means, and the line that cures it."""

    what: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A defect as it was seen. name: of `DEFECTS`; seen: in which trial, or in the calm run."""

    name: str
    detail: str
    trial: Trial

    @property
    def defect(self) -> Defect:
        """What its name means."""
        return DEFECTS[self.name]


DEFECTS: Mapping[str, Defect] = {
    "does_not_finish": Defect(
        what="does not train to its end when nothing disturbs it",
        cure="Start it alone, as tracks.yaml does, and read what it says.",
    ),
    "not_deterministic": Defect(
        what="two undisturbed runs differ, so a resume cannot be compared",
        cure="Seed every generator before the model is built: torch.manual_seed(seed), "
        "random.seed(seed), numpy.random.seed(seed); torch.use_deterministic_algorithms(True). Sort "
        "what comes from a set or a folder's list: its order is another one in each process.",
    ),
    "not_resumed": Defect(
        what="starts again at its first step, although there is a checkpoint",
        cure="Load what a.folder() returns (TRACKS_RESUME_FOLDER of a command) before the first step.",
    ),
    "retrains_last_step": Defect(
        what="trains its last finished step again",
        cure="Save the number of the step that comes next, or begin with: "
        'for step in range(saved["step"] + 1, last + 1).',
    ),
    "loader_made_anew": Defect(
        what="makes a new iterator over its loader for each batch",
        cure="Make it once, batches = iter(loader), and call next(batches) in the loop.",
    ),
    "optimizer_not_registered": Defect(
        what="steps an optimizer that no checkpoint knows",
        cure="Name each one, also one that another wraps: a.register(…, inner=optimizer.inner).",
    ),
    "group_not_restored": Defect(
        what="resumes with more or fewer parameter groups than its optimizer had",
        cure="Build all groups before the state is loaded; what is not trained yet gets "
        "requires_grad_(False).",
    ),
    "requires_grad_not_restored": Defect(
        what="resumes with other parameters frozen",
        cure="Set requires_grad from the number of the step, in every step: "
        "backbone.requires_grad_(step >= 4); a.register restores it.",
    ),
    "attribute_not_restored": Defect(
        what="keeps in a Python attribute of a module what its training depends on",
        cure="Keep it in a buffer, so that the state dict has it: "
        'self.register_buffer("initialized", torch.tensor(False)).',
    ),
    "buffer_not_persistent": Defect(
        what="keeps in a buffer that is not persistent what its training depends on",
        cure="Register it without persistent=False, so that the state dict has it.",
    ),
    "weights_not_restored": Defect(
        what="resumes with other weights or buffers than were saved",
        cure="Save model.state_dict(), buffers too, and call "
        'model.load_state_dict(saved["model"]). With a.register nothing may set weights once a.steps '
        "has begun.",
    ),
    "optimizer_not_restored": Defect(
        what="resumes with another optimizer state (momentum) than its last step left",
        cure="Save optimizer.state_dict() after its step and call "
        'optimizer.load_state_dict(saved["optimizer"]), or a.register(optimizer=optimizer).',
    ),
    "scheduler_not_restored": Defect(
        what="resumes with a new schedule: the learning rate is that of another step",
        cure="Save scheduler.state_dict(), call "
        'scheduler.load_state_dict(saved["scheduler"]) and no step() of it before the first step, or '
        "a.register(scheduler=scheduler).",
    ),
    "rng_not_restored": Defect(
        what="resumes with other random numbers",
        cure="Save and restore torch.get_rng_state(), random.getstate() and numpy.random.get_state() "
        "of each rank; restore them after the loader's iterator was made.",
    ),
    "draws_after_report": Defect(
        what="draws random numbers behind a save: a resume from there draws others",
        cure="Evaluate by a.evaluate_every(steps, evaluate) or inside a.evaluating(), which put the "
        "generators back; let all else that draws come before a.report.",
    ),
    "scaler_not_restored": Defect(
        what="resumes with a new gradient scaler: its scale is lost",
        cure='Save scaler.state_dict() and call scaler.load_state_dict(saved["scaler"]), or '
        "a.register(scaler=scaler).",
    ),
    "ema_not_restored": Defect(
        what="resumes with another average of the weights",
        cure="Save the averaged model's state_dict() and load it, or name it: a.register(ema=ema).",
    ),
    "data_reset": Defect(
        what="begins its data again after a resume",
        cure="Take the loader's batches from a.sampler(…), or register a loader with a state "
        "(torchdata's StatefulDataLoader).",
    ),
    "data_skipped": Defect(
        what="leaves samples out after a resume",
        cure="Save how many batches the steps have used, not how many the loader has fetched ahead.",
    ),
    "data_changed": Defect(
        what="trains on other samples after a resume",
        cure="Draw the order from a generator of its own, seeded by (seed, epoch), or use "
        "a.sampler(…). Sort what comes from a set or a folder's list, and register what a reader keeps "
        "between two batches.",
    ),
    "half_write_visible": Defect(
        what="half a checkpoint can be read under its final name",
        cure="Write into a folder of another name, then os.rename(folder, final); commit a folder once "
        "nothing writes to it any more.",
    ),
    "error_hidden": Defect(
        what="hides why it fails",
        cure="Catch what you can cure, by its type; let the rest go, or end the except with `raise`.",
    ),
    "nan_hidden": Defect(
        what="does not say that its loss is NaN",
        cure="Report the loss as it is, a.report(step, loss=loss): no nan_to_num, no skipped step, no "
        "except around it.",
    ),
    "sigterm_swallowed": Defect(
        what="does not end when it is asked to (SIGTERM)",
        cure="Leave SIGTERM to join, or end the loop where a.ends(step).stop says so; a command saves "
        "and exits with 75.",
    ),
    "sigterm_unsaved": Defect(
        what="ends on SIGTERM without saving: what it trained since its last checkpoint is lost",
        cure="Finish the step, write a checkpoint, publish it, and only then end.",
    ),
    "every_rank_writes": Defect(
        what="several ranks write one file",
        cure="Write it on rank 0 only: if a.rank == 0: …; or give each rank's file a name of its own.",
    ),
    "resume_fails": Defect(
        what="fails when it is resumed",
        cure="Run it again with the folder of the checkpoint that it wrote, and read what it says.",
    ),
    "inexact": Defect(
        what="differs from the undisturbed run after a resume, and nothing that was looked at says why",
        cure="On several ranks pass rehearse= to a.register; else look for a state in a variable of "
        "your own (a mean, a curriculum, gradients that no optimizer has used yet), and register it.",
    ),
}


def merge(found: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return the findings by name, in the order of `DEFECTS`, each with every trial that shows it."""
    by_name: dict[str, list[Finding]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
    return {name: by_name[name] for name in DEFECTS if name in by_name}
