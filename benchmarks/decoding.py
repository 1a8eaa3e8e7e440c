"""Decoding of rollouts: kernels and waits a token, and CPU seconds, by sampler.

    python -m benchmarks.decoding [--tiny] [--rounds N] [--json FILE]

Counts are of a Llama of 24 layers, the depth of Qwen's half-billion models: every operation that would
launch a kernel on a GPU (views and allocations are none), and every one that would make the host wait
for it, per decoded token, while rows are looked at as often as on a GPU.  The counts do not depend on
the width.  Operations of compiled steps are counted in the profiler, the others as they are
dispatched.  `earlier` is the loop before it had a cache of its own, counted in the same way.

Seconds are medians of rounds in turn, on the model M of `benchmarks.ppo`: 32 prompts, 48 new tokens,
responses end with probability 1/32 a token.  `generate_batch` is transformers' own paged decoding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._inductor.config as inductor
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig

from benchmarks.common import exit_status, markdown
from benchmarks.ppo import case as work
from pipeline.ppo import PPOConfig
from pipeline.ppo.network.lora import round_frozen_weights
from pipeline.ppo.network.model import Setup, assemble
from pipeline.ppo.rollouts import decoding
from pipeline.ppo.rollouts.backends import make_backend

EARLIER = {("bf16", 0): 1224, ("bf16", 16): 2089}
"""Kernels a token of the loop before it had a cache of its own, by precision and LoRA rank."""
SHORT, LONG = 16, 48
"""New tokens of the two runs whose difference is counted: prompts and setup cancel."""
CPU = torch.device("cpu")
_FUSED = "cpp_fused"
_PRODUCTS = (
    "mm", "addmm", "bmm", "_scaled_dot_product_flash_attention_for_cpu", "copy_", "fill_", "add",
    "cumsum", "searchsorted", "isin", "any", "all",
)  # fmt: skip
"""Operations that the compiler does not fuse; `copy_` includes those inside others."""


class Counts(NamedTuple):
    """Operations per token."""

    kernels: float
    casts: float
    waits: float


DEEP = work.Size(hidden=112, layers=24, heads=14, kv_heads=2, inner=256, vocabulary=512, prompts=16)
"""As narrow as its heads allow."""


class _Listed(TorchFunctionMode):
    """Counts what reads a tensor without an operation that is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.waits += func in (Tensor.tolist, Tensor.numpy)
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Counts operations as they are dispatched, below autocast and composite operations."""

    _FREE = ("empty", "detach", "_unsafe_view", "new_empty")

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self._waits = 0
        self._listed = _Listed()

    @property
    def waits(self) -> int:
        """How often the host waited."""
        return self._waits + self._listed.waits

    def __enter__(self) -> Dispatched:
        self._listed.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._listed.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        # A view's result is an alias of an argument that is not written to.
        view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if not view and not name.startswith(self._FREE):
            self.kernels[name] += 1
        self._waits += waits(name, args)
        return func(*args, **(kwargs or {}))


def waits(name: str, args: Any) -> bool:
    """Whether an operation makes the host wait: its result or its shape depends on values."""
    if name == "index":  # a mask as index is a list of places whose length depends on values
        return any(x is not None and x.dtype == torch.bool for x in args[1])
    return name in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")


def setup_of(
    size: str, *, precision: str, lora: int, backend: str, tokens: int, eos: bool
) -> Setup:
    """A policy as the trainer prepares it."""
    case = work.Case(size, eos=eos)
    settings: dict[str, Any] = {"rollout_backend": backend, "precision": precision}
    config = PPOConfig(lora_rank=lora, max_new_tokens=tokens, **settings)
    model, reference = assemble(case.policy(), None if lora else case.policy(), None, config, CPU)
    if precision == "bf16":
        round_frozen_weights(model.policy, reference)
    return Setup(
        model=model, reference=reference, config=config, eos_token_ids=[work.EOS],
        pad_token_id=work.PAD, precision=precision, device=CPU,
    )  # fmt: skip


def sampling(size: str, **settings: Any) -> Callable[[], Any]:
    """Sample one response to each of the size's prompts."""
    setup = setup_of(size, **settings)
    backend = make_backend(setup, None)  # type: ignore[arg-type]  # read by vLLM only
    prompts = work.prompts(work.SIZES[size])
    shape = (len(prompts), setup.config.max_new_tokens)
    uniforms = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return lambda: backend(prompts, uniforms)


def counted(precision: str, lora: int, backend: str) -> Counts:
    """Operations per token."""
    count = _profiled if backend == "compiled" else _dispatched

    def run(tokens: int, *, eos: bool) -> Counts:
        return count(
            sampling(
                "deep", precision=precision, lora=lora, backend=backend, tokens=tokens, eos=eos
            )
        )

    def difference(*, eos: bool) -> Counts:
        short, long = run(SHORT, eos=eos), run(LONG, eos=eos)
        return Counts(*((b - a) / (LONG - SHORT) for a, b in zip(short, long, strict=True)))

    # Rows that end are removed, which must not wait either.
    return difference(eos=False)._replace(waits=difference(eos=True).waits)


def _dispatched(sample: Callable[[], Any]) -> Counts:
    with Dispatched() as seen:
        sample()
    return Counts(seen.kernels.total(), seen.kernels["_to_copy"], seen.waits)


def _profiled(sample: Callable[[], Any]) -> Counts:
    """Operations of compiled steps: those that the compiler fused have names of their own."""
    sample()  # compiles
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        sample()
    names = Counter(event.name.removeprefix("aten::") for event in seen.events() or ())
    kernels = sum(count for name, count in names.items() if _FUSED in name or name in _PRODUCTS)
    return Counts(kernels, names["_to_copy"], names["_local_scalar_dense"] + names["nonzero"])


def seconds(rounds: int) -> dict[str, float]:
    """Median CPU seconds to sample the rollouts of one iteration, by sampler."""
    tokens = work.SIZES["M"].new_tokens
    samplers = {
        name: sampling("M", precision="fp32", lora=0, backend=name, tokens=tokens, eos=True)
        for name in ("own", "compiled", "transformers")
    } | {"generate_batch": _paged(tokens)}
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for counts in range(rounds + 1):
        for name, sample in samplers.items():
            start = time.process_time()
            sample()
            if counts:  # the first round compiles
                times[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def _paged(tokens: int) -> Callable[[], Any]:
    case = work.Case("M", eos=True)
    policy, prompts = case.policy(), work.prompts(case.size)
    config = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=tokens, eos_token_id=work.EOS, pad_token_id=work.PAD
    )
    return lambda: policy.generate_batch(prompts, generation_config=config)


def count_table(layers: int) -> list[dict[str, Any]]:
    """One row per precision, LoRA rank and sampler."""
    work.SIZES["deep"] = replace(DEEP, layers=layers)
    inductor.cpp.enable_kernel_profile = True  # the profiler sees fused kernels
    # Rows are looked at as often as on a GPU.
    decoding.check_interval = lambda _: decoding.CHECK_EVERY
    return [
        {"precision": precision, "lora": lora, "sampler": backend}
        | counted(precision, lora, backend)._asdict()
        for precision, lora in EARLIER
        for backend in ("transformers", "own", "compiled")
    ]


def misses(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Counts of compiled steps above half of the earlier loop's, and waits of our own samplers above
    one in 16 tokens."""
    ours = [row for row in rows if row["sampler"] != "transformers"]
    many = [
        f"{row}: more than one wait in 16 tokens" for row in ours if row["waits"] > 1 / 16 + 1e-9
    ]
    return many + [
        f"{row}: more than half of the earlier kernels"
        for row in ours
        if row["sampler"] == "compiled"
        and row["kernels"] > EARLIER[row["precision"], row["lora"]] / 2
    ]


def main() -> int:
    """Print both tables; 1 if a count is above its limit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--tiny", action="store_true", help="two layers, and no seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = count_table(2 if options.tiny else DEEP.layers)
    header = ("precision", "LoRA rank", "sampler", "kernels a token", "casts", "waits a token")
    cells = [
        (
            *list(row.values())[:3],
            f"{row['kernels']:,.0f}",
            f"{row['casts']:.0f}",
            f"{row['waits']:.2f}",
        )
        for row in rows
    ]
    print(markdown(header, cells))
    found: dict[str, Any] = {"counts": rows}
    if not options.tiny:
        found["seconds"] = seconds(options.rounds)
        lines = [(name, f"{value:.2f}") for name, value in found["seconds"].items()]
        print(markdown(("sampler", "CPU s"), lines))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return exit_status(misses(rows))


if __name__ == "__main__":
    sys.exit(main())
