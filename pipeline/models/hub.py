"""Checks whether a named model is available, and explains why not.  Does not import torch.

A name is a local directory or a Hugging Face id such as ``Qwen/Qwen3-0.6B``.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    NotASafetensorsRepoError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from safetensors import SafetensorError, safe_open

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tokenizer_config.json",
)


class ModelUnavailable(ValueError):
    """A model cannot be loaded; the message says why and what to do."""


@contextmanager
def explaining_load_errors(name: str) -> Iterator[None]:
    """Turn every error that a library raises while it reads the model `name` into `ModelUnavailable`.

    Files can have any content, so libraries raise any kind of error.  Out-of-memory errors pass.
    """
    try:
        yield
    except (ModelUnavailable, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        raise ModelUnavailable(explain(name, error)) from error


def is_local(name: str) -> bool:
    """Whether `name` is a path: it exists, or it is not written like a hub id."""
    looks_like_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name
    return looks_like_path or Path(name).is_dir()


def require_model(name: str) -> str:
    """`name` with ``~`` expanded; raises `ModelUnavailable` if the model is not available.

    Asks the hub only whether the account may read the model, and downloads nothing.
    """
    if not name.strip():
        raise ModelUnavailable("a model needs a name: a local directory or a Hugging Face id")
    if is_local(name):
        path = Path(name).expanduser()
        _require_directory(path)
        return str(path)
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return name  # downloaded before, so it is available without a network
        HfApi().auth_check(name)
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error
    return name


def require_reward_model(name: str) -> None:
    """`require_model`, and `ModelUnavailable` unless the model is a reward model.

    Reward models are our own, and decoders of transformers' `AutoModelForSequenceClassification` with
    one label, whose layer ``score`` reads the last token.  Of a model on the hub only the
    configuration and the names of the weights are read.
    """
    path = require_model(name)
    config = _configuration(path, name)
    named = config.get("architectures")
    kinds = list(map(str, named)) if isinstance(named, list) and named else ["model of no class"]
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise ModelUnavailable(
            f"{name} is a {kinds[0]}, not a reward model; name one whose class is a "
            "…ForSequenceClassification with one label"
        )
    # transformers does not write the default, two labels.
    ids = config.get("id2label")
    labels = len(ids) if isinstance(ids, dict) else config.get("num_labels", 2)
    if labels != 1:
        raise ModelUnavailable(
            f"{name} outputs {labels} numbers per text; a reward model outputs one (num_labels=1)"
        )
    known = {} if "reward_likelihood" in config else _weights_of(path, name)
    if known and "score.weight" not in known:
        raise ModelUnavailable(
            f"{name} is a {kinds[0]} without a layer called score, which a reward model applies to "
            "the last token; name a decoder, such as a LlamaForSequenceClassification"
        )


def _weights_of(path: str, name: str) -> set[str]:
    """The names of a model's weights; empty if they are not in safetensors files."""
    if not is_local(path):
        try:
            return set(HfApi().get_safetensors_metadata(path).weight_map)
        except (NotASafetensorsRepoError, LocalEntryNotFoundError, OfflineModeIsEnabled):
            return set()  # an error, if any, appears when the model is loaded
        except Exception as error:
            raise ModelUnavailable(explain(name, error)) from error
    found: set[str] = set()
    for file in Path(path).glob("*.safetensors"):
        with safe_open(file, framework="numpy") as weights:
            found |= set(weights.keys())
    return found


def _configuration(path: str, name: str) -> dict[str, Any]:
    """The config.json of the model `name`, which is a directory or a hub id."""
    try:
        if is_local(path):
            return _read_config(Path(path))
        if isinstance(known := try_to_load_from_cache(path, "config.json"), str):
            return json.loads(Path(known).read_text(encoding="utf-8"))
        # Not into the cache: a model with its configuration there counts as downloaded.
        with TemporaryDirectory() as folder:
            file = hf_hub_download(path, "config.json", local_dir=folder)
            return json.loads(Path(file).read_text(encoding="utf-8"))
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error


def explain(name: str, error: BaseException) -> str:
    """A sentence that says why the model `name` could not be loaded and what to do."""
    match _root(error):
        case GatedRepoError():
            return (
                f"the model {name} is gated: accept its terms at https://huggingface.co/{name} "
                "and set HF_TOKEN to an access token of the account that did"
            )
        case RepositoryNotFoundError():
            return (
                f"the Hugging Face hub has no model {name}, or it is private: check the spelling, "
                "or set HF_TOKEN to an access token that may read it"
            )
        case HFValidationError():
            return f"{name!r} is neither a local directory nor a Hugging Face id (owner/name)"
        case LocalEntryNotFoundError() | OfflineModeIsEnabled():
            return _unreachable(name)
        case EntryNotFoundError():
            return f"{name} on the Hugging Face hub has no config.json, so it is not a model"
        case HfHubHTTPError():
            return f"the Hugging Face hub refused the model {name}: {_first_line(error)}"
        case ConnectionError() | TimeoutError():
            return _unreachable(name)
        case SafetensorError():
            return (
                f"a weights file of the model {name} is damaged ({_first_line(error)}): delete the "
                "model from the Hugging Face cache (`hf cache rm`), and it is downloaded again"
            )
        case pickle.UnpicklingError() | EOFError():
            return (
                f"a weights file of the model {name} is damaged or has code, which is never run: "
                "get the model with its weights in model.safetensors"
            )
    # httpx, httpx2 and so on: the hub's HTTP library, whose errors are network errors.
    if type(error).__module__.startswith("httpx"):
        return _unreachable(name)
    if not isinstance(error, (OSError, ValueError, ImportError)):
        kind = type(error).__name__
        return (
            f"the model {name} cannot be loaded, because its files are inconsistent "
            f"({kind}: {_first_line(error)}): download the model again"
        )
    return f"the model {name} cannot be loaded: {_first_line(error)}"


def _unreachable(name: str) -> str:
    return (
        f"the model {name} is not on this machine and the Hugging Face hub cannot be reached: "
        "check the network (and HF_HUB_OFFLINE), or give the path of a local copy"
    )


def _require_directory(path: Path) -> None:
    if not path.is_dir():
        raise ModelUnavailable(f"there is no model directory {path}")
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"{path} has no config.json, so it is not a Hugging Face model")
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelUnavailable(f"{path} has no weights (model.safetensors)")
    if not any((path / file).is_file() for file in _TOKENIZER):
        raise ModelUnavailable(f"{path} has no tokenizer (tokenizer.json)")
    _require_own_code(path, _read_config(path))
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy"):  # reads where the tensors are, not the tensors
                pass
        except (SafetensorError, OSError) as error:
            raise ModelUnavailable(
                f"{file} is damaged ({_first_line(error)}): copy that file, or download the model, again"
            ) from error


def _read_config(path: Path) -> dict[str, Any]:
    """The config.json of a directory; `ModelUnavailable` unless it is an object of JSON."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{file} cannot be read: {_first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelUnavailable(
            f"{file} does not contain a JSON object, so it is not a Hugging Face model"
        )
    return config


def _require_own_code(path: Path, config: dict[str, Any]) -> None:
    """ModelUnavailable if `config` names attention code on the hub, which transformers would run."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:  # no recursion, because the file may be nested to any depth
        key, value = waiting.pop()
        inside = key.endswith("attn_implementation")
        if inside and isinstance(value, str) and "/" in value:
            raise ModelUnavailable(
                f"{path / 'config.json'} names code on the Hugging Face hub ({key}={value!r}), "
                f"which is never run: remove {key} from it"
            )
        if isinstance(value, dict):
            waiting += [(key if inside else name, each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(key, each) for each in value]


def _root(error: BaseException) -> BaseException:
    """The hub's own error, which libraries wrap in others."""
    hub_errors = (
        *(HfHubHTTPError, HFValidationError, EntryNotFoundError),
        *(LocalEntryNotFoundError, OfflineModeIsEnabled),
    )
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, hub_errors):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    # A first line that ends with a colon needs the second.
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else type(error).__name__


def base_model_path(name: str) -> str:
    """The model's path or hub id: `demo` becomes the embedded model, a local directory absolute."""
    if name == "demo":
        return str(Path(__file__).parents[1] / "demo" / "model")
    return str(Path(name).resolve()) if Path(name).is_dir() else name
