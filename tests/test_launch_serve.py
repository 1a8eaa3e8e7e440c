"""What `serve` opens, for whom, and what may run beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from labeler.listening import address, listen
from launch import CONFIGS, Studio, prepare, server_for, take_up
from storage import annotators, runs
from storage.database import Database
from storage.records import Annotator
from tests.tiny import save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("model")))


@pytest.fixture
def studio(tmp_path: Path, model: str) -> Iterator[Studio]:
    place = tmp_path / "workspace"
    config = prepare(place, model, [], [])
    Database.open(place).close()
    opened = Studio(place, config)
    yield opened
    opened.close()


def test_the_link_is_for_one_owner_who_is_a_researcher(studio: Studio):
    owner = annotators.owner(studio.db)
    assert (owner.name, owner.role) == ("owner", "researcher")
    annotators.add(studio.db, Annotator(id="ada", name="Ada", role="researcher"))
    assert annotators.owner(studio.db) == owner


def test_an_imported_annotator_called_owner_does_not_get_the_link(studio: Studio):
    annotators.add(studio.db, Annotator(id="imported", name="owner"))
    annotators.add(studio.db, Annotator(id="too", name="owner-2"))
    found = annotators.owner(studio.db)
    assert (found.name, found.role) == ("owner-3", "researcher")
    assert annotators.owner(studio.db) == found


def test_where_the_owner_is_shut_out_the_link_is_for_the_researcher_there_is(studio: Studio):
    owner = annotators.owner(studio.db)
    ada = annotators.add(studio.db, Annotator(id="ada", name="Ada", role="researcher"))
    annotators.set_disabled(studio.db, owner.id, disabled=True)
    assert annotators.owner(studio.db) == ada


def test_resume_takes_over_a_stage_that_ended_while_nobody_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "workspace"
    config = prepare(place, None, [], [])
    Database.open(place).close()
    with closing(Studio(place, config)) as opened:
        opened.fill_demo(config)
        while not (made := runs.listing(opened.db)):
            opened.loop.advance()
        # As a server leaves it that was killed while the worker went on.
        runs.save(opened.db, replace(made[0], status="running", finished_at=None))
        assert opened.loop.state()["phase"] == "sampling"
    take_up(place, "resume")
    told = capsys.readouterr()
    assert "no stage is stopped, one was running" in told.err
    assert told.out == "iteration 1 waits for labels\n"
    with pytest.raises(ValueError, match="no stage is stopped"):
        take_up(place, "resume")


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_that_is_printed_leads_to_the_listener(host: str, shown: str):
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with closing(listen(host, 0)) as listener:
        port = listener.getsockname()[1]
        found = address(listener, host)
        assert found == f"http://{shown}:{port}"
        with pytest.raises(httpx.ReadTimeout):  # it was reached; nobody answers here
            httpx.get(found, timeout=httpx.Timeout(20, read=0.05))


def _has_ipv6() -> bool:
    try:
        listen("::1", 0).close()
    except ValueError:
        return False
    return True


def test_a_live_server_is_joined_and_never_silently_asked_for_other_settings(
    tmp_path: Path, model: str
):
    place = tmp_path / "workspace"
    prepare(place, model, [], [])
    unasked = ["labeling.labels=400", "seed=0"]
    with server_for(place, [], ["seed=3"], ["labeling.labels=7"]) as ours:
        for asked in ([], ["seed=3"], ["labeling.labels=7", "ppo.max_new_tokens=256"]):
            with server_for(place, [], asked, unasked) as live:
                assert live.url == ours.url
        said = "runs with seed=3, labeling.labels=7; stop it, or leave out"
        with (
            pytest.raises(ValueError, match=said),
            server_for(place, [], ["seed=4", "labeling.labels=9", "ppo.max_new_tokens=256"]),
        ):
            pass
        with (
            pytest.raises(ValueError, match=r"ppo\.updates=100, .*; stop it"),
            server_for(place, [CONFIGS / "tiny.toml"], []),
        ):
            pass
