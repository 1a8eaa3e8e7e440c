"""Upload of a dataset to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi

# httpx's or httpx2's, whichever this version of the hub's library speaks.
from huggingface_hub.errors import HTTPError


def push(folder: Path, repository: str, *, private: bool) -> None:
    """Upload a folder as a dataset repository, in one commit, with the token of HF_TOKEN.

    Raises ValueError if the hub refuses, and for a public repository if `private`.
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
