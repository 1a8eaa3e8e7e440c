"""A setting that documents itself, and the check of one value.  Loads no torch."""

import math
from dataclasses import field
from typing import Any


def setting(
    default: Any,
    help: str,
    *,
    source: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field that documents itself: `low <= value <= high`, `value > above`."""
    bounds = {"low": low, "high": high, "above": above}
    metadata: dict[str, Any] = {"help": help, "source": source}
    metadata |= {name: bound for name, bound in bounds.items() if bound is not None}
    if choices:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


def check_field(name: str, value: Any, kind: type, rules: Any) -> None:
    """Raise one clear sentence unless `value` has the type and range of its field."""
    said = f"ppo.{name}={value!r}"
    # bool is an int to Python, but `updates=True` is a mistake.
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{said} must be of type {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{said} must be a finite number")
    if "choices" in rules and value not in rules["choices"]:
        raise ValueError(f"{said} must be one of {', '.join(rules['choices'])}")
    if "low" in rules and value < rules["low"]:
        raise ValueError(f"{said} must be at least {rules['low']}")
    if "above" in rules and value <= rules["above"]:
        raise ValueError(f"{said} must be greater than {rules['above']}")
    if "high" in rules and value > rules["high"]:
        raise ValueError(f"{said} must be at most {rules['high']}")
