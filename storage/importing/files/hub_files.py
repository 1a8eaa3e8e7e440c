"""Datasets of the Hugging Face hub as files to import: ``hf://datasets/OWNER/NAME``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi

# The HTTPError of httpx or httpx2, whichever this version of huggingface_hub uses.
from huggingface_hub.errors import HTTPError, RevisionNotFoundError

from storage.importing.files.filetypes import READABLE

PREFIX = "hf://datasets/"
_CONVERTED = "refs/convert/parquet"
"""The branch with the hub's own parquet copy: CONFIG/SPLIT/0000.parquet."""
_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?")


@contextmanager
def local_file(
    address: str | Path, *, folder: Path | None = None, max_bytes: int | None = None
) -> Iterator[Path]:
    """The file or directory to import: of a dataset of the hub, a copy that is deleted afterwards.

    The copy is in `folder`, or in a temporary folder of the system.  ValueError if it would exceed
    `max_bytes`; nothing is downloaded then.

    ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``, where PATH is a file, or CONFIG or CONFIG/SPLIT.
    The token in HF_TOKEN is used if there is one.  Raises ValueError if the hub refuses, or if it
    is not clear which of several splits is meant.
    """
    if not str(address).startswith(PREFIX):
        yield Path(address)
        return
    found = _ADDRESS.fullmatch(str(address))
    # A path with ".." could lead out of the folder.
    if not found or ".." in str(address).split("/"):
        raise ValueError(f"{address} must be hf://datasets/OWNER/NAME, with /CONFIG/SPLIT or /FILE")
    repository, revision, path = found.groups()
    with TemporaryDirectory(prefix="kitestring-hub-", dir=folder) as place:
        try:
            # The name becomes the source of the prompts.
            yield _download(
                Path(place) / repository.replace("/", "--"),
                repository,
                revision,
                path or "",
                max_bytes,
            )
        except (HTTPError, OSError) as problem:
            reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            raise ValueError(
                f"{repository} cannot be downloaded from the hub: {reason} (a private or gated dataset "
                "needs HF_TOKEN)"
            ) from problem


def _download(
    folder: Path, repository: str, revision: str | None, path: str, max_bytes: int | None
) -> Path:
    hub = HfApi()
    if Path(path).suffix in READABLE:
        _require_small(hub, repository, revision, [path], max_bytes)
        return Path(
            hub.hf_hub_download(
                repository, path, repo_type="dataset", revision=revision, local_dir=folder
            )
        )
    if revision is None:
        try:
            files = hub.list_repo_files(repository, repo_type="dataset", revision=_CONVERTED)
            revision = _CONVERTED
        except RevisionNotFoundError:
            files = hub.list_repo_files(repository, repo_type="dataset")
    else:
        files = hub.list_repo_files(repository, repo_type="dataset", revision=revision)
    chosen = _chosen(repository, [name for name in files if name.endswith(".parquet")], path)
    _require_small(hub, repository, revision, chosen, max_bytes)
    for name in chosen:
        hub.hf_hub_download(
            repository, name, repo_type="dataset", revision=revision, local_dir=folder
        )
    return folder


def _require_small(
    hub: HfApi, repository: str, revision: str | None, names: Sequence[str], max_bytes: int | None
) -> None:
    if max_bytes is None:
        return
    found = hub.get_paths_info(repository, list(names), repo_type="dataset", revision=revision)
    size = sum(getattr(each, "size", 0) for each in found)
    if size > max_bytes:
        raise ValueError(
            f"{repository} has {size / 1e6:,.0f} MB to download; the limit for imports from the page "
            f"is {max_bytes / 1e6:,.0f} MB. Import it from a terminal with `python launch.py import`"
        )


def _chosen(repository: str, files: Sequence[str], path: str) -> list[str]:
    """The files of one split: the one named, the only one, or `train`."""
    splits: dict[str, list[str]] = {}
    for name in files:
        splits.setdefault(_split(name), []).append(name)
    if not splits:
        raise ValueError(
            f"{repository} has no parquet files; name a file, as in hf://datasets/{repository}/data.jsonl"
        )
    fitting = [name for name in splits if name == path or name.startswith(f"{path}/") or not path]
    if len(fitting) > 1:
        fitting = [name for name in fitting if name.split("/")[-1] == "train"]
    if len(fitting) != 1:
        raise ValueError(
            f"it is not clear which split of {repository} is meant; add one of these after its name: "
            f"{', '.join(splits)}"
        )
    return splits[fitting[0]]


def _split(name: str) -> str:
    """`config/train` of config/train/0000.parquet, `data/train` of data/train-00000-of-00002.parquet."""
    folder, _, file = name.rpartition("/")
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.parquet", "", file)
    return folder if stem.isdigit() else f"{folder}/{stem}".lstrip("/")
