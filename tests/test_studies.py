"""What all studies share: their folders, and who may work in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.rundir import Job, RunDirectory
from pipeline.studies import folder_of, held, run_to_end
from tests.stage_inputs import make_job

MODELS = {"policy": "p", "reference": "r"}


def start(path: Path, job: Job) -> RunDirectory:
    """Would start a worker; every test that calls it is refused before."""

    def fill(_inputs: Path) -> None:
        raise AssertionError("the inputs of a run that is not ours were written")

    return run_to_end(path, job, fill=fill, progress=lambda _: None)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a/b", "", ".", "..", ".git", "x\n", "-x"])
def test_a_study_stays_in_its_place(name: str):
    with pytest.raises(ValueError, match="must be a plain folder name: letters, digits and"):
        folder_of(Path("sweeps"), name)


def test_ordinary_names_are_folders():
    for name in ("kl_weight", "seed-1", "β = 0.1", "2026.11"):
        assert folder_of(Path("sweeps"), name) == Path("sweeps") / name


def test_a_folder_has_one_command_at_a_time(tmp_path: Path):
    with held(tmp_path / "s"):
        with (
            pytest.raises(
                RuntimeError, match=r"another command is at work in .*/s; .* another --x"
            ),
            held(tmp_path / "s", option="--x"),
        ):
            pass
        with held(tmp_path / "t"):
            pass
    with held(tmp_path / "s"):
        pass


def test_a_worker_that_lives_on_is_left_alone(tmp_path: Path):
    """Its starter was killed; the run is still its own."""
    directory = RunDirectory.create(tmp_path / "run", make_job("ppo", MODELS))
    directory.write_error("as it was")
    before = {path: path.read_bytes() for path in directory.path.glob("*.json")}
    with (
        directory.hold_lock(),
        pytest.raises(RuntimeError, match="another worker is already running in"),
    ):
        start(directory.path, make_job("ppo", MODELS))
    assert {path: path.read_bytes() for path in directory.path.glob("*.json")} == before


def test_what_differs_is_named_and_the_machine_is_not(tmp_path: Path):
    job = make_job("ppo", MODELS)
    RunDirectory.create(tmp_path, job).write_result({})
    machine = make_job("ppo", MODELS, worker__nice=9, worker__threads=2)
    assert start(tmp_path, machine).result() == {}
    other = make_job("ppo", MODELS | {"policy": "q"}, ppo__lr=0.5, worker__nice=9)
    with pytest.raises(
        ValueError,
        match=r"\(ppo.lr: 3e-06 → 0.5; the policy model: p → q\); give this one another --name",
    ):
        start(tmp_path, other)
