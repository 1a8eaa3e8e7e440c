"""Every setting, its default, its meaning and its check.  No torch here.

Settings come from TOML files and ``--set section.name=value``.  An unknown or invalid key is an
error that names the nearest valid one; nothing is ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline.ppo.config import PPOConfig


def setting(
    default: Any, help: str, *, low: float | None = None, high: float | None = None,
    above: float | None = None,
) -> Any:  # fmt: skip
    """A dataclass field with the sentence a user reads and the range that is accepted.

    `low` and `high` are the smallest and largest value; `above` is one that is too small already.
    """
    return field(default=default, metadata={"help": help, "low": low, "high": high, "above": above})


class _Section:
    """Checks the ranges of a section's settings."""

    section: ClassVar[str]

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    self._check(f"{self.section}.{f.name}={value}".lstrip("."), number, f.metadata)

    def _check(self, said: str, number: float, range: Mapping[str, Any]) -> None:
        low, high, above = range["low"], range["high"], range["above"]
        _require(math.isfinite(number), f"{said} must be a finite number")
        if low is not None and high is not None:
            _require(low <= number <= high, f"{said} must be in [{low}, {high}]")
        elif above is not None and high is not None:
            _require(above < number <= high, f"{said} must be in ({above}, {high}]")
        elif low is not None:
            _require(number >= low, f"{said} must be at least {low}")
        elif above is not None:
            _require(number > above, f"{said} must be more than {above}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Section):
    """Which language model the loop starts from."""

    section: ClassVar[str] = "model"

    name: str = setting("demo", "A Hugging Face id, a local directory, or demo (embedded).")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "Precision of loaded weights; training always keeps float32 master weights."
    )


@dataclass(frozen=True, kw_only=True)
class LabelingConfig(_Section):
    """How much is asked of the annotators."""

    section: ClassVar[str] = "labeling"

    labels: int = setting(
        200, "Judgments wanted in an iteration before training is suggested.", low=1
    )
    overlap: float = setting(
        0.1, "Share of comparisons that two annotators judge, for agreement.", low=0, high=1
    )
    auto_train: bool = setting(False, "Start training by itself once the labels are in.")


@dataclass(frozen=True, kw_only=True)
class SFTConfig(_Section):
    """Supervised fine-tuning on demonstrations; gives the frozen reference."""

    section: ClassVar[str] = "sft"

    enabled: bool = setting(True, "Run SFT when demonstrations were imported; else skip it.")
    epochs: float = setting(1.0, "Passes over the demonstrations.", above=0)
    lr: float = setting(
        2e-5, "Peak learning rate; a cosine takes it to zero after warm-up.", above=0
    )
    batch: int = setting(16, "Demonstrations per optimizer step.", low=1)
    warmup: float = setting(0.03, "Share of steps in which the learning rate rises.", low=0, high=1)
    max_tokens: int = setting(
        2048, "Longest prompt plus response; longer ones are an error.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(_Section):
    """Fresh completions for the annotators."""

    section: ClassVar[str] = "sampling"

    surplus: float = setting(
        1.3, "Comparisons made per judgment wanted; spare ones cover skips.", low=1
    )
    temperatures: tuple[float, ...] = setting(
        (1.0, 0.8), "The two sides' sampling temperatures.", above=0
    )
    top_p: float = setting(
        0.9, "Nucleus kept while sampling for annotators; 1 keeps everything.", above=0, high=1
    )
    max_new_tokens: int = setting(256, "Longest completion in tokens.", low=1)
    reference_share: float = setting(
        0.15, "Share of comparisons against the SFT reference.", low=0, high=1
    )
    previous_share: float = setting(
        0.25, "Share against the previous policy, once there is one.", low=0, high=1
    )
    near_duplicate: float = setting(
        0.9, "Pairs whose texts are this similar (0-1) are left out.", low=0, high=1
    )
    batch: int = setting(32, "Completions sampled at once.", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            len(self.temperatures) == 2,
            f"sampling.temperatures={list(self.temperatures)} must be two positive numbers",
        )
        _require(
            self.reference_share + self.previous_share <= 1,
            "sampling.reference_share and sampling.previous_share must add up to at most 1",
        )


@dataclass(frozen=True, kw_only=True)
class RewardConfig(_Section):
    """The Bradley-Terry reward model."""

    section: ClassVar[str] = "reward"

    tie_model: Literal["rao_kupper", "drop", "half"] = setting(
        "rao_kupper", "What ties teach: a learned tie threshold, nothing, or half a win each."
    )
    epochs: float = setting(
        1.0, "Passes over the judgments; a few hundred labels overfit fast.", above=0
    )
    lr: float = setting(1e-5, "Peak learning rate of the reward model.", above=0)
    theta_lr: float = setting(0.02, "Learning rate of the tie threshold.", above=0)
    batch: int = setting(16, "Comparisons per optimizer step.", low=1)
    held_out_share: float = setting(
        0.15, "Share of prompts whose judgments measure accuracy.", low=0.01, high=0.99
    )
    max_tokens: int = setting(
        2048, "Longest prompt plus response; longer ones are an error.", low=1
    )
    center: bool = setting(True, "Shift rewards so that SFT responses average 0.")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(_Section):
    """Policy against SFT and the previous policy on held-out prompts."""

    section: ClassVar[str] = "evaluate"

    prompts: int = setting(200, "Held-out prompts used (all, when there are fewer).", low=1)
    completions: int = setting(1, "Completions sampled per prompt and policy.", low=1)
    temperature: float = setting(1.0, "Sampling temperature, as in PPO.", above=0)
    max_new_tokens: int = setting(256, "Longest completion in tokens.", low=1)
    batch: int = setting(32, "Completions sampled at once.", low=1)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(_Section):
    """How a job uses the machine."""

    section: ClassVar[str] = "worker"

    device: Literal["auto", "cuda", "mps", "cpu"] = setting(
        "auto", "Where training runs: CUDA, then Apple's MPS, then the CPU."
    )
    threads: int = setting(
        0, "CPU threads of a job; 0 takes all cores but leaves labeling first.", low=0
    )
    nice: int = setting(15, "Scheduling priority of a job (0 normal, 19 lowest).", low=-20, high=19)


@dataclass(frozen=True, kw_only=True)
class Config(_Section):
    """All sections.  ``Config()`` suits a real model; ``configs/demo.toml`` the embedded one."""

    section: ClassVar[str] = ""

    seed: int = setting(0, "Seed of every random choice in the pipeline.", low=0, high=2**31)
    model: ModelConfig = field(default_factory=ModelConfig)
    labeling: LabelingConfig = field(default_factory=LabelingConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)

    @classmethod
    def load(cls, files: Sequence[Path], overrides: Mapping[str, str] | None = None) -> Config:
        """Settings from TOML files (later ones win), then overrides such as ppo.lr=1e-6."""
        merged: dict[str, Any] = {}
        for file in files:
            try:
                table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
            except (FileNotFoundError, IsADirectoryError):
                raise ValueError(f"there is no settings file {file}") from None
            except UnicodeDecodeError as error:
                raise ValueError(f"{file} is not UTF-8 text: {error}") from None
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"{file} is not valid TOML: {error}") from None
            for section, value in table.items():
                if isinstance(value, dict) and isinstance(merged.get(section), dict):
                    merged[section].update(value)
                else:
                    merged[section] = value
        return cls.from_dict(merged).override(overrides or {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """The inverse of `to_dict`; unknown keys and wrong types are errors."""
        return _build(cls, data, prefix="")

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values, ready for JSON."""
        return _plain(dataclasses.asdict(self))

    def to_toml(self) -> str:
        """The settings that differ from the defaults, as a file a person may edit."""
        sections: dict[str, list[str]] = {}
        for s in self.settings():
            if s.value != s.default:
                section, _, key = s.name.rpartition(".")
                # JSON's numbers, text, lists, true and false are TOML's too.
                value = json.dumps(_plain(s.value), ensure_ascii=False)
                sections.setdefault(section, []).append(f"{key} = {value}")
        head = "# Settings of this workspace; what is left out has its default.\n"
        tables = [
            (f"\n[{name}]\n" if name else "") + "\n".join(lines) + "\n"
            for name, lines in sorted(sections.items())
        ]
        return head + "".join(tables)

    def override(self, overrides: Mapping[str, Any]) -> Config:
        """A copy with ``{"ppo.kl_weight": "0.1"}`` applied; text is read as the field's type."""
        data = self.to_dict()
        valid = {s.name: s for s in self.settings()}
        for name, value in overrides.items():
            if name not in valid:
                raise ValueError(_unknown(name, list(valid)))
            parsed = _parse(value, valid[name].type) if isinstance(value, str) else value
            section, _, key = name.rpartition(".")
            (data[section] if section else data)[key] = parsed
        return Config.from_dict(data)

    def settings(self) -> Iterator[SettingInfo]:
        """Every setting as ``section.name`` with value, default, type and help."""
        yield from _settings(self, prefix="")


@dataclass(frozen=True, kw_only=True)
class SettingInfo:
    """One setting as a user sees it."""

    name: str
    value: Any
    default: Any
    type: Any
    help: str
    choices: tuple[str, ...] | None


def assignments(items: Sequence[str]) -> dict[str, str]:
    """``["ppo.lr=1e-6"]`` as a mapping; ValueError for one without a value."""
    for item in items:
        if "=" not in item:
            raise ValueError(f"--set {item} needs a value, as in --set ppo.kl_weight=0.05")
    parts = (item.partition("=") for item in items)
    return {name.strip(): value for name, _, value in parts}


def _settings(section: Any, prefix: str) -> Iterator[SettingInfo]:
    hints = typing.get_type_hints(type(section))
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(value, prefix=f"{f.name}.")
        else:
            hint = hints[f.name]
            literal = typing.get_args(hint) if typing.get_origin(hint) is Literal else None
            yield SettingInfo(
                name=prefix + f.name,
                value=value,
                default=f.default,
                type=hint,
                help=f.metadata.get("help", ""),
                choices=literal or f.metadata.get("choices"),
            )


def _build(cls: Any, data: Mapping[str, Any], prefix: str) -> Any:
    known = typing.get_type_hints(cls)
    hints = {f.name: known[f.name] for f in dataclasses.fields(cls)}
    arguments = {}
    for key, value in data.items():
        if key not in hints:
            raise ValueError(_unknown(prefix + key, [prefix + name for name in hints]))
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ValueError(f"{prefix}{key} is a section; write [{key}] and its settings")
            arguments[key] = _build(hint, value, prefix=f"{key}.")
        else:
            arguments[key] = _checked(prefix + key, value, hint)
    return cls(**arguments)


def _checked(name: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type, or an error that says what would be right."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        others = [a for a in arguments if a is not type(None)]
        return _checked(name, value, others[0])
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}={value!r} must be a list")
        return tuple(_checked(name, item, arguments[0]) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name}={value!r} must be a table")
        return {str(k): _checked(f"{name}.{k}", v, arguments[1]) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ValueError(f"{name}={value!r} must be {_TYPE_NAMES.get(hint, hint)}")
    if hint is int and abs(value) >= 2**63:
        raise ValueError(f"{name}={value!r} is more than a computer counts")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _parse(text: str, hint: Any) -> Any:
    """Read text as TOML would; words that are not TOML count as text."""
    if hint is str or typing.get_origin(hint) is Literal:
        return text
    if text.strip().lower() in ("none", "null", "") and type(None) in typing.get_args(hint):
        return None
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return _parse_float(text)


def _parse_float(text: str) -> float | str:
    # TOML wants 1.0e-5 where people type 1e-5 or .5
    try:
        return float(text)
    except ValueError:
        return text


def _unknown(name: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
    return f"there is no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
