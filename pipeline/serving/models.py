"""The models of the generation service: loaded when they are first asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pipeline.config.sections import Config
from pipeline.models.devices import inference_dtype, pick_device
from pipeline.models.generate import Sampler
from pipeline.reward.scoring import AUDIT, RewardModel
from pipeline.sampling.best_of_n import load_sampler
from storage.generation_records import ReplyRequest
from storage.records import Message

MAX_LOADED = 5
"""Models in memory: the policy, the previous one, the reference, the reward model and its audit model."""


class UnknownModel(LookupError):
    """The workspace has no model of this id."""


class Models:
    """The models of a workspace, by id; `paths()` reads their paths.  Thread-safe."""

    def __init__(self, config: Config, paths: Callable[[], Mapping[str, str]]) -> None:
        self._paths = paths
        self._config = config
        self.device = _device(config)
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Any] = OrderedDict()

    def ids(self) -> list[str]:
        """The ids that can be asked for."""
        return sorted(self._paths())

    def sampler(self, id: str) -> Sampler:
        """A language model; raises `UnknownModel` or `ModelUnavailable`."""
        return self._get(id, self._load_sampler)

    def reward(self, id: str) -> RewardModel:
        """A reward model; raises as `sampler` does."""
        return self._get(id, lambda path: RewardModel.load(path, device=self.device))

    def audit(self, id: str) -> RewardModel | None:
        """The audit model of a reward model, None if it has none; raises as `sampler` does."""
        path = self._paths().get(id)
        if path is None:
            raise UnknownModel(f"this workspace has no model {id}")
        folder = Path(path) / AUDIT
        if not folder.is_dir():
            return None
        load = lambda _: RewardModel.load(folder, device=self.device)  # noqa: E731
        return self._get(id, load, part=AUDIT)

    def _get(self, id: str, load: Callable[[str], Any], *, part: str = "") -> Any:
        key = f"{id}/{part}"
        with self._lock:
            if key not in self._loaded:
                path = self._paths().get(id)
                if path is None:
                    raise UnknownModel(f"this workspace has no model {id}")
                while len(self._loaded) >= MAX_LOADED:
                    self._loaded.popitem(last=False)
                self._loaded[key] = load(path)
            self._loaded.move_to_end(key)
            return self._loaded[key]

    def _load_sampler(self, path: str) -> Sampler:
        dtype = inference_dtype(self._config.model, self.device)
        sampler = load_sampler(path, device=self.device, dtype=dtype)
        # The first pass allocates buffers; the first annotator should not wait for that.
        sampler.sample(["Hello"], temperature=1.0, max_new_tokens=2, seed=0)
        return sampler


def prompt_ids(sampler: Sampler, request: ReplyRequest) -> list[int]:
    """The token ids of a conversation; ValueError if the longest reply would not fit."""
    messages: tuple[Message, ...] = request.messages
    if not sampler.fits(messages, request.max_tokens):
        raise ValueError(
            f"The conversation is too long for {request.model}: it needs "
            f"{sampler.needs(messages, request.max_tokens)} tokens with a reply. Start a new one."
        )
    return sampler.chat.prompt(messages)


def _device(config: Config) -> torch.device:
    named = config.serving.device
    return pick_device(config.worker.device) if named == "worker" else torch.device(named)
