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

from storage.importing.filetypes import READABLE

PREFIX = "hf://datasets/"
_CONVERTED = "refs/convert/parquet"
"""The branch with the hub's own parquet copy: CONFIG/SPLIT/0000.parquet."""
_ADDRESS = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?")


@contextmanager
def local_file(address: str | Path) -> Iterator[Path]:
    """The file or directory to import: of a dataset of the hub, a copy that is deleted afterwards.

    ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``, where PATH is a file, or CONFIG or CONFIG/SPLIT.
    The token in HF_TOKEN is used if there is one.  Raises ValueError if the hub refuses, or if it
    is not clear which of several splits is meant.
    """
    if not str(address).startswith(PREFIX):
        yield Path(address)
        return
    found = _ADDRESS.fullmatch(str(address))
    if not found:
        raise ValueError(f"{address} must be hf://datasets/OWNER/NAME, with /CONFIG/SPLIT or /FILE")
    repository, revision, path = found.groups()
    with TemporaryDirectory(prefix="kitestring-hub-") as folder:
        try:
            # The name becomes the source of the prompts.
            yield _download(
                Path(folder) / repository.replace("/", "--"), repository, revision, path or ""
            )
        except (HTTPError, OSError) as problem:
            reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            raise ValueError(
                f"{repository} cannot be downloaded from the hub: {reason} (a private or gated dataset "
                "needs HF_TOKEN)"
            ) from problem


def _download(folder: Path, repository: str, revision: str | None, path: str) -> Path:
    hub = HfApi()
    if Path(path).suffix in READABLE:
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
    for name in chosen:
        hub.hf_hub_download(
            repository, name, repo_type="dataset", revision=revision, local_dir=folder
        )
    return folder


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
