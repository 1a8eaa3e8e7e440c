"""Early stopping on judgments of prompts that the network does not learn from.

On by default (`reward.early_stopping`), with four checks per epoch and `reward.patience` = 4.  It runs
only if the audit set (`split_for_stopping` in data.py) has `reward.stopping_judgments` (100) or more;
otherwise all `reward.epochs` are trained.

A bootstrap's out-of-bag judgments cannot replace the audit set: all heads share a trunk, which has
learned from them, so their log-loss keeps falling while that of new prompts rises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from pipeline.statistics.winrate import clustered_mean

CHECKS_PER_EPOCH = 4
_FILE = "stopping.pt"


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """The kept state: its step and epoch, and the log-loss of the judgments set aside."""

    step: int
    epoch: float
    log_loss: float


class EarlyStopping(TrainerCallback):
    """Stops after `patience` checks in a row that are clearly worse than the best.

    `measure` returns the losses (n,) of the judgments set aside; `groups` (n,) are their prompts.
    *Clearly* means by more than a standard error of the difference, so that chance does not stop
    training on a few dozen judgments.  The best state is kept if the last check was clearly worse,
    else the last one.  The state is saved with each checkpoint, so this callback must come before
    the one that marks a checkpoint as complete.
    """

    def __init__(
        self,
        network: Any,
        measure: Callable[[int], Tensor],
        groups: Sequence[str],
        *,
        patience: int,
    ) -> None:
        self._network = network
        self._measure = measure
        self._groups = groups
        self._patience = patience
        self._best: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._waited = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step:
            found = torch.load(_file(args, state), weights_only=True)
            self._best, self._last, self._waited = found["best"], found["last"], found["waited"]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._waited >= self._patience:  # resumed after training had stopped
            control.should_training_stop = True
            return
        # The state's own number of epochs is rounded up.
        every = max(1, round(state.max_steps / args.num_train_epochs / CHECKS_PER_EPOCH))
        if state.global_step % every and state.global_step != state.max_steps:
            return
        self._check(state)
        if self._waited >= self._patience:
            control.should_training_stop = control.should_save = True

    def _check(self, state: Any) -> None:
        losses = self._measure(state.global_step)
        self._last = {"step": state.global_step, "epoch": float(state.epoch), "losses": losses}
        if not self._best or losses.mean() < self._best["losses"].mean():
            weights = {
                name: tensor.detach().to("cpu", copy=True)
                for name, tensor in self._network.state_dict().items()
            }
            self._best = self._last | {"weights": weights}
        worse = clearly_worse(losses, self._best["losses"], self._groups)
        self._waited = self._waited + 1 if worse else 0

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            found = {"best": self._best, "last": self._last, "waited": self._waited}
            torch.save(found, _file(args, state))

    def keep(self) -> EarlyStop | None:
        """Load the kept state into the network; None if there was no check."""
        if not self._last:
            return None
        back = self._waited > 0
        if back:
            self._network.load_state_dict(self._best["weights"])
        found = self._best if back else self._last
        return EarlyStop(
            step=found["step"], epoch=found["epoch"], log_loss=found["losses"].mean().item()
        )


def clearly_worse(losses: Tensor, best: Tensor, groups: Sequence[str]) -> bool:
    """Whether the mean of `losses` exceeds that of `best` by more than a standard error.

    The standard error is that of the mean paired difference, clustered by group.
    """
    mean, variance, _ = clustered_mean((losses - best).double().cpu().numpy(), groups)
    return mean > math.sqrt(variance)


def _file(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE
