"""Published model families at tiny width: their configuration, special tokens and chat template.

Weights are random and the tokenizer is trained on the demo's prompts, so nothing is downloaded.  What
the families disagree about is kept: names and numbers of end-of-text ids, missing pad tokens, system
roles, tied and padded embeddings, sliding windows and capped logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from pipeline.demo import corpus

MERGED = 420
"""Entries of every tokenizer before padding of the vocabulary."""
WINDOW = 10
"""Sliding windows, in tokens: longer than what `can_pack` tries, and half of the texts or less."""

QWEN3 = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if loop.last %}{{- '\\n<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '\\n' }}{%- endif %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: 26 Jul 2024\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

GEMMA2 = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}\
{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

GEMMA3 = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}"""

PHI3 = """\
{% for message in messages %}{% if message['role'] == 'system' %}\
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}\
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}\
{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A published family."""

    config: Callable[..., Any]
    """Its configuration class."""
    shape: Mapping[str, Any]
    specials: Sequence[str]
    eos: str
    pad: str | None
    bos: str | None
    template: str | None
    ends: Sequence[str]
    """The end-of-text tokens in its generation_config.json."""
    rendered: str
    """The prompt of a system message "Be brief." and a user message "Hi"."""
    end: str
    """The token that ends an assistant's turn."""
    packs: bool
    """Whether texts longer than WINDOW can be packed."""
    padding: int = 0
    """Rows of the embedding that no token has."""
    sampling: Mapping[str, Any]
    """Sampling settings in its generation_config.json."""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Byte-level BPE with the family's special tokens; starts every text with its BOS."""
        core = Tokenizer.from_str(_trained(tuple(self.specials)))
        if self.bos is not None and self.bos != self.eos:  # GPT-2 adds none
            id = core.token_to_id(self.bos)
            core.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
                single=f"{self.bos} $A", special_tokens=[(self.bos, id)]
            )
        named = {"eos_token": self.eos, "pad_token": self.pad, "bos_token": self.bos}
        others = [t for t in self.specials if t not in named.values()]
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core,
            additional_special_tokens=others,
            clean_up_tokenization_spaces=False,
            **{name: token for name, token in named.items() if token is not None},
        )
        tokenizer.chat_template = self.template
        return tokenizer

    def save(self, path: Path) -> Path:
        """The family's random model in bf16, as published, with its tokenizer."""
        tokenizer = self.tokenizer()
        ids = tokenizer.convert_tokens_to_ids
        ends: Any = [ids(token) for token in self.ends]
        special = {
            "eos_token_id": ends if len(ends) > 1 else ends[0],
            "bos_token_id": ids(self.bos) if self.bos else None,
            "pad_token_id": ids(self.pad) if self.pad else None,
        }
        torch.manual_seed(0)
        size = len(tokenizer) + self.padding
        config = self.config(vocab_size=size, **self.shape, **special)
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        model.generation_config = GenerationConfig(**special, **self.sampling)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path


@cache
def _trained(specials: tuple[str, ...]) -> str:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator((prompt.text for prompt in corpus.shipped_prompts()), trainer)
    return core.to_str()


_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
_HEADS = {"head_dim": 16}  # wider than the model: 4 · 16 > 32, as in Qwen3-0.6B and Gemma
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")

FAMILIES: dict[str, Family] = {
    "qwen3": Family(
        config=Qwen3Config,
        shape=_SHAPE | _HEADS | {"tie_word_embeddings": True, "use_sliding_window": False},
        specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|im_end|>",
        pad="<|endoftext|>",
        bos=None,
        template=QWEN3,
        ends=("<|im_end|>", "<|endoftext|>"),
        rendered="<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
        end="<|im_end|>",
        packs=True,
        padding=28,
        sampling={"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
    ),
    "llama3.2": Family(
        config=LlamaConfig,
        shape=_SHAPE | {"tie_word_embeddings": True, "rope_parameters": _LLAMA3_ROPE},
        specials=(
            "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>",
            "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
        ),
        eos="<|eot_id|>",
        pad=None,
        bos="<|begin_of_text|>",
        template=LLAMA3,
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        rendered="<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        end="<|eot_id|>",
        packs=True,
        sampling={"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    ),
    "gemma2": Family(
        config=Gemma2Config,
        shape=_SHAPE | _HEADS | _LAYERS | {
            "query_pre_attn_scalar": 16, "final_logit_softcapping": 10.0,
            "attn_logit_softcapping": 2.0,
        },
        specials=_GEMMA,
        eos="<eos>",
        pad="<pad>",
        bos="<bos>",
        template=GEMMA2,
        ends=("<eos>", "<end_of_turn>"),
        rendered="<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n",
        end="<end_of_turn>",
        packs=False,
        sampling={"cache_implementation": "hybrid"},
    ),
    "gemma3": Family(
        config=Gemma3TextConfig,
        shape=_SHAPE | _HEADS | _LAYERS | {
            "query_pre_attn_scalar": 16, "num_key_value_heads": 1,
        },
        specials=_GEMMA,
        eos="<eos>",
        pad="<pad>",
        bos="<bos>",
        template=GEMMA3,
        ends=("<eos>", "<end_of_turn>"),
        rendered="<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n",
        end="<end_of_turn>",
        packs=False,
        padding=12,
        sampling={
            "cache_implementation": "hybrid", "do_sample": True, "top_k": 64, "top_p": 0.95,
        },
    ),
    "gpt2": Family(
        config=GPT2Config,
        shape={
            "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.3,
        },
        specials=("<|endoftext|>",),
        eos="<|endoftext|>",
        pad=None,
        bos="<|endoftext|>",
        template=None,
        ends=("<|endoftext|>",),
        rendered="Be brief.\n\nUser:\nHi\n\nAssistant:\n",
        end="<|endoftext|>",
        packs=True,
        sampling={},
    ),
    "phi2": Family(
        config=PhiConfig,
        shape=_SHAPE | {
            "num_key_value_heads": 4, "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
        },
        specials=("<|endoftext|>",),
        eos="<|endoftext|>",
        pad=None,
        bos="<|endoftext|>",
        template=None,
        ends=("<|endoftext|>",),
        rendered="Be brief.\n\nUser:\nHi\n\nAssistant:\n",
        end="<|endoftext|>",
        packs=True,
        padding=20,
        sampling={},
    ),
    "phi3": Family(
        config=Phi3Config,
        shape=_SHAPE | {"tie_word_embeddings": False, "sliding_window": WINDOW},
        specials=("<unk>", "<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        bos="<s>",
        template=PHI3,
        ends=("<|endoftext|>", "<|assistant|>", "<|end|>"),
        rendered="<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n",
        end="<|end|>",
        packs=False,
        padding=44,
        sampling={},
    ),
    "mistral": Family(
        config=MistralConfig,
        shape=_SHAPE | {"tie_word_embeddings": False, "sliding_window": WINDOW},
        specials=("<unk>", "<s>", "</s>"),
        eos="</s>",
        pad=None,
        bos="<s>",
        template=MISTRAL,
        ends=("</s>",),
        rendered="<s>[INST] Be brief.\n\nHi [/INST]",
        end="</s>",
        packs=False,
        sampling={},
    ),
}  # fmt: skip
