"""Shared code of the stages that use a transformers `Trainer`: reports, checkpoints, cancel,
resume.

These stages are SFT, the reward model and DPO.  `trainer_arguments` sets precision, batches
and the checkpoint interval (the newest two are kept); `train` resumes from the newest readable one.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import torch
from transformers import PrinterCallback, TrainerCallback

from pipeline.models.damage import report_damage
from pipeline.models.snapshots import Snapshots
from pipeline.ppo.checkpoint import DamagedCheckpoint, set_aside
from pipeline.ppo.network.model import resolve_precision
from pipeline.runs.cancellation import Cancelled, cancel_requested, deferred
from pipeline.runs.rundir import Note, Report, RunDirectory, write_atomically

# TRL's trainers otherwise send telemetry; judgments are private.
huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
# TRL's own configs cause this warning, so users cannot prevent it.
warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)

_REPORTED = {
    "loss": "train/loss",
    "learning_rate": "train/lr",
    "grad_norm": "train/grad_norm",
    "theta": "train/theta",
    "rewards/margins": "dpo/margin",
    "rewards/accuracies": "dpo/accuracy",
    "rewards/chosen": "dpo/chosen",
    "rewards/rejected": "dpo/rejected",
}
_LOGS = 100
_SAVES = 8
_MARK = "report.json"


class ReportCallback(TrainerCallback):
    """Reports the trainer's steps, logs and saves as events, and writes a checkpoint when asked to stop.

    `notes` are reported before the first step.  `share` is this training's (start, end) in the
    stage's progress.  `metrics=False` reports progress only.
    """

    def __init__(
        self,
        report: Report,
        doing: str,
        notes: Sequence[Note] = (),
        *,
        share: tuple[float, float] = (0.0, 1.0),
        metrics: bool = True,
    ) -> None:
        self._report = report
        self._share = share
        self._doing = doing
        self._notes = notes
        self._metrics = metrics

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step == 0:
            for note in self._notes:
                self._report.add(note)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if cancel_requested():
            control.should_save = control.should_training_stop = True
        if state.global_step % max(1, state.max_steps // _LOGS) == 0:
            message = f"{self._doing}: step {state.global_step} of {state.max_steps}"
            begin, end = self._share
            done = begin * state.max_steps + (end - begin) * state.global_step
            self._report.progress(done, state.max_steps, message)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        values = {_REPORTED[k]: float(v) for k, v in (logs or {}).items() if k in _REPORTED}
        if self._metrics and "train/loss" in values:  # the last log is a summary of the run
            self._report.metrics(state.global_step, values)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        # Written last: a checkpoint without it is incomplete.
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            mark = {"seq": self._report.seq, "files": _checksums(folder)}
            write_atomically(folder / _MARK, json.dumps(mark))


class SnapshotCallback(TrainerCallback):
    """Keeps policies along training, each with its tokenizer."""

    def __init__(self, directory: RunDirectory, count: int, tokenizer: Any) -> None:
        self._directory = directory
        self._count = count
        self._tokenizer = tokenizer

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:  # noqa: ARG002
        snapshots = Snapshots(self._directory, count=self._count, total=state.max_steps)
        snapshots.keep(state.global_step, lambda path: save_policy(model, self._tokenizer, path))


def save_policy(model: Any, tokenizer: Any, path: Path) -> None:
    """Save a causal LM with its tokenizer, and with `use_cache`, which trainers switch off."""
    was = model.config.use_cache
    model.config.use_cache = True
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    model.config.use_cache = was


def trainer_arguments(
    model: Any, *, checkpoints: Path, examples: int, batch: int, longest: int, epochs: float,
    lr: float, seed: int, device: torch.device, tokens: int = 16_384,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments that every stage passes to its trainer's config.

    An optimizer step takes `batch` examples, in forward passes of at most `tokens` padded tokens;
    an example has at most `longest`.
    """
    steps = max(1, math.ceil(math.ceil(examples / batch) * epochs))
    micro_batch = divide_batch(batch, longest=longest, tokens=tokens)
    return {
        "output_dir": str(checkpoints),
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": batch // micro_batch,
        "num_train_epochs": epochs,
        "learning_rate": lr,
        "logging_steps": max(1, steps // _LOGS),
        "save_strategy": "steps",
        "save_steps": max(10, math.ceil(steps / _SAVES)),
        "save_total_limit": 2,
        "seed": seed,
        "use_cpu": device.type == "cpu",
        "bf16": resolve_precision("auto", device) == "bf16",
        "gradient_checkpointing": is_large(model),
        "dataloader_pin_memory": device.type == "cuda",
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
        "max_length": None,
    }


def divide_batch(batch: int, *, longest: int, tokens: int) -> int:
    """The largest divisor of `batch` whose padded rows of `longest` tokens stay within `tokens`."""
    fitting = [n for n in range(1, batch + 1) if batch % n == 0 and n * longest <= tokens]
    return max(fitting, default=1)


def tokens_at_once(device: torch.device | str) -> int:
    """Maximum padded tokens in one forward pass; few on a CPU, so that they fit its caches."""
    return 1024 if torch.device(device).type == "cpu" else 16_384


def is_large(model: Any) -> bool:
    """Whether the model is large enough for gradient checkpointing to be worth its time."""
    return model.num_parameters() > 100_000_000


def train(trainer: Any, checkpoints: Path, report: Report, *, resume: bool) -> float:
    """Run a trainer, with `resume` from its newest readable checkpoint; return the mean loss.

    A resume first removes the events after that checkpoint, so that no step is reported twice.
    Raises Cancelled, after the current step and a checkpoint, when the run is asked to stop.
    """
    trainer.remove_callback(PrinterCallback)  # metrics are events; the log holds sentences
    last = _rewind_to_checkpoint(checkpoints, report) if resume else None
    with deferred():
        result = trainer.train(resume_from_checkpoint=str(last) if last else None)
    if cancel_requested():
        raise Cancelled
    return float(result.training_loss)


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint."""
    return next(iter(_written(checkpoints)), None)


def _written(checkpoints: Path) -> list[Path]:
    """Complete checkpoints, newest first."""
    complete = [path.parent for path in checkpoints.glob(f"checkpoint-*/{_MARK}")]
    return sorted(complete, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def _rewind_to_checkpoint(checkpoints: Path, report: Report) -> Path | None:
    """The newest readable checkpoint, with the events after it removed; None without checkpoints.

    Renames damaged ones, with a warning.  Raises ValueError if all are damaged.
    """
    damaged: list[DamagedCheckpoint] = []
    for path in _written(checkpoints):
        reason = _damage(path)
        if reason is None:
            break
        damaged.append(DamagedCheckpoint(path, reason))
    else:
        if damaged:
            each = "; ".join(f"{error.path.name}: {error.reason}" for error in damaged)
            raise ValueError(
                f"no checkpoint can be read ({each}); start the stage again from the beginning"
            )
        report.rewind(0)
        report.log("no checkpoint yet; starting over")
        return None
    report.rewind(json.loads((path / _MARK).read_text())["seq"])
    report.log(f"resuming from {path.name}")
    report_damage(report, damaged, used=path.name, step=int(path.name.rpartition("-")[2]))
    set_aside(damaged)  # the trainer counts checkpoints by their names
    return path


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of each file of a checkpoint; safetensors and JSON have no checksums."""
    files = (file for file in folder.iterdir() if file.is_file() and file.name != _MARK)
    return {file.name: _crc(file) for file in files}


def _crc(file: Path) -> int:
    found = 0
    with file.open("rb") as handle:
        while part := handle.read(1 << 20):
            found = zlib.crc32(part, found)
    return found


def _damage(checkpoint: Path) -> str | None:
    """Why a checkpoint is damaged, or None."""
    try:
        expected = json.loads((checkpoint / _MARK).read_text())["files"]
        wrong = [name for name, crc in expected.items() if _crc(checkpoint / name) != crc]
    except FileNotFoundError as missing:
        return f"{Path(missing.filename).name} is missing"
    except (OSError, ValueError, KeyError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return f"{wrong[0]} does not match its checksum" if wrong else None


def prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values, under ``prefix/name``."""
    return {f"{prefix}/{k}": float(v) for k, v in values.items() if isinstance(v, (int, float))}
