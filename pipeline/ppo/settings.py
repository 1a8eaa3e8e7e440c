"""Settings: dataclass fields with a description, a range and checks.  Does not import torch."""

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
from typing import Any, ClassVar, Literal


def setting(
    default: Any, help: str, *, source: str = "", low: float | None = None,
    high: float | None = None, above: float | None = None,
) -> Any:  # fmt: skip
    """A dataclass field with its description and range.

    `low` and `high` are the smallest and the largest accepted value; `above` is an exclusive lower
    bound.  `source` names the source of the default.  Choices come from the field's `Literal` type.
    """
    bounds = {"low": low, "high": high, "above": above}
    return field(default=default, metadata={"help": help, "source": source} | bounds)


class Section:
    """A frozen dataclass of settings that checks and converts its values on construction.

    Raises ValueError with a sentence that names the setting, its value and what is accepted.
    """

    section: ClassVar[str]
    """The name before the dot, as in ``ppo.lr``; empty for settings that belong to no section."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if dataclasses.is_dataclass(value):
                continue
            name = f"{self.section}.{f.name}".lstrip(".")
            value = checked(name, value, hints[f.name])
            object.__setattr__(self, f.name, value)
            if isinstance(value, dict):
                numbers = tuple(value.values())
            else:
                numbers = value if isinstance(value, tuple) else (value,)
            for number in numbers:
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    _check_range(f"{name}={value}", number, f.metadata)


def _check_range(setting: str, number: float, range: Mapping[str, Any]) -> None:
    low, high, above = (range.get(name) for name in ("low", "high", "above"))
    require(math.isfinite(number), f"{setting} must be a finite number")
    if low is not None and high is not None:
        require(low <= number <= high, f"{setting} must be in [{low}, {high}]")
    elif above is not None and high is not None:
        require(above < number <= high, f"{setting} must be in ({above}, {high}]")
    elif low is not None:
        require(number >= low, f"{setting} must be at least {low}")
    elif above is not None:
        require(number > above, f"{setting} must be more than {above}")
    elif high is not None:
        require(number <= high, f"{setting} must be at most {high}")


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, kw_only=True)
class SettingInfo:
    """One setting with its value and description."""

    name: str
    value: Any
    default: Any
    type: Any
    help: str
    choices: tuple[str, ...] | None


def assignments(items: Sequence[str]) -> dict[str, str]:
    """``["ppo.lr=1e-6"]`` as a mapping; ValueError for an item without ``=``."""
    for item in items:
        if "=" not in item:
            raise ValueError(f"--set {item} needs a value, as in --set ppo.kl_weight=0.05")
    parts = (item.partition("=") for item in items)
    return {name.strip(): value for name, _, value in parts}


def settings_of(section: Any, prefix: str) -> Iterator[SettingInfo]:
    """All settings of a section and of the sections in it."""
    hints = typing.get_type_hints(type(section))
    for f in dataclasses.fields(section):
        value = getattr(section, f.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, prefix=f"{f.name}.")
        else:
            hint = hints[f.name]
            literal = typing.get_args(hint) if typing.get_origin(hint) is Literal else None
            yield SettingInfo(
                name=prefix + f.name,
                value=value,
                default=_default(f),
                type=hint,
                help=f.metadata.get("help", ""),
                choices=literal,
            )


def _default(f: dataclasses.Field[Any]) -> Any:
    made = f.default_factory is not dataclasses.MISSING
    return f.default_factory() if made else f.default  # type: ignore[misc]


def build(cls: Any, data: Mapping[str, Any], prefix: str) -> Any:
    """A section, or the sections of `Config`, from plain values; ValueError for an unknown name."""
    known = typing.get_type_hints(cls)
    hints = {f.name: known[f.name] for f in dataclasses.fields(cls)}
    arguments = {}
    for key, value in data.items():
        if key not in hints:
            raise ValueError(unknown(prefix + key, [prefix + name for name in hints]))
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ValueError(f"{prefix}{key} is a section; write [{key}] and its settings")
            value = build(hints[key], value, prefix=f"{key}.")
        arguments[key] = value
    return cls(**arguments)


def flat(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Plain nested values of `Config` by dotted name; an unknown section stays whole."""
    hints = typing.get_type_hints(cls)
    found: dict[str, Any] = {}
    for key, value in data.items():
        if dataclasses.is_dataclass(hints.get(key)) and isinstance(value, Mapping):
            found |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            found[key] = value
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (found.setdefault(section, {}) if section else found)[key] = value
    return found


def checked(name: str, value: Any, hint: Any) -> Any:
    """`value` converted to the type `hint`; ValueError that names what is accepted."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        others = [a for a in arguments if a is not type(None)]
        return checked(name, value, others[0])
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}={value!r} must be a list")
        return tuple(checked(name, item, arguments[0]) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name}={value!r} must be a table")
        return {str(k): checked(f"{name}.{k}", v, arguments[1]) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ValueError(f"{name}={value!r} must be {_TYPE_NAMES.get(hint, hint)}")
    if hint is int and abs(value) >= 2**63:
        raise ValueError(f"{name}={value!r} exceeds 64 bits")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def parse(text: str, hint: Any) -> Any:
    """Text as a TOML value; text that is not TOML stays text."""
    if hint is str or typing.get_origin(hint) is Literal:
        return text
    if text.strip().lower() in ("none", "null", "") and type(None) in typing.get_args(hint):
        return None
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return _parse_float(text)


def _parse_float(text: str) -> float | str:
    # TOML does not accept .5
    try:
        return float(text)
    except ValueError:
        return text


def unknown(name: str, valid: list[str]) -> str:
    """A sentence on an unknown setting, with the most similar valid name."""
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
    return f"there is no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def toml(value: Any) -> str:
    """A plain value in TOML syntax."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(k, ensure_ascii=False)} = {toml(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    # Numbers, text, lists, true and false have the same syntax in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> Any:
    """`value` with tuples as lists, at any depth of dicts."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
