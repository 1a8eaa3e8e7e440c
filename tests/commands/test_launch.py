"""Every command of the command line twice: on a workspace at rest, and beside a live server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from commands.main import app, main
from pipeline.config.sections import Config
from pipeline.evidence.check import differences
from storage import records
from storage.engine.backup import backup
from storage.engine.database import Database
from storage.engine.workspace import publish_server
from storage.errors import NotFound, explain
from storage.tables import iterations, models
from storage.tables.runs import runs
from tests.helpers.command_line import told
from tests.helpers.storage_world import ROOT, fill
from tests.helpers.tiny import save_tiny

Run = Callable[..., Any]
JUDGMENTS = [
    {"prompt": "Tea or coffee?", "response_a": "Tea.", "response_b": "Coffee.", "outcome": "a"},
    {"prompt": "Cats or dogs?", "response_a": "Cats.", "response_b": "Dogs.", "outcome": "tie"},
    {"prompt": "Bus or tram?", "response_a": "Bus.", "response_b": "Tram.", "outcome": "both_bad"},
]


@pytest.fixture(scope="module", params=["at rest", "beside a server"])
def workspace(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Path]:
    """An iteration with three pairs to label, so that the loop waits for people."""
    folder = tmp_path_factory.mktemp("studio")
    model = save_tiny(folder / "model")
    place = folder / "workspace"
    assert "is ready" in told("init", "--workspace", place, "--model", model)
    with Database.open(place) as db:
        fill(db, pairs=3)
    if request.param == "at rest":
        yield place
        return
    command = [sys.executable, "launch.py", "serve", "--workspace", str(place), "--port", "0"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    try:
        assert any("Kitestring is open" in line for line in server.stdout)
        assert_private(place / "server.json")
        yield place
    finally:
        server.send_signal(signal.SIGINT)
        server.stdout.close()
        assert server.wait(timeout=60) == 130  # as a shell expects after Ctrl-C
        assert not (place / "server.json").exists()


def assert_private(file: Path) -> None:
    """The address is no use without the token, and the token is for the owner of the file."""
    assert file.stat().st_mode & 0o777 == 0o600
    call = {"command": "status", "arguments": {}}
    refused = httpx.post(f"{json.loads(file.read_text())['url']}/admin/api/call", json=call)
    assert refused.status_code in (401, 403)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_people_are_added_listed_and_disabled(workspace: Path):
    here = ("--workspace", workspace)
    made = told("users", "add", "Ada", "--role", "researcher", "--token", *here, "--json")
    assert made["token"]
    made = told("users", "add", "Ben", *here, "--json")
    assert "/invite?token=" in made["invite"]
    assert (made["added"], told("users", "add", "Ben", *here, "--json")["added"]) == (True, False)
    told("users", "disable", "Ben", *here)
    people = {p["name"]: p for p in told("users", "list", *here, "--json")}
    assert (people["Ada"]["role"], people["Ben"]["role"]) == ("researcher", "annotator")
    table = told("users", "list", *here).splitlines()
    assert table[0].split()[:2] == ["id", "name"]
    assert [line.split()[1] for line in table[1:]] == list(people)
    with pytest.raises(ValueError, match="Ada"):
        told("users", "add", "Ada", *here)
    with pytest.raises(ValueError, match="'Ben' is disabled; `users enable` enables the account"):
        told("users", "add", "Ben", *here)
    assert not told("users", "enable", "Ben", *here, "--json")["disabled"]
    assert "/invite?token=" in json.dumps(told("users", "add", "Ben", *here, "--json"))


def test_a_server_prints_a_further_sign_in_link(workspace: Path):
    here = ("--workspace", workspace)
    if not (workspace / "server.json").exists():
        with pytest.raises(ValueError, match="`serve` starts one"):
            told("link", *here)
        return
    links = [told("link", *here).strip() for _ in range(2)]
    assert len(set(links)) == 2
    for link in links:
        assert httpx.get(link).status_code == 200
    token = links[0].partition("token=")[2].partition("&")[0]
    address = links[0].partition("/sign-in")[0]
    pressed = [
        httpx.post(f"{address}/sign-in", data={"token": token}, headers={"origin": address})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in pressed] == [303, 401]


def test_the_only_researcher_cannot_be_disabled(tmp_path: Path):
    here = ("--workspace", tmp_path / "workspace")
    told("init", *here, "--model", save_tiny(tmp_path / "model"))
    told("users", "add", "Ada", "--role", "researcher", *here)
    with pytest.raises(ValueError, match="Ada is the only researcher; add another one first"):
        told("users", "disable", "Ada", *here)
    told("users", "add", "Bea", "--role", "researcher", *here)
    assert told("users", "disable", "Ada", *here, "--json")["disabled"]


def test_a_person_gets_another_role(tmp_path: Path):
    here = ("--workspace", tmp_path / "workspace")
    told("init", *here, "--model", save_tiny(tmp_path / "model"))
    told("users", "add", "Ada", "--role", "researcher", *here)
    assert told("users", "add", "Vic", "--role", "viewer", *here, "--json")["role"] == "viewer"
    assert told("users", "role", "Vic", "adjudicator", *here, "--json")["role"] == "adjudicator"
    with pytest.raises(ValueError, match="Ada is the only researcher; add another one first"):
        told("users", "role", "Ada", "viewer", *here)
    told("users", "add", "Vic", "--role", "adjudicator", "--token", *here)
    revoked = told("users", "revoke", "Vic", *here, "--json")
    assert revoked == {"name": "Vic", "revoked": 2}  # the invite and the token
    assert told("users", "revoke", "Vic", *here, "--json")["revoked"] == 0
    told("users", "role", "Vic", "researcher", *here)
    told("users", "role", "Ada", "viewer", *here)
    people = {p["name"]: p["role"] for p in told("users", "list", *here, "--json")}
    assert people == {"Ada": "viewer", "Vic": "researcher"}
    with pytest.raises(ValueError, match="no user called 'Eve'; there are: Ada, Vic"):
        told("users", "role", "Eve", "viewer", *here)


def test_status_says_what_stopped_and_what_goes_on(tmp_path: Path):
    here = ("--workspace", tmp_path / "workspace")
    told("init", *here, "--model", save_tiny(tmp_path / "model"))
    with Database.open(here[1]) as db:
        iterations.save(db, records.Iteration(number=1, phase="reward", labels_wanted=3))
        failed = records.Run(id="r", stage="reward", iteration=1, status="failed", directory="runs/r",
                     reason="out of memory")  # fmt: skip
        runs.save(db, failed)
    trouble = told("status", *here, "--json")["trouble"]
    assert trouble.startswith("the reward stage stopped: out of memory. Continue with")
    assert f"`python launch.py retry --workspace {here[1]}`" in trouble
    assert "launch.py resume" not in trouble
    (here[1] / "runs" / "r" / "checkpoint" / "checkpoint-10").mkdir(parents=True)
    trouble = told("status", *here, "--json")["trouble"]
    assert f"`python launch.py resume --workspace {here[1]}`" in trouble


def test_judgments_come_in_and_go_out(workspace: Path, tmp_path: Path):
    here = ("--workspace", workspace)
    before = told("status", *here, "--json")["judgments"]
    rows = [row | {"annotator": name} for row in JUDGMENTS for name in ("Eve", "Flo")]
    report = told("import", "--judgments", write(tmp_path / "votes.jsonl", rows), *here, "--json")
    assert report["rows"] == 6
    status = told("status", *here, "--json")
    assert (before, status["judgments"], status["agreement"]["percent"]) == (0, 6, 1.0)

    out = tmp_path / "raw.jsonl"
    told("export", "--format", "raw", "--ties", "keep", "--names", "--out", out, *here)
    raw = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted((r["annotator"], r["outcome"]) for r in raw) == sorted(
        (name, row["outcome"]) for row in JUDGMENTS for name in ("Eve", "Flo")
    )
    told("export", "--format", "trl", "--out", tmp_path / "pairs.jsonl", *here)
    chosen = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert {(r["chosen"], r["rejected"]) for r in chosen} == {("Tea.", "Coffee.")}
    with pytest.raises(ValueError, match="--history needs --format raw"):
        told("export", "--history", "--out", tmp_path / "none.jsonl", *here)


def test_bad_rows_are_named_and_nothing_comes_in(workspace: Path, tmp_path: Path):
    here = ("--workspace", workspace)
    prompts = told("status", *here, "--json")["prompts"]
    bad = write(tmp_path / "bad.jsonl", [{"prompt": "Fine?"}, {"prompt": 7, "role": "boss"}])
    with pytest.raises(ValueError, match=r"line 2.*boss"):
        told("import", "--prompts", bad, *here)
    assert told("status", *here, "--json")["prompts"] == prompts
    report = told("import", "--prompts", bad, "--skip-bad", "--role", "audit", *here, "--json")
    assert [row["line"] for row in report["skipped"]] == [2]
    after = told("status", *here, "--json")["prompts"]
    assert after == prompts | {"audit": prompts.get("audit", 0) + 1}


def test_a_role_is_given_to_whatever_prompts_a_file_brings(tmp_path: Path):
    here = ("--workspace", tmp_path / "workspace")
    told("init", *here, "--model", save_tiny(tmp_path / "model"))
    pairs = [{"prompt": "P?", "chosen": "Yes.", "rejected": "No."}]
    votes = write(tmp_path / "votes.jsonl", [row | {"annotator": "Ann"} for row in JUDGMENTS])
    told("import", "--judgments", votes, "--role", "held-out", *here)
    told("import", "--preferences", write(tmp_path / "p.jsonl", pairs), "--role", "audit", *here)
    assert told("status", *here, "--json")["prompts"] == {"held-out": 3, "audit": 1}
    shown = write(tmp_path / "sft.jsonl", [{"prompt": "Q?", "response": "A."}])
    with pytest.raises(ValueError, match="demonstrations have the role sft; import them without"):
        told("import", "--sft", shown, "--role", "train", *here)
    with pytest.raises(ValueError, match="--public is for hub datasets"):
        told("export", "--public", "--out", tmp_path / "x.jsonl", *here)


def test_warnings_beyond_the_first_ten_are_counted(workspace: Path, tmp_path: Path):
    rows = [{"prompt": f"Is {i} odd?", "role": "audit", "color": "red"} for i in range(3)]
    rows += [{"prompt": i, "role": "audit"} for i in range(14)]  # numbers, kept with a warning
    printed = told(
        "import", "--prompts", write(tmp_path / "odd.jsonl", rows), "--workspace", workspace
    )
    assert printed.count("kept as") <= 10
    assert "more warnings; --json lists them all" in printed


def test_there_is_nothing_to_resume_while_nothing_is_stopped(workspace: Path):
    for command in ("resume", "retry"):
        with pytest.raises(ValueError, match="no stage is stopped"):
            told(command, "--workspace", workspace)


def test_an_export_never_lands_among_the_workspaces_own_files(workspace: Path):
    before = (workspace / "journal.jsonl").read_bytes()
    for place in ("journal.jsonl", "models/x.jsonl", ""):
        with pytest.raises(ValueError, match="is in the workspace"):
            told("export", "--out", workspace / place, "--workspace", workspace)
    assert (workspace / "journal.jsonl").read_bytes() == before


def test_a_name_is_trimmed_and_shows_what_it_is(workspace: Path):
    here = ("--workspace", workspace)
    assert told("users", "add", "  Zoe ", "--token", *here, "--json")["name"] == "Zoe"
    for name, says in (
        ("", "needs a name"),
        ("a\u202eb", r"contains U\+202E, which is invisible"),
        ("x" * 101, "at most 100 characters; .* has 101"),
    ):
        with pytest.raises(ValueError, match=says):
            told("users", "add", name, *here)


def test_a_lineage_of_nothing_names_what_there_is(workspace: Path):
    with pytest.raises((ValueError, LookupError), match="policy-7"):
        told("lineage", "policy-7", "--workspace", workspace)


def test_a_backup_is_restored_and_the_journal_rebuilds(workspace: Path, tmp_path: Path):
    here = ("--workspace", workspace)
    status = told("status", *here, "--json")
    told("backup", tmp_path / "copy", *here)
    other = tmp_path / "other"  # no `init`: where the disk is lost, so are the settings
    assert "is as it was" in told("restore", tmp_path / "copy", "--workspace", other)
    assert told("status", "--workspace", other, "--json") == status
    own = (workspace / "config.toml").read_text()
    assert str(workspace.parent / "model") in own
    assert (other / "config.toml").read_text() == own
    with Database.open(other) as db:
        models.add(
            db,
            records.ModelVersion(
                id="policy-9", name="policy-9", role="policy", path="models/policy-9"
            ),
        )
        backup(db, tmp_path / "of a trained one")
    trained = ("restore", str(tmp_path / "of a trained one"), "--workspace", str(other))
    result = CliRunner().invoke(app, trained)
    assert result.exit_code == 0
    assert "to continue the loop, copy models/policy-9 from" in result.stderr
    told("rebuild", *here)
    assert told("status", *here, "--json") == status


def test_a_link_is_refused_where_the_server_was_killed(tmp_path: Path):
    place = tmp_path / "workspace"
    told("init", "--workspace", place, "--model", save_tiny(tmp_path / "model"))
    (place / "server.json").write_text('{"url": "http://127.0.0.1:9", "token": "t"}')
    with pytest.raises(ValueError, match=r"no server has .* open; `serve` starts one"):
        told("link", "--workspace", place)


def test_data_without_settings_are_never_given_those_of_the_demo(tmp_path: Path):
    place, model = tmp_path / "workspace", save_tiny(tmp_path / "model")
    told("init", "--workspace", place, "--model", model)
    (place / "config.toml").unlink()
    for command in (("status",), ("init",), ("users", "add", "Ann"), ("settings",)):
        with pytest.raises(ValueError, match=r"config\.toml is missing; put it back, or"):
            told(*command, "--workspace", place)
    assert not (place / "config.toml").exists()
    told("init", "--workspace", place, "--model", model)
    assert told("status", "--workspace", place, "--json")["judgments"] == 0


def test_a_mistyped_workspace_is_not_made(tmp_path: Path):
    place = tmp_path / "mistyped"
    prompts = write(tmp_path / "prompts.jsonl", [{"prompt": "Tea or coffee?"}])
    for command in (("import", "--prompts", prompts), ("users", "add", "Ann")):
        with pytest.raises(
            NotFound, match=r"mistyped is not a workspace; .*`python launch.py init`"
        ):
            told(*command, "--workspace", place)
    assert not place.exists()
    told("init", "--workspace", place, "--model", save_tiny(tmp_path / "model"))
    (place / "workspace.duckdb").unlink()  # as after an `init` that was killed: settings alone
    (place / "journal.jsonl").unlink()
    assert told("import", "--prompts", prompts, "--workspace", place, "--json")["rows"] == 1


def test_training_without_labels_is_refused_in_a_sentence(tmp_path: Path):
    place = tmp_path / "fresh"
    told("init", "--workspace", place, "--model", save_tiny(tmp_path / "model"))
    with pytest.raises(ValueError, match="there are no prompts yet"):
        told("iterate", "--workspace", place)
    with Database.open(place) as db:
        fill(db, pairs=1)
    with pytest.raises(ValueError, match="There are no labels yet"):
        told("iterate", "--workspace", place)
    with pytest.raises(ValueError, match=r"did you mean 'ppo\.kl_weight'"):
        told("iterate", "--set", "ppo.kl_wieght=1", "--workspace", place)
    with pytest.raises(ValueError, match=r"sampling\.top_p is read when .* config\.toml or with"):
        told("iterate", "--set", "sampling.top_p=0.5", "--workspace", place)


def test_mistakes_end_in_one_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    place = ("--workspace", str(tmp_path / "w"))

    def fails(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["launch.py", *arguments, *place])
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            main()
        signal.signal(signal.SIGTERM, before)
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    command = [sys.executable, "launch.py", "status", *place]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, fails("status"))
    assert "is not a workspace; create one with" in ended.stderr
    assert "needs a value" in fails("init", "--set", "ppo.lr")
    assert "no/such/model" in fails("init", "--model", "./no/such/model")
    for weights, said in (
        ('{"no_such:score" = 1.0}', "there is no module 'no_such'"),
        ('{"math:no_such" = 1.0}', "math has no function 'no_such'"),
    ):
        assert said in fails("init", "--set", f"shaping.weights={weights}")


def said_of(workspace: Path, *arguments: str | Path) -> str:
    """The one line in which a command refuses, as the person at the terminal reads it."""
    with pytest.raises(ValueError) as refused:
        told(*arguments, "--workspace", workspace)
    return explain(refused.value)


def test_a_path_where_nothing_can_be_made_is_a_sentence(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    other = "name another directory with --workspace"
    nowhere = Path("/proc/no/such")  # neither root nor anybody else makes a file in /proc
    for command in (("init",), ("serve", "--port", "0")):
        assert said_of(file, *command) == f"{file} is not a directory; {other}"
        assert said_of(file / "below", *command) == f"{file} is not a directory; {other}"
        assert said_of(nowhere, *command) == (
            f"{nowhere} cannot be created, because /proc does not accept new files; {other}"
        )
    place = tmp_path / "workspace"
    told("init", "--workspace", place, "--model", save_tiny(tmp_path / "model"))
    with Database.open(place) as db:
        fill(db, pairs=1)
    for out in ("/proc/x", "/proc/x.jsonl"):
        assert said_of(place, "export", "--out", out) == (
            f"{out} cannot be created, because /proc does not accept new files; name another place with --out"
        )
    said = said_of(place, "export", "--out", file / "x.csv")
    assert said == f"{file} is not a directory; name another place with --out"
    assert said_of(place, "backup", "/proc/x") == (
        "/proc/x cannot be created, because /proc does not accept new files; "
        "name another directory for the backup"
    )


def test_a_server_that_cannot_start_ends_in_one_sentence(tmp_path: Path):
    """The loop, which has started, must not report that its database was closed."""
    place = tmp_path / "w"
    told("init", "--workspace", place)
    (place / "server.json.tmp").mkdir()
    command = [sys.executable, "launch.py", "serve", "--workspace", str(place), "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line[:12] for line in done.stderr.splitlines()] == ["kitestring: "], done.stderr


def test_damage_names_the_way_out(tmp_path: Path):
    place = tmp_path / "workspace"
    told("init", "--workspace", place, "--model", save_tiny(tmp_path / "model"))
    with Database.open(place) as db:
        fill(db, pairs=3)
    database = place / "workspace.duckdb"
    whole = database.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"rubbish" * 1000):
        database.write_bytes(damaged)
        with pytest.raises(RuntimeError, match=r"launch\.py rebuild"):
            told("status", "--workspace", place)
    told("rebuild", "--workspace", place)
    assert told("status", "--workspace", place, "--json")["comparisons"] == 3


def test_a_server_that_is_gone_or_unreadable_is_said_in_a_sentence(workspace: Path, tmp_path: Path):
    place = tmp_path / "workspace"
    told("init", "--workspace", place, "--model", workspace.parent / "model")
    with Database.open(place):  # the lock of a process that answers nobody
        publish_server(place, url="http://127.0.0.1:9", token="t")
        with pytest.raises(ValueError, match="does not answer"):
            told("status", "--workspace", place)
        (place / "server.json").write_text('{"url": ')
        with pytest.raises(ValueError, match=r"server\.json cannot be read"):
            told("status", "--workspace", place)


@pytest.mark.slow
def test_simulate_and_iterate_run_through_on_the_demo(tmp_path: Path):
    place = tmp_path / "workspace"
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "launch.py", "simulate", "--workspace", str(place), "--tiny"]
    ended = subprocess.run(
        [*command, "--seed", "3", "--json"], cwd=ROOT, capture_output=True, text=True,
        check=False, env=environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["seed"], [i["iteration"] for i in report["iterations"]]) == (3, [1])
    first = report["iterations"][0]
    assert 0 <= first["gold"]["low"] <= first["gold"]["win_rate"] <= first["gold"]["high"] <= 1
    assert {"reward", "policy"} <= first["seconds"].keys()
    assert {"accuracy", "ece"} <= first["reward_model"].keys()
    assert {"kl", "length"} <= first.keys()

    # A second iteration on the same labels, without a server.
    evaluation = told("iterate", "--workspace", place)
    assert evaluation["policy"]["kl"] >= 0
    status = told("status", "--workspace", place, "--json")
    assert (status["iteration"]["number"], status["iteration"]["phase"]) == (3, "labeling")
    assert "reward-2" in told("lineage", "policy-2", "--workspace", place)

    ruling = ("gate", "--override", "block", "--reason", "too long", "--by", "Rosa")
    assert "Rosa ruled “block”: too long" in told(*ruling, "--workspace", place)
    shown = told("gate", "--policy", "policy-2", "--workspace", place)
    assert shown.startswith("policy-2: blocked")
    assert "policy-1" not in shown

    # A reviewer recomputes what training measured.
    told("evidence", "--out", tmp_path / "study.zip", "--workspace", place)
    shutil.unpack_archive(tmp_path / "study.zip", tmp_path)
    package = tmp_path / "study"
    ended = subprocess.run(
        [sys.executable, "verify.py"], cwd=package, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    stated = json.loads((package / "evidence.json").read_text())["figures"]["reward models"]
    with Database.open(place) as db:
        for model in models.listing(db, role="reward"):
            trained = json.loads(json.dumps(model.summary["quality"]))
            assert differences(trained, stated[model.id]["quality"]) == []


def test_the_reward_report_says_that_there_is_nothing_to_report_on(workspace: Path):
    here = ("--workspace", workspace)
    assert told("reward", "report", *here).strip() == "There is no reward model yet."
    assert told("reward", "report", *here, "--json")["models"] == []
    for more in (("--model", "reward-1"), ("--curve",)):
        with pytest.raises(ValueError, match="there is no reward model"):
            told("reward", "report", *here, *more)


def test_the_gate_says_what_it_knows_and_refuses_what_it_cannot(workspace: Path):
    here = ("--workspace", workspace)
    assert told("gate", *here).strip() == "There is no trained policy to judge yet."
    assert told("gate", *here, "--json")["policies"] == []
    ruling = ("gate", "--override", "promote", *here)
    with pytest.raises((ValueError, LookupError), match="no model 'policy-7'"):
        told(*ruling, "--policy", "policy-7", "--reason", "x")
    with pytest.raises(ValueError, match="--reason and --by need --override"):
        told("gate", "--reason", "x", *here)
    with pytest.raises(ValueError, match="no trained policy policy-7; there are: none yet"):
        told("gate", "--policy", "policy-7", *here)


def test_settings_stand_with_value_default_and_meaning(workspace: Path):
    general = told("settings", "--json")
    assert [s["name"] for s in general] == [s.name for s in Config().settings()]
    lines = told("settings").splitlines()
    assert len([line for line in lines if line[:1] not in ("#", " ", "")]) == len(general)
    assert "    Random seed. Seed of all random choices in the pipeline." in lines
    assert "# Reward model" in lines
    here = told("settings", "--workspace", workspace).splitlines()
    assert (
        "ppo.max_new_tokens=256  (default: 64)" in here
    )  # pipeline/config/presets/default.toml says so
    assert "ppo.max_new_tokens=64" in lines
    assert "labeling.auto_train=false" in here
    assert "    Applies from the next iteration." in here
    assert "    Applies after a restart." in here


def test_settings_are_searched_changed_and_saved(workspace: Path):
    """The file of `init` has a comment, which stays, and one setting of the preset."""
    here = ("settings", "--workspace", workspace)
    assert told(*here, "--changed", "--json") == []
    found = told(*here, "--search", "learning PEAK critic", "--json")  # of the help text
    assert [each["name"] for each in found] == ["ppo.critic_lr"]
    assert told(*here, "--search", "no such words").strip() == "No setting matches."
    before = (workspace / "config.toml").read_text()
    with pytest.raises(ValueError, match=r"reward.epochs=-1.* more than 0; ppo.lr='x' must"):
        told(*here, "--set", "reward.epochs=-1", "--set", "ppo.lr=x", "--set", "seed=3")
    assert (workspace / "config.toml").read_text() == before
    saved = told(*here, "--set", "ppo.lr=1e-6", "--set", "seed=3", "--json")
    assert {each["name"]: each["value"] for each in saved} == {"seed": 3, "ppo.lr": 1e-6}
    text = (workspace / "config.toml").read_text()
    assert text.startswith(before.splitlines()[0])
    assert "lr = 1e-6" in text
    assert [each["name"] for each in told(*here, "--changed", "--json")] == ["seed", "ppo.lr"]
    entry = told("audit", "--workspace", workspace, "--action", "settings.saved", "--json")[0]
    assert entry["details"]["settings"] == {"ppo.lr": "3e-06 → 1e-06", "seed": "0 → 3"}


def test_a_judge_is_asked_once_and_counts_as_a_model(workspace: Path):
    here = ("--workspace", workspace)
    judge = ("judge", "--judge", "tests.pipeline.simulation.test_judge:likes_first", *here)
    assert told(*judge, "--limit", 1, "--json")["judgments"] == 1
    assert "judgments: 2" in told(*judge)
    status = told("status", *here, "--json")
    assert status["judgments_by_kind"]["model"] == 3
    assert status["iteration"]["labels"] == 0
    with pytest.raises(ValueError, match="there is no module 'no_such'"):
        told("judge", "--judge", "no_such:judge", *here)
