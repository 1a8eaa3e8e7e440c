"""Upload of a dataset to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, get_token

from storage.exporting.hub_calls import check_repository, check_token, hub_calls

_DENIED = "check that HF_TOKEN is set and can write there"


def push(folder: Path, repository: str, *, private: bool) -> None:
    """Upload a folder as a dataset repository, in one commit, with the token in HF_TOKEN.

    Raises ValueError if the hub refuses, or if `private` and the repository is public.
    """
    check_repository(repository)
    if token := get_token():
        check_token(token, "HF_TOKEN")
    hub = HfApi()
    with hub_calls(repository, token, denied=_DENIED):
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        is_public = private and not hub.repo_info(repository, repo_type="dataset").private
    if is_public:
        raise ValueError(
            f"{repository} is already a public dataset, and this export is private; choose another "
            "name, or use --public"
        )
    with hub_calls(repository, token, denied=_DENIED):
        hub.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=folder,
            commit_message="Export of judgments",
        )
