"""The reward model as a module: a decoder, one or several scalar heads, and the ties' parameters.

The class extends the architecture's ``…ForSequenceClassification``, so the saved directory is an
ordinary Hugging Face model with a few more tensors: ``score.bias`` (the level), ``ties.*``
(`pipeline.reward.likelihood_parameters`) and, with several heads, ``heads.*``.  ``score`` is the
reward, so ``AutoModelForSequenceClassification`` also loads the directory and gives the same
rewards up to the level, if padding differs from end-of-text.  Annotators are learned but not saved.

``score`` learns from every judgment with weight 1.  The heads learn from bootstrap samples, as
linear models on the trunk's states, and measure uncertainty: a member's reward is ``score`` plus
the difference of its head from the mean of the heads.  Gradients of the heads do not reach the
trunk, because they would add the noise of the bootstrap samples to the reward.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig
from transformers.utils import ModelOutput

from pipeline.models.hub import (
    ModelUnavailable,
    explaining_load_errors,
    require_model,
    require_reward_model,
)
from pipeline.models.loading import context_length, meta_only
from pipeline.models.text import ChatTokenizer
from pipeline.ppo.network.model import without_dropout
from pipeline.ppo.network.packing import can_pack, last_states_of_pairs
from pipeline.reward.annotators import AnnotatorEffects
from pipeline.reward.likelihood import Likelihood
from pipeline.reward.likelihood_parameters import Ties
from pipeline.reward.response_times import ResponseTimes


@dataclass
class RewardOutput(ModelOutput):
    """`logits` (N, K) are the rewards that K heads give N texts, `ties` (5,) `Ties.packed`.

    In training, `logits` are the reward alone, (N, 1), and `heads` (N, K) the outputs of the heads,
    without a gradient to the trunk.  `slope` and `bias` (M,) are those of the annotators of M
    judgments, and `penalty` is the prior's part of the loss.  `times` (2,) are γ and c of response
    times.  All are outputs of one forward,
    because wrappers such as DDP and FSDP see nothing else.
    """

    logits: Tensor | None = None
    heads: Tensor | None = None
    ties: Tensor | None = None
    slope: Tensor | None = None
    bias: Tensor | None = None
    penalty: Tensor | None = None
    times: Tensor | None = None


class RewardHead:
    """Kitestring's part of a reward network, a mixin before the architecture's own class."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        width, members = config.get_text_config().hidden_size, getattr(config, "reward_heads", 1)
        self.score = nn.Linear(width, 1, bias=True)
        self.heads = nn.Linear(width, members, bias=True) if members > 1 else None
        self.ties = Ties()
        self.annotators: AnnotatorEffects | None = None
        self.times: ResponseTimes | None = None
        self.packs = False
        """Whether a training pass packs its texts, which are N first and N second ones of pairs."""

    @property
    def members(self) -> int:
        """The number of heads; each gives a reward."""
        return self.heads.out_features if self.heads is not None else 1

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood used in training; Rao and Kupper's for models that store none."""
        asked: dict[str, Any] = {"tie_model": "rao_kupper", "both_bad": "tie"}
        asked |= getattr(self.config, "reward_likelihood", {})  # type: ignore[attr-defined]
        return Likelihood(**asked)

    @likelihood.setter
    def likelihood(self, likelihood: Likelihood) -> None:
        self.config.reward_likelihood = asdict(likelihood)  # type: ignore[attr-defined]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Set the heads to zero: a few hundred labels cannot undo the noise of a random start.

        transformers calls this for tensors that a checkpoint lacks.
        """
        if module is getattr(self, "score", None) or module is getattr(self, "heads", None):
            nn.init.zeros_(module.weight)  # type: ignore[arg-type]
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        elif isinstance(module, Ties):
            module.reset()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        annotators: Tensor | None = None,
        **_: Any,
    ) -> RewardOutput:
        """(N, K) rewards in fp32 of (N, L) right-padded texts.

        `annotators` (M,) are the indices of annotators whose slopes and biases are returned.
        """
        packs = self.training and self.packs  # type: ignore[attr-defined]
        read = (
            last_states_of_pairs(self.base_model, input_ids, attention_mask)  # type: ignore[attr-defined]
            if packs
            else self.states(input_ids, attention_mask)
        )
        output = RewardOutput(ties=self.ties.packed())
        if self.training and self.heads is not None:  # type: ignore[attr-defined]
            output.logits = _linear(self.score, read)
            output.heads = _linear(self.heads, read.detach())
        else:
            output.logits = self.rewards(read)
        if self.annotators is not None and annotators is not None:
            output.slope, output.bias = self.annotators(annotators)
            output.penalty = self.annotators.penalty()
        if self.times is not None:
            output.times = self.times()
        return output

    def states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(N, hidden): the trunk's state at the last real token of (N, L) right-padded texts.

        transformers' class uses the last token that is not padding, which is one too early if
        padding and end-of-text have the same id.
        """
        trunk = self.base_model  # type: ignore[attr-defined]
        hidden = trunk(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state
        last = attention_mask.sum(1) - 1
        return hidden[torch.arange(len(last), device=last.device), last]

    def rewards(self, last: Tensor) -> Tensor:
        """(N, K) rewards in fp32 of (N, hidden) states of texts' last tokens."""
        reward = _linear(self.score, last)
        if self.heads is None:
            return reward
        heads = _linear(self.heads, last)
        return reward + heads - heads.mean(-1, keepdim=True)

    def exact_parts(self) -> list[nn.Module]:
        """The parts that compute in fp32, whatever the trunk's precision."""
        return [part for part in (self.score, self.heads, self.ties) if part is not None]

    @torch.no_grad()
    def shift(self, by: float | Tensor, *, level: float | None = None) -> None:
        """Add a constant to every reward, or one for each head; the level κ moves too.

        With several networks, κ moves by `level`, the shift of their mean.
        """
        by = torch.as_tensor(by, dtype=self.score.bias.dtype, device=self.score.bias.device)
        if self.heads is not None:
            self.heads.bias.add_(by)
        self.score.bias.add_(by.mean())
        self.ties.level.add_(by.mean() if level is None else level)

    @torch.no_grad()
    def rescale(self, by: float, *, thresholds: float = 1.0) -> None:
        """Multiply rewards by `by` > 0, adapt κ and its sharpness, multiply θ by `thresholds`."""
        for head in filter(None, (self.score, self.heads)):
            head.weight.mul_(by)
            head.bias.mul_(by)
        self.ties.rescale(by, thresholds=thresholds)


def _linear(head: nn.Linear, states: Tensor) -> Tensor:
    """Apply a head in fp32, whatever the trunk's precision."""
    with torch.autocast(states.device.type, enabled=False):
        return nn.functional.linear(states.float(), head.weight.float(), head.bias.float())


def reads_packed(network: Any, device: torch.device) -> bool:
    """Whether several texts in one row give the network's states of each text alone, on a CPU."""
    return device.type == "cpu" and can_pack(
        network.base_model,
        longest=context_length(network) or sys.maxsize,
        output="last_hidden_state",
    )


@cache
def network_class(config_class: type, *, fresh: bool, stock: bool = False) -> Any:
    """The class of the reward network for an architecture, named like the class that it extends.

    `fresh`: it loads a language model, without heads and ties.  `stock`: it loads a transformers
    classifier, whose head has no bias and which has no ties.
    """
    try:
        base: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config_class]
    except KeyError:
        raise ValueError(
            f"transformers has no sequence-classification model for {config_class.__name__}, "
            "which a reward model needs; choose another base model"
        ) from None
    # Models saved before strengths and the level were learned lack them and do not use them.
    later = r"^ties\.(gaps|level|sharpness)$"
    missing = [r"^score\.", r"^heads\.", r"^ties\."] if fresh else [later]
    if stock:
        missing += [r"^score\.bias$", r"^ties\."]
    expected: dict[str, Any] = {"_keys_to_ignore_on_load_missing": missing}
    if fresh:
        expected["_keys_to_ignore_on_load_unexpected"] = [r"^lm_head\.", r"^embed_out\."]
    return type(base.__name__, (RewardHead, base), expected)


def from_language_model(path: str, chat: ChatTokenizer, *, heads: int = 1) -> Any:
    """A reward network with the weights of a causal language model, fp32, heads at zero."""
    network, _ = _load(path, fresh=True, heads=heads)
    network.config.get_text_config().pad_token_id = chat.pad_id
    return network


def load_network(path: str | Path, *, device: str = "cpu") -> Any:
    """Load Kitestring's reward network or a transformers model with one label.

    On the meta device it has no weights, and its files are not read.
    Raises `ModelUnavailable` for a directory that contains neither.
    """
    require_reward_model(str(path))
    network, missing = _load(str(path), fresh=False, device=device)
    if missing:
        raise ModelUnavailable(f"{path} is not a reward model: it lacks {', '.join(missing)}")
    return network


def _load(
    path: str, *, fresh: bool, heads: int | None = None, device: str = "cpu"
) -> tuple[Any, list[str]]:
    """The network and the names of tensors that `path` should have had."""
    resolved = require_model(path)
    with explaining_load_errors(path):
        config = AutoConfig.from_pretrained(resolved, num_labels=1, trust_remote_code=False)
    stock = not fresh and not hasattr(config, "reward_likelihood")
    if heads is not None:
        config.reward_heads = heads
    kind = network_class(type(config), fresh=fresh, stock=stock)
    with explaining_load_errors(path):
        network, info = kind.from_pretrained(
            resolved,
            config=config,
            dtype=torch.float32,
            device_map=meta_only(device),
            output_loading_info=True,
        )
    without_dropout(network)
    return network.eval(), sorted(info["missing_keys"])
