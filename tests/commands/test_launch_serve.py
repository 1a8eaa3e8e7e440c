"""What `serve` opens, for whom, and what may run beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from commands.loop import continue_stage
from commands.serve import advance_periodically, import_at_startup
from commands.studio import Studio, connect, server_for
from labeler.security.listening import address, is_exposed, listen, public_address
from pipeline.config.sections import CONFIGS, Config
from pipeline.loop.workspace_config import prepare
from storage.engine.database import Database
from storage.labeling import queue
from storage.records import Run
from storage.tables import prompts
from storage.tables.runs import runs
from tests.helpers.tiny import save_tiny


@contextmanager
def sampled(place: Path, config: Config) -> Iterator[tuple[Studio, Run]]:
    """A studio on the demo and its first run, whose sampling has succeeded."""
    Database.open(place).close()
    with closing(Studio(place, config)) as opened:
        opened.fill_demo(config)
        while not (made := runs.listing(opened.db)):
            opened.loop.advance()
        yield opened, made[0]


def test_resume_takes_over_a_stage_that_ended_while_nobody_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    place = tmp_path / "workspace"
    config = prepare(place, None, [], [])
    with sampled(place, config) as (opened, made):
        # As a server leaves it that was killed while the worker went on.
        runs.save(opened.db, replace(made, status="running", finished_at=None))
        assert opened.loop.state().phase == "sampling"
    continue_stage(place, "resume")
    told = capsys.readouterr()
    assert "no stage is stopped; the loop continues" in told.err
    assert told.out == "iteration 1 is waiting for labels\n"
    with pytest.raises(ValueError, match="no stage is stopped"):
        continue_stage(place, "resume")


def test_a_worker_that_died_with_its_server_can_be_retried_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = tmp_path / "workspace"
    config = prepare(place, None, [], [])
    with sampled(place, config) as (opened, made):
        # As a machine leaves it that lost its power in the middle of the stage.
        (place / made.directory / "result.json").unlink()
        runs.save(opened.db, replace(made, status="running", finished_at=None))
    with connect(place) as target:
        state = target.call("status")
        assert [run["status"] for run in state["runs"]] == ["failed"]
        assert "the sampling stage" in state["trouble"]
    with closing(Studio(place, config)) as opened:
        runs.save(opened.db, replace(made, status="running", finished_at=None))
        retried: list[str] = []
        monkeypatch.setattr(opened.loop, "retry", lambda run, *_, **__: retried.append(run))
        opened.call("retry")
    assert retried == [made.id]


def test_the_demo_has_its_prompts_after_an_import_of_gold_pairs_but_not_beside_own_prompts(
    tmp_path: Path,
):
    place = tmp_path / "workspace"
    config = prepare(place, None, [], [])
    Database.open(place).close()
    gold = tmp_path / "gold.jsonl"
    gold.write_text('{"prompt": "Eggs?", "response_a": "8 min", "response_b": "no", "answer": "a"}')
    own = tmp_path / "prompts.jsonl"
    own.write_text('{"prompt": "Mine?", "role": "train"}')
    with closing(Studio(place, config)) as opened:
        opened.call("import", kind="gold", file=str(gold))
        opened.fill_demo(config)
        filled = prompts.counts(opened.db)
        assert filled["train"] == 740
        opened.fill_demo(config)
        assert prompts.counts(opened.db) == filled
    other = tmp_path / "other"
    config = prepare(other, None, [], [])
    Database.open(other).close()
    with closing(Studio(other, config)) as opened:
        opened.call("import", kind="prompts", file=str(own))
        opened.fill_demo(config)
        assert prompts.counts(opened.db) == {"train": 1}


def test_the_first_pairs_do_not_wait_for_the_timer(tmp_path: Path):
    place = tmp_path / "workspace"
    config = prepare(place, None, [], [])
    Database.open(place).close()
    with closing(Studio(place, config)) as opened:
        opened.fill_demo(config)
        stop = threading.Event()
        # An hour: whatever is done comes of the first turns, which follow each other at once.
        timer = threading.Thread(
            target=advance_periodically, args=(opened, stop), kwargs={"every": 3600.0}
        )
        timer.start()
        try:
            deadline = time.monotonic() + 30
            while opened.loop.state().phase != "labeling":
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert queue.unfinished(opened.db) > 0
        finally:
            stop.set()
            timer.join()


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


@pytest.mark.parametrize("port", [-5, 65536, 99999])
def test_a_port_that_is_none_is_one_sentence(port: int):
    with pytest.raises(ValueError, match=f"port {port} must be from 0"):
        listen("127.0.0.1", port)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:x",
        "studio.example.org",
        "https://",
        "ftp://a.org",
        "",
        " https://a.org",
        "https://a b",
        "https://a:99999",
        "https://a.org/?x=y",
        "http://[::1",
    ],
)
def test_a_public_url_is_one_that_browsers_can_follow(url: str):
    with pytest.raises(ValueError, match=r"must be like https://studio\.example\.org"):
        public_address(url)


@pytest.mark.parametrize(
    ("host", "public_url", "others"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("0.0.0.0", None, True),
        ("127.0.0.1", "https://studio.example.org", True),  # behind a proxy on this machine
    ],
)
def test_accounts_are_asked_for_where_others_may_come(
    host: str, public_url: str | None, others: bool
):
    assert is_exposed(host, public_url) is others


def test_a_public_url_is_put_in_one_form():
    """Cookies are secure where it begins with https."""
    assert public_address("HTTPS://studio.example.org/") == "https://studio.example.org"
    assert public_address("http://10.0.0.5:8080/desk") == "http://10.0.0.5:8080/desk"
    assert public_address(None) is None


def _has_ipv6() -> bool:
    try:
        listen("::1", 0).close()
    except ValueError:
        return False
    return True


def test_a_live_server_is_joined_and_never_silently_asked_for_other_settings(
    tmp_path: Path,
):
    place = tmp_path / "workspace"
    prepare(place, str(save_tiny(tmp_path / "model")), [], [])
    unasked = ["labeling.labels=400", "seed=0"]
    with server_for(place, [], ["seed=3"], ["labeling.labels=7"]) as ours:
        for asked in ([], ["seed=3"], ["labeling.labels=7", "ppo.max_new_tokens=256"]):
            with server_for(place, [], asked, unasked) as live:
                assert live.url == ours.url
        said = "runs with seed=3, labeling.labels=7; change them there with `python launch.py settings --set`, stop"
        with (
            pytest.raises(ValueError, match=said),
            server_for(place, [], ["seed=4", "labeling.labels=9", "ppo.max_new_tokens=256"]),
        ):
            pass
        with (
            pytest.raises(ValueError, match=r"ppo\.updates=100, .*; change them there"),
            server_for(place, [CONFIGS / "tiny.toml"], []),
        ):
            pass


def test_serve_tells_what_was_odd_about_its_files_once(
    tmp_path: Path, file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = file([{"prompt": n, "role": "train"} for n in range(5)], "odd.jsonl")
    prepare(tmp_path / "studio", None, [], [])
    Database.open(tmp_path / "studio").close()
    with connect(tmp_path / "studio") as studio:
        assert isinstance(studio, Studio)
        import_at_startup(studio, "prompts", rows)
        first = capsys.readouterr().err.splitlines()
        import_at_startup(studio, "prompts", rows)
        assert capsys.readouterr().err == ""
    assert first == [
        "odd.jsonl, line 1: prompt is the number 0, kept as text",
        "odd.jsonl, line 2: prompt is the number 1, kept as text",
        "odd.jsonl, line 3: prompt is the number 2, kept as text",
        "odd.jsonl: 2 more warnings; `import --prompts … --json` lists them",
    ]
