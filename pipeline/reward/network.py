"""The reward model as a module: a decoder, a scalar head and the tie threshold.

The class is made per architecture on top of its ``…ForSequenceClassification``, so the saved
directory is an ordinary Hugging Face model with two tensors more: ``score.bias`` (the centring)
and ``ties.raw`` (the threshold).  ``AutoModelForSequenceClassification`` loads it too and gives
the same rewards up to that constant, wherever padding differs from end-of-text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig
from transformers.utils import ModelOutput

from pipeline.hub import ModelUnavailable, explain, require_model
from pipeline.reward.likelihood import TieThreshold
from pipeline.text import ChatTokenizer


@dataclass
class RewardOutput(ModelOutput):
    """`logits` (N, 1) are the rewards; `theta` (1,) is the tie threshold.

    Both leave through the one forward, because wrappers such as DDP and FSDP see nothing else.
    """

    logits: Tensor | None = None
    theta: Tensor | None = None


class RewardHead:
    """What is ours in a reward network; mixed in front of the architecture's own class."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.score = nn.Linear(config.get_text_config().hidden_size, 1, bias=True)
        self.ties = TieThreshold()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Zero for the head, not N(0, 1/√(d+1)): with a few hundred labels a random start is
        noise that the labels must first undo.  Called for tensors a checkpoint lacks."""
        if module is getattr(self, "score", None):
            nn.init.zeros_(module.weight)  # type: ignore[arg-type]
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        elif isinstance(module, TieThreshold):
            nn.init.zeros_(module.raw)
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> RewardOutput:
        """(N, 1) rewards in fp32, read at the last real token of (N, L) right-padded texts.

        The stock class looks for the last token that is not padding, which is one too early
        where padding and end-of-text share an id.
        """
        trunk = self.base_model  # type: ignore[attr-defined]
        hidden = trunk(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        last = attention_mask.sum(1) - 1
        read = hidden[torch.arange(len(last), device=last.device), last]
        return RewardOutput(logits=self.rewards(read), theta=self.ties())

    def rewards(self, last: Tensor) -> Tensor:
        """(N, 1) rewards in fp32 of (N, hidden) states of texts' last tokens."""
        with torch.autocast(last.device.type, enabled=False):
            return nn.functional.linear(
                last.float(), self.score.weight.float(), self.score.bias.float()
            )

    def shift(self, by: float) -> None:
        """Add a constant to every reward."""
        with torch.no_grad():
            self.score.bias.add_(by)


@cache
def network_class(config_class: type, *, fresh: bool) -> Any:
    """The reward network for an architecture, under the name of the class it extends.

    A `fresh` one is loaded from a language model, so that its head and threshold may be missing.
    """
    try:
        base: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config_class]
    except KeyError:
        raise ValueError(
            f"transformers has no sequence-classification model for {config_class.__name__}, "
            "which a reward model needs; choose another base model"
        ) from None
    expected = {
        "_keys_to_ignore_on_load_missing": [r"^score\.", r"^ties\."],
        "_keys_to_ignore_on_load_unexpected": [r"^lm_head\.", r"^embed_out\."],
    }
    return type(base.__name__, (RewardHead, base), expected if fresh else {})


def from_language_model(path: str, chat: ChatTokenizer) -> Any:
    """A reward network with the weights of a causal language model, fp32, head at zero."""
    network, _ = _load(path, fresh=True)
    network.config.get_text_config().pad_token_id = chat.pad_id
    return network


def load_network(path: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """A saved reward network; raises ModelUnavailable for a directory that holds none."""
    network, missing = _load(str(path), dtype=dtype, fresh=False)
    if missing:
        raise ModelUnavailable(f"{path} is not a reward model: it lacks {', '.join(missing)}")
    return network


def _load(path: str, *, fresh: bool, dtype: torch.dtype = torch.float32) -> tuple[Any, list[str]]:
    """The network and the names of tensors that `path` should have had."""
    resolved = require_model(path)
    try:
        config = AutoConfig.from_pretrained(resolved, num_labels=1)
        network, info = network_class(type(config), fresh=fresh).from_pretrained(
            resolved, config=config, dtype=dtype, output_loading_info=True
        )
    except (OSError, KeyError) as error:
        raise ModelUnavailable(explain(path, error)) from error
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network.eval(), sorted(info["missing_keys"])
