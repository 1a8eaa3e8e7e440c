"""Studies over HTTP and from Python: started, read, cancelled, continued; and who may do so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kitestring.client import Studio, StudioError
from tests.helpers.served_studio import ServedStudio, served_studio
from tests.helpers.study_world import fill_for_studies


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStudio]:
    workspace = tmp_path_factory.mktemp("studies") / "w"
    fill_for_studies(workspace, ppo__updates=4)
    settings = {"worker.threads": "1", "worker.nice": "0"}
    with served_studio(workspace, settings=settings, looping=True) as served:
        yield served


@pytest.fixture
def studio(served: ServedStudio) -> Iterator[Studio]:
    with Studio(served.url, token=served.token("Ruth")) as studio:
        yield studio


def test_a_sweep_from_python(served: ServedStudio, studio: Studio, tmp_path: Path):
    offer = studio.studies.offer()
    assert (offer.run, offer.iteration, offer.reason) == ("policy", 2, None)
    asked = {"kl_weight": [0, 0.3], "kl_budget": 2, "settings": {"ppo.lr": 1e-3}}
    made = studio.studies.start("sweep", "β 1", **asked)
    assert (made.id, made.status, made.by, made.planned) == ("sweep-β 1", "running", "Ruth", 2)
    assert made.settings == {"ppo.lr": "0.001"}
    refused = (
        lambda: studio.studies.start("sweep", "other", kl_weight=[1]),
        studio.start,
        lambda: studio.studies.resume(made.id),
    )
    for act in refused:
        with pytest.raises(StudioError, match="The study β 1 is running") as error:
            act()
        assert error.value.status == 409
    with Studio(served.url, token=served.token("Vera", "viewer")) as viewer:
        for act in (
            lambda: viewer.studies.start("sweep", "v", kl_weight=[1]),
            lambda: viewer.studies.cancel(made.id),
            lambda: viewer.studies.resume(made.id),
        ):
            with pytest.raises(StudioError) as error:
                act()
            assert error.value.status == 403
        assert viewer.studies.get(made.id).name == "β 1"

    cancelled = studio.studies.cancel(made.id)
    assert cancelled.stopping or cancelled.status == "cancelled"
    assert studio.studies.wait(made).status == "cancelled"
    with pytest.raises(StudioError, match="has no plot yet"):
        studio.studies.plot(made.id, tmp_path / "p.svg")
    studio.studies.resume(made.id)
    done = studio.studies.wait(made.id)
    assert (done.status, [run.status for run in done.runs]) == ("succeeded", ["succeeded"] * 2)
    assert done.report is not None
    assert done.report["kl_budget"] == 2
    assert [row["kl_weight"] for row in done.report["runs"]] == [0, 0.3]
    assert studio.studies.plot(made.id, tmp_path / "p.svg").read_text().count("<svg") == 1
    assert [each.id for each in studio.studies.list()] == [made.id]
    # They are compared with other runs, and are none of the loop's.
    curves = studio.curves([run.id for run in done.runs])
    assert [len(each.curves["reward/mean"].steps) for each in curves.runs] == [4, 4]
    assert {run.id for run in studio.runs()} == {"reward", "policy", "evaluate"}


def test_wrong_values_are_refused_with_a_sentence(studio: Studio):
    for values, status in (
        ({"kl_weight": []}, 422), ({"kl_weight": [-1]}, 422), ({"kl_weight": [0], "kl_budget": 0}, 422),
        ({"kl_weight": [0], "settings": {"plugins.allowed": "x"}}, 422),
    ):  # fmt: skip
        with pytest.raises(StudioError) as error:
            studio.studies.start("sweep", "wrong", **values)
        assert error.value.status == status, error.value.message
    with pytest.raises(StudioError, match="choose methods to compare"):
        studio.studies.start("compare", "wrong", methods=["kto"])
    with pytest.raises(StudioError, match="must be a plain folder name"):
        studio.studies.start("sweep", "../up", kl_weight=[0])
    for act in (studio.studies.get, studio.studies.cancel, studio.studies.resume):
        with pytest.raises(StudioError, match="there is no study 'sweep-none'") as error:
            act("sweep-none")
        assert error.value.status == 404
