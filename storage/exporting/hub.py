"""Upload of a dataset to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi

# The HTTPError of httpx or httpx2, whichever this version of huggingface_hub uses.
from huggingface_hub.errors import HTTPError


def push(folder: Path, repository: str, *, private: bool) -> None:
    """Upload a folder as a dataset repository, in one commit, with the token in HF_TOKEN.

    Raises ValueError if the hub refuses, or if `private` and the repository is public.
    """
    hub = HfApi()
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        if private and not hub.repo_info(repository, repo_type="dataset").private:
            raise ValueError(
                f"{repository} is already a public dataset, and this export is private; choose another "
                "name, or use --public"
            )
        hub.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Export of judgments",
        )
    except (HTTPError, OSError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise ValueError(
            f"the hub refused {repository}: {reason} (check that HF_TOKEN is set and can write there)"
        ) from problem
