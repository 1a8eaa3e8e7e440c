"""Push of a trained model to the Hugging Face hub: what is uploaded, its card, and the upload.

The token is that of the environment variable HF_TOKEN or of the file `TOKEN` in the workspace.  It is
in no answer, message or log.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from storage.analysis.agreement import agreement
from storage.control import Control
from storage.engine.database import Database
from storage.errors import NotFound
from storage.exporting import card_evidence
from storage.exporting.hub_calls import check_repository, check_token, hub_calls
from storage.exporting.model_card import REPOSITORY, CardFacts, card
from storage.gate_report import GateReport, Standing
from storage.lineage import tree
from storage.records import ModelVersion
from storage.reports import Evaluation, RewardReport, RewardVerdict, from_json
from storage.tables import audit, iterations, models

TOKEN = "hub-token"
"""The file in the workspace with a token of the hub; only its owner may read it."""
_CARD = "README.md"
_DENIED = "check that the token can write there"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Verdicts:
    """What the pipeline says about models: the gate's report, and the report on a reward model."""

    gate: Callable[[], GateReport]
    reward: Callable[[str], RewardReport]


@dataclass(frozen=True)
class UploadedFile:
    """A file of the upload and its size."""

    name: str
    bytes: int


@dataclass(frozen=True)
class PushPlan:
    """What a push of `model` uploads: its files and its `card`, which becomes README.md."""

    model: str
    files: tuple[UploadedFile, ...]
    bytes: int
    card: str


@dataclass(frozen=True)
class Pushed:
    """A finished push: the repository and its address."""

    model: str
    repository: str
    url: str
    private: bool
    files: int
    bytes: int


def pushable(db: Database) -> list[ModelVersion]:
    """The models that were trained here and whose files are here, the newest first."""
    return [m for m in reversed(models.listing(db)) if _folder(db, m) is not None]


def plan(db: Database, verdicts: Verdicts, model: str, *, repository: str = REPOSITORY) -> PushPlan:
    """What a push to `repository` would upload.  NotFound for an unknown model, ValueError for one without files."""
    versions = {version.id: version for version in models.listing(db)}
    version = versions[tree.find_model(versions, model)]
    folder = _folder(db, version)
    if folder is None:
        raise ValueError(
            f"{model} has no files in this workspace; only models that were trained here can be pushed"
        )
    paths = [path for path in _paths(folder) if path.name != _CARD or path.parent != folder]
    files = [UploadedFile(str(p.relative_to(folder)), p.stat().st_size) for p in paths]
    text = card(version, _facts(db, verdicts, version, folder), repository=repository)
    files.append(UploadedFile(_CARD, len(text.encode())))
    return PushPlan(version.id, tuple(files), sum(each.bytes for each in files), text)


def push_model(
    db: Database,
    verdicts: Verdicts,
    model: str,
    repository: str,
    *,
    private: bool = True,
    control: Control | None = None,
) -> Pushed:
    """Upload a model as a repository, in one commit.

    `control` counts bytes, and can cancel the push between two files: the repository exists then, and
    has no commit.  Raises ValueError if the hub refuses, or if `private` and the repository is public.
    """
    check_repository(repository)
    control, planned = control or Control(), plan(db, verdicts, model, repository=repository)
    token = hub_token(db.workspace)
    control.of_bytes = planned.bytes
    hub = HfApi(token=token)
    with hub_calls(repository, token, denied=_DENIED):
        hub.create_repo(repository, private=private, exist_ok=True)
        is_public = private and not hub.repo_info(repository).private
    if is_public:
        raise ValueError(
            f"{repository} is already a public repository, and this push is private; choose another "
            "name, or push it as public"
        )
    url = _commit(hub, token, db, planned, repository, control)
    audit.note(db, "push", planned.model, repository=repository, private=private)
    return Pushed(planned.model, repository, url, private, len(planned.files), planned.bytes)


def _commit(
    hub: HfApi, token: str, db: Database, planned: PushPlan, repository: str, control: Control
) -> str:
    folder = _folder(db, models.get(db, planned.model))
    assert folder is not None
    operations: list[CommitOperationAdd] = []
    for file in planned.files:
        control.require_wanted()
        content = planned.card.encode() if file.name == _CARD else str(folder / file.name)
        operation = CommitOperationAdd(file.name, content)
        # Large files are sent one by one, so that somebody can follow; small ones go with the commit.
        with hub_calls(repository, token, denied=_DENIED):
            hub.preupload_lfs_files(repository, [operation])
        operations.append(operation)
        control.sent += file.bytes
    control.start_storing(len(operations))  # from here on it cannot be cancelled
    message = f"{planned.model}, trained with Kitestring"
    with hub_calls(repository, token, denied=_DENIED):
        hub.create_commit(repository, operations, commit_message=message)
    return f"{hub.endpoint}/{repository}"


def hub_token(workspace: Path) -> str:
    """The token for a push; ValueError if there is none, or if others can read its file."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        check_token(token, "HF_TOKEN")
        return token
    file = workspace / TOKEN
    if not file.is_file():
        raise ValueError(
            f"there is no token for the hub; set HF_TOKEN and restart the server, or write a token into the "
            f"file {TOKEN} of the workspace"
        )
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ValueError(f"other users of this machine can read {file}; run `chmod 600 {file}`")
    if not (token := file.read_text(encoding="utf-8-sig", errors="replace").strip()):
        raise ValueError(f"{file} is empty; write a token of the hub into it")
    check_token(token, str(file))
    return token


def _folder(db: Database, version: ModelVersion) -> Path | None:
    """The model's own directory in the workspace, if it has files."""
    if version.role not in ("sft", "policy", "reward"):
        return None
    own = (db.workspace / models.MODELS).resolve()
    folder = (db.workspace / version.path).resolve() if version.path else own
    if own not in folder.parents or not folder.is_dir() or not _paths(folder):
        return None
    return folder


def _paths(folder: Path) -> list[Path]:
    """Regular files of a model; hidden ones and links are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _networks(folder: Path) -> int:
    """The number of networks of a reward model, which its first one notes; 1 for other models."""
    try:
        return int(json.loads((folder / "config.json").read_text()).get("reward_networks", 1))
    except (OSError, ValueError):
        return 1


def _base(db: Database) -> str | None:
    """The id on the hub of the model that training started from, if it has one."""
    first = next(
        (m for m in models.listing(db, role="sft") if not m.path.startswith(models.MODELS)), None
    )
    path = first.path if first else ""
    return path if _REPOSITORY.fullmatch(path) and not (db.workspace / path).exists() else None


def _known(db: Database, model: str | None) -> ModelVersion | None:
    try:
        return models.get(db, model) if model else None
    except NotFound:
        return None


def _facts(db: Database, verdicts: Verdicts, version: ModelVersion, folder: Path) -> CardFacts:
    ancestry = tree.lineage(db, version.id)  # which takes a snapshot of its own
    with db.snapshot():
        known = models.listing(db)
        policies = [each.id for each in known if each.role == "policy"]
        own = version.role == "reward"
        reward_model = version if own else _known(db, version.reward_model)
        snapshot = reward_model.snapshot if reward_model else None
        policy = version.role == "policy"
        earlier = policies[: policies.index(version.id)] if policy else []
        return CardFacts(
            base=_base(db),
            lineage=tree.render(ancestry),
            networks=_networks(folder),
            names={each.id: each.name for each in known},
            previous=earlier[-1] if earlier else None,
            reward_model=None if own else reward_model,
            standing=_standing(verdicts.gate(), version.id) if policy else None,
            evaluation=_evaluation(db, version.id),
            judged=card_evidence.of_policy(db, version.id) if policy else None,
            learned=card_evidence.of_snapshot(db, snapshot) if snapshot else None,
            agreement=agreement(db),
            verdict=_quality(verdicts, reward_model),
        )


def _standing(report: GateReport, policy: str) -> Standing | None:
    return next((each for each in report.policies if each.policy == policy), None)


def _evaluation(db: Database, policy: str) -> Evaluation:
    """The evaluation of the iteration that made the policy."""
    made = [each for each in iterations.listing(db) if each.policy_produced == policy]
    return from_json(Evaluation, made[-1].evaluation) if made else Evaluation()


def _quality(verdicts: Verdicts, reward_model: ModelVersion | None) -> RewardVerdict | None:
    """The verdict on a reward model; None for one that was not trained here."""
    try:
        return verdicts.reward(reward_model.id).verdict if reward_model else None
    except ValueError:
        return None
