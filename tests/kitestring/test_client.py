"""Every method of the client against the real application, and every kind of refusal."""

from __future__ import annotations

import json
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

import kitestring
from kitestring.client import Annotator, Rows, Studio, StudioError
from kitestring.client.connection import TOKEN
from kitestring.client.records import Point, Status
from kitestring.client.rows import parsed
from storage.engine.database import Database
from storage.labeling import judgments as judging
from storage.labeling import queue
from storage.records import new_id
from storage.tables.people import annotators
from tests.helpers.desk_world import free_port
from tests.helpers.receiver import receiving
from tests.helpers.research_seed import Seeding
from tests.helpers.scripted_generation import Scripted
from tests.helpers.served_studio import ServedStudio, label, served_studio, tiny_study


@pytest.fixture(scope="module")
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, scripted: Scripted) -> Iterator[ServedStudio]:
    workspace = tmp_path_factory.mktemp("client") / "study"
    with Database.open(workspace) as db:
        seeding = Seeding(db)
        seeding.history(finished=2, labels=60)
        seeding.judge_policies(1, wins=0.8, judgments=30)
    with served_studio(workspace, generation=scripted) as served:
        yield served


@pytest.fixture
def studio(served: ServedStudio) -> Iterator[Studio]:
    with Studio(served.url, token=served.token("Ruth")) as studio:
        yield studio


def judged(db: Database) -> int:
    return db.read("SELECT count(*) AS n FROM current_judgments")[0]["n"]


def test_the_status_is_that_of_the_command(served, studio):
    found, wanted = studio.status(), served.studio.call("status")
    assert (found.judgments, found.comparisons) == (judged(served.db), wanted["comparisons"])
    assert found.agreement == wanted["agreement"]
    assert (found.iteration.number, found.iteration.phase) == (3, "labeling")
    assert found.iteration.labels == wanted["iteration"]["labels"]
    assert (found.stopped, found.trouble) == (None, None)
    assert found.label_budget == wanted["label_budget"]
    assert found.label_budget["says"]


def test_settings_are_those_of_the_loop(served, studio):
    found = studio.settings()
    assert [each.name for each in found] == [each.name for each in served.studio.loop.settings()]
    weight = found.frame().set_index("name").loc["ppo.kl_weight"]
    assert (weight["value"], weight["default"]) == (0.05, 0.05)


def test_settings_are_saved_in_config_toml(served, studio):
    file = served.db.workspace / "config.toml"
    file.write_text("# mine\n[ppo]\nlr = 1e-5 # slow\n")
    seen = studio.config()
    rate = next(each for each in seen.settings if each.name == "ppo.lr")
    assert (rate.value, rate.label, rate.applies) == (1e-5, "Policy learning rate", "stage")
    assert len(seen.frame()) == len(seen.settings)
    saved = studio.configure({"ppo.lr": 2e-5, "labeling.practice": False}, version=seen.version)
    assert file.read_text() == "# mine\n[ppo]\nlr = 2e-05 # slow\n"
    assert saved.version != seen.version
    with pytest.raises(StudioError, match="changed on disk") as error:
        studio.configure({"ppo.lr": 3e-5}, version=seen.version)
    assert error.value.status == 409
    with pytest.raises(StudioError, match=r"ppo.epochs=0 must be at least 1; ppo.lr='x' must be"):
        studio.configure({"ppo.lr": "x", "ppo.epochs": 0})
    file.unlink()


def test_runs_their_settings_and_their_curves(served, studio):
    listed = studio.runs()
    assert [run.id for run in listed][-1] == "run-1-sampling"
    assert len(listed) == 8
    policy = next(run for run in listed if run.id == "run-1-policy")
    assert policy.people["rate"] == pytest.approx(studio.gate().policies[-1].win_rate["win_rate"])
    assert policy.started.tzinfo is not None
    assert studio.run("run-1-policy").method == "PPO"
    curves = studio.curves("run-1-policy", ["reward/mean", "policy/entropy"])
    frame = curves.frame()
    assert list(frame.columns) == ["run", "metric", "step", "value", "seconds"]
    assert len(frame) == 200
    stored = served.db.read(
        "SELECT value FROM metrics WHERE run = 'run-1-policy' AND name = 'reward/mean' ORDER BY step"
    )
    assert list(frame[frame.metric == "reward/mean"]["value"]) == [row["value"] for row in stored]
    both = studio.curves(["run-1-policy", "run-2-policy"]).frame()
    assert set(both["run"]) == {"run-1-policy", "run-2-policy"}
    assert set(both["metric"]) == {"reward/mean", "kl/reference"}
    with pytest.raises(StudioError, match=r"'run-2-policy'.*several runs are a list"):
        studio.curves("run-1-policy", "run-2-policy")
    # A run of another method may lack one of the metrics.
    assert studio.curves("run-1-policy", ["reward/mean", "dpo/margin"]).frame().shape[0] == 100


def test_the_log_of_a_run(served, studio):
    folder = served.db.workspace / "runs" / "run-1-policy"
    (folder / "log.txt").write_text("one\ntwo\nthree\n")
    assert studio.log("run-1-policy", tail=2).splitlines() == ["two", "three"]


def test_an_iteration_with_its_evaluation(studio):
    assert studio.iteration(1)["policy_produced"] == "policy-1"
    found = studio.evaluation(1)
    assert {each.policy_role for each in found} == {"reference", "policy"}
    assert len(found.frame()) == len(found) == 14  # 7 held-out prompts, two policies
    assert found[0].messages[0].role == "user"


def test_verdicts_ratings_and_reports(served, studio):
    gate = studio.gate()
    assert [each.policy for each in gate.policies] == ["policy-2", "policy-1"]
    wanted = served.studio.loop.model_board()
    board = studio.leaderboard().frame().set_index("model")
    assert board.loc["policy-1", "rating"] == pytest.approx(wanted.ranks[0].rating)
    assert studio.leaderboard(anchor="policy-1").anchor == "policy-1"
    assert studio.reward("reward-2").model == "reward-2"
    assert studio.reward().models == ("reward-2", "reward-1")
    assert "policy-2" in [node["id"] for node in studio.lineage_graph()["nodes"]]
    assert studio.lineage("policy-2")["lineage"]["reward_model"]["id"] == "reward-2"


def test_a_researcher_overrides_the_gate_under_their_name(studio):
    found = studio.override_gate("block", "It repeats itself.", policy="policy-2")
    assert found.verdict == "blocked"
    assert (found.ruling["reason"], found.ruling["researcher"]) == ("It repeats itself.", "Ruth")
    assert studio.audit.list(action="gate.override")[0].actor == "Ruth"


def test_judgments_are_read_page_by_page(served, studio, monkeypatch):
    pages = studio.judgments(limit=50)
    assert pages.total == judged(served.db)
    assert pages.total == sum(each["count"] for each in pages.facets["facets"]["outcome"])
    asked = []
    get = studio._at.get
    monkeypatch.setattr(studio._at, "get", lambda path, **q: asked.append(q) or get(path, **q))
    assert len(pages.rows(20)) == 20
    assert len(asked) == 1  # what is not needed is not read
    everything = pages.rows()
    assert len({each.id for each in everything}) == pages.total
    times = [each.created_at for each in everything]
    assert len(asked) == 1 + -(-pages.total // 50)
    assert len(pages.frame(limit=3)) == 3
    assert pages.rows(0).frame().empty
    assert list(pages.rows(0).frame().columns)[:2] == ["id", "comparison"]
    assert times[0].utcoffset().total_seconds() == 0


def test_judgments_are_filtered_as_on_the_page(served, studio):
    ties = studio.judgments(outcome="tie", annotator="Ada").frame()
    stored = served.db.read(
        "SELECT count(*) AS n FROM current_judgments WHERE outcome = 'tie' AND annotator = 'annotator-0'"
    )
    assert len(ties) == stored[0]["n"] > 0
    assert set(ties["annotator_name"]) == {"Ada"}
    assert {each.disagreement for each in studio.judgments(disagreement=True)} == {True}


def test_a_judgment_is_excluded_and_restored_by_its_researcher(served, studio):
    one = studio.judgments(iteration=1, excluded=False).rows(1)[0]
    before = judged(served.db)
    assert studio.exclude(one.id, "The annotator misread the prompt.").excluded
    assert judged(served.db) == before - 1
    pair = studio.pair(one.comparison)
    [given] = [each for each in pair.judgments if each.id == one.id]
    assert (given.excluded, given.excluded_by) == (True, "Ruth")
    assert pair.judgments.frame()["excluded"].sum() == 1
    assert not studio.restore(one.id, "It was right.").excluded
    assert judged(served.db) == before


def test_all_judgments_of_an_annotator_are_excluded_and_restored(served, studio):
    before, adas = judged(served.db), studio.judgments(annotator="Ada", excluded=False).total
    assert studio.exclude_all("Guesses.", annotator="Ada") == adas > 0
    assert judged(served.db) == before - adas
    assert studio.restore_all("They explained it.", annotator="Ada") == adas
    assert judged(served.db) == before
    with pytest.raises(StudioError, match="et a filter first"):
        studio.exclude_all("Guesses.")


def test_flags_are_answered_and_cleared(served, studio):
    someone = annotators.by_name(served.db, "Divya").id
    for _ in range(2):
        [pair] = queue.lease(served.db, someone, 1).pairs
        judging.flag(
            served.db, id=new_id(), comparison=pair.comparison.id, annotator=someone, comment="Odd."
        )
    one, two = studio.flags()
    studio.answer_flag(one.id, "Judge it as it is.", clear=True)
    studio.clear_flag(two.id)
    assert len(studio.flags()) == 0
    answered = {each.id: each for each in studio.flags(all=True)}[one.id]
    assert (answered.answers[0].text, answered.answers[0].researcher) == (
        "Judge it as it is.",
        "Ruth",
    )


def test_prompts_are_added_edited_and_listed(studio):
    id = studio.prompts.add("How do I whistle?", role="train", category="music")
    studio.prompts.edit(id, category="noise")
    studio.prompts.edit(id, retired=True)
    [found] = studio.prompts.list(text="whistle")
    assert (found.id, found.category, found.retired, found.role) == (id, "noise", True, "train")
    listed = studio.prompts.list(limit=7)
    assert len(listed.rows()) == listed.total > 14
    assert studio.prompts.list(retired=True).total == 1


def test_a_disagreement_is_ruled_on(studio):
    waiting = studio.adjudication.list()
    assert waiting.total >= len(waiting.waiting) > 1
    one = studio.adjudication.show(waiting.waiting[0].comparison)
    assert one.a == waiting.waiting[0].a
    ruling = studio.adjudication.rule(one.comparison, "both_bad", "Neither answers.")
    assert (ruling.adjudicator, ruling.outcome) == ("Ruth", "both_bad")
    assert studio.adjudication.list().total == waiting.total - 1
    agreed = studio.judgments(disagreement=False).rows(1)[0].comparison
    studio.adjudication.send(agreed)
    assert agreed in [each.comparison for each in studio.adjudication.list().waiting]


def test_gold_pairs_are_made_and_retired(studio):
    assert studio.gold.make(1) == 1
    [pair] = studio.gold.list()
    assert pair.active
    assert pair.messages[0].role == "user"
    studio.gold.retire(pair.id)
    assert not studio.gold.list()[0].active
    studio.gold.restore(pair.id)
    assert studio.gold.list()[0].active


def test_guidelines_are_saved_in_versions(studio):
    before = studio.project.guidelines()
    assert "helps" in before.text  # those of the seed
    version = studio.project.save_guidelines("Prefer the **shorter** answer.")
    after = studio.project.guidelines()
    assert (after.version, after.text) == (version, "Prefer the **shorter** answer.")
    assert version != before.version
    assert [each.text for each in after.saved if each.current] == [after.text]
    studio.project.save_guidelines("Lieber kurz.", language="de")
    assert studio.project.guidelines("de").text == "Lieber kurz."
    assert studio.project.guidelines("fr").text == after.text
    with pytest.raises(StudioError, match="the guidelines are empty"):
        studio.project.save_guidelines(" ")


def test_the_form_changes_only_where_it_is_told_to(studio):
    before = studio.project.form()
    after = studio.project.set_form(reasons=["wrong", "rude"], safety="required")
    assert (after.reasons, after.safety) == (("wrong", "rude"), "required")
    assert (after.scale, after.criteria) == (before.scale, before.criteria)
    assert studio.project.form() == after
    studio.project.set_form(reasons=[], safety="off")
    assert studio.project.form() == before


def test_practice_is_asked_for(studio):
    assert not studio.project.practice().asked
    assert studio.project.ask_for_practice().asked
    assert studio.project.ask_for_practice(False) == studio.project.practice()
    assert len(studio.gold.list("practice")) == studio.project.practice().pairs == 0


def test_a_learning_curve_is_refused_with_its_reason(studio):
    """The seeded model has no run on disk; tests/pipeline/reward has a curve that is computed."""
    with pytest.raises(StudioError, match="No learning curve is being computed"):
        studio.stop_curve("reward-2")
    with pytest.raises(StudioError) as error:
        studio.start_curve("reward-none")
    assert (error.value.status, "reward-none" in error.value.message) == (422, True)


def test_people_get_accounts_roles_and_tokens(served, studio):
    new = studio.people.add("Noor", role="viewer", token=True)
    assert new.added
    with Studio(served.url, token=new.token) as theirs:
        assert theirs.status().judgments > 0
        with pytest.raises(StudioError, match="for researchers"):
            theirs.start()
    invited = studio.people.add("Ines")
    assert invited.invite.startswith(f"{served.url}/invite?token=")
    assert studio.people.set_role("Ines", "adjudicator").role == "adjudicator"
    assert studio.people.disable("Ines").disabled
    assert not studio.people.enable("Ines").disabled
    assert studio.people.revoke("Noor") == 1
    with pytest.raises(StudioError) as refused, Studio(served.url, token=new.token) as theirs:
        theirs.status()
    assert refused.value.status == 401
    told = []
    served.app.state.auth.when_accounts_change(lambda: told.append(True))
    studio.people.disable("Noor")  # open pages of theirs end at once
    assert told
    assert studio.people.list().frame().set_index("name").loc["Noor", "role"] == "viewer"


def test_the_audit_log_is_read_and_written(studio, tmp_path):
    studio.prompts.add("How do I juggle?")
    entries = studio.audit.list(actor="Ruth", limit=500)
    assert entries[0].via == "token"
    assert {each.actor for each in entries} == {"Ruth"}
    file = studio.audit.export(tmp_path / "audit.csv", actor="Ruth")
    assert len(pd.read_csv(file)) == len(entries)
    line = studio.audit.export(tmp_path / "audit.jsonl").read_text().splitlines()[0]
    assert json.loads(line).keys() == {"time", "actor", "via", "action", "subject", "details"}


def test_a_webhook_gets_signed_events(studio):
    with receiving() as there:
        hook = studio.webhooks.add(there.url, events=["gate.verdict"], description="notebook")
        assert hook.secret.startswith("whsec_")
        assert studio.webhooks.test(hook.id).code == 204
        assert there.requests[-1].headers["webhook-signature"].startswith("v1,")
        [delivery] = studio.webhooks.deliveries(hook.id)
        assert (delivery.status, delivery.attempts) == ("delivered", 1)
        studio.webhooks.resend(delivery.id)
        there.wait(2)
        assert there.requests[0].id == there.requests[1].id
        assert not studio.webhooks.disable(hook.id).active
        assert studio.webhooks.enable(hook.id).active
        rotated = studio.webhooks.rotate(hook.id)
        assert rotated.secret not in (None, hook.secret)
        [listed] = studio.webhooks.list()
        assert (listed.secret, listed.delivered) == (None, 1)
        studio.webhooks.remove(hook.id)
        assert len(studio.webhooks.list()) == 0


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def test_an_export_is_the_file_of_the_server(served, studio, tmp_path, monkeypatch):
    file = studio.export("trl", tmp_path / "pairs.parquet", ties="split")
    there = tmp_path / "there.parquet"
    report = served.studio.call("export", format="trl", ties="split", out=str(there))
    assert len(pd.read_parquet(file)) == report["rows"]
    monkeypatch.chdir(tmp_path)
    judging.undo(served.db, id=new_id(), annotator="annotator-0")
    raw = studio.export("raw", names=True)
    assert raw == Path("kitestring-raw.jsonl")
    assert "Ada" in raw.read_text(encoding="utf-8")
    everything = studio.export("raw", "all.jsonl", history=True)
    assert lines(everything) == lines(raw) + 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_evidence_package_recomputes_its_figures(studio, tmp_path):
    with zipfile.ZipFile(studio.evidence(tmp_path / "evidence.zip")) as package:
        assert package.testzip() is None
        assert any(name.endswith(".py") for name in package.namelist()), package.namelist()


def test_pairs_are_queued_and_bad_rows_named(studio, tmp_path):
    file = tmp_path / "pairs.jsonl"
    row = {"prompt": "How do I sing?", "response_a": "Loudly.", "response_b": "Softly."}
    file.write_text(json.dumps(row) + "\n")
    assert studio.upload_pairs(file).added["comparisons"] == 1
    assert studio.upload_pairs(file).known == 1
    file.write_text(json.dumps({"prompt": "No responses?"}) + "\n")
    with pytest.raises(StudioError, match=r"line 1: .*response_a") as refused:
        studio.upload_pairs(file)
    assert refused.value.status == 422


def test_a_file_is_previewed_and_imported(studio, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "How do I hum?"}\n{"prompt": 3}\n{}\n')
    upload = studio.imports.upload(file)
    seen = studio.imports.wait(studio.imports.start(upload=upload, preview=True))
    assert (seen.phase, seen.kind, seen.report["added"]["prompts"]) == ("done", "prompts", 2)
    assert seen.left_out["rows"][0]["row"] == 3
    out = studio.imports.left_out(seen.id, tmp_path / "left-out.csv")
    assert len(out.read_text().splitlines()) == 2
    job = studio.imports.start(upload=upload, kind="prompts", skip_bad=True)
    assert studio.imports.wait(job).phase == "done"
    assert studio.imports.cancel(job.id).phase == "done"  # too late: nothing changes
    assert studio.prompts.list(text="How do I hum?").total == 1


def test_pushes_are_planned_and_need_files(studio):
    assert studio.pushes.models()["models"] == []
    for refused in (
        lambda: studio.pushes.plan("policy-1"),
        lambda: studio.pushes.start("policy-1", "no repository"),
        lambda: studio.pushes.get("unknown"),
        lambda: studio.pushes.cancel("unknown"),
    ):
        with pytest.raises(StudioError, match=r"has no files|is not a repository|is not known"):
            refused()


def test_models_are_asked_and_two_replies_sent(scripted, studio):
    known = studio.playground.models()
    assert known.reason is None
    assert {each["id"] for each in known.models} == {"sft-1", "policy-1", "policy-2"}
    scripted.texts = ["Close one eye.", "Close both eyes.", "Hm."]
    studio.playground.prepare(["sft-1"])
    found = studio.playground.ask("How do I wink?", ["sft-1", "policy-1"], seed=5)
    assert found.seed == 5
    assert [each.model for each in found.replies] == ["sft-1", "policy-1"]
    assert all(each.id and each.text and not each.error for each in found.replies)
    sent = studio.playground.send(*found.replies)
    assert sent.new
    assert studio.pair(sent.id).arm == "probe"
    events = [event["event"] for event in studio.playground.stream("Hm?", ["sft-1"])]
    assert (events[0], events[-2:]) == ("asked", ["end", "measures"])


def test_commands_that_contradict_the_loop_are_conflicts(studio):
    for refused, sentence in (
        (studio.cancel, "No stage is running, so there is nothing to cancel."),
        (studio.resume, "No stage is stopped, so there is nothing to resume or retry."),
        (studio.retry, "No stage is stopped, so there is nothing to resume or retry."),
        (studio.label_more, "No stage is stopped, so there is nothing to resume or retry."),
    ):
        with pytest.raises(StudioError) as error:
            refused()
        assert (error.value.status, error.value.message) == (409, sentence)


def running(studio: Studio, stage: str) -> None:
    """Wait until a stage has begun to work."""
    give_up = time.monotonic() + 60
    while not any(
        run.stage == stage and run.status == "running" and run.progress > 0
        for run in studio.status().runs
    ):
        assert time.monotonic() < give_up, studio.status().runs
        time.sleep(0.05)


def test_a_stage_is_cancelled_resumed_and_retried(tmp_path):
    with tiny_study(tmp_path) as served, Studio(served.url, token=served.token("Ruth")) as studio:
        studio.wait(every=0.1, timeout=120)
        assert studio.status().waits == "There are no labels yet."
        with pytest.raises(StudioError, match="There are no labels yet") as error:
            studio.start()
        assert error.value.status == 409
        label(served)
        studio.start({"ppo.updates": 200})
        with pytest.raises(StudioError) as error:
            studio.start()
        assert (error.value.status, error.value.message) == (409, studio.status().waits)
        running(studio, "policy")
        run = studio.cancel()
        with pytest.raises(
            StudioError, match=r"policy stage stopped: .* Call retry\(\) or resume\(\)"
        ):
            studio.wait(every=0.1, timeout=120)
        assert studio.status().stopped.run == run
        assert studio.resume() == run
        running(studio, "policy")
        studio.cancel()
        with pytest.raises(StudioError, match="policy stage stopped"):
            studio.wait(every=0.1, timeout=120)
        with pytest.raises(StudioError, match="did you mean"):
            studio.retry({"ppo.update": 2})
        again = studio.retry({"ppo.updates": 2})
        assert again != run
        done = studio.wait(every=0.1, timeout=120)
        assert (done.iteration.number, done.iteration.phase) == (2, "labeling")
        assert studio.run(again).settings["ppo.updates"] == 2
        assert (studio.run(run).status, studio.run(run).attempt) == ("cancelled", 2)
        label(served)
        studio.start({"reward.epochs": 200})
        running(studio, "reward")
        studio.cancel()
        with pytest.raises(StudioError, match=r"or label_more\(\)"):
            studio.wait(every=0.1, timeout=120)
        studio.label_more()
        assert studio.wait(timeout=10).iteration.number == 2


def test_a_wrong_setting_is_named_and_nothing_starts(studio):
    with pytest.raises(StudioError, match=r"did you mean 'ppo\.kl_weight'") as error:
        studio.start({"ppo.kl_wait": 0.1})
    assert error.value.status == 422
    assert studio.status().iteration.phase == "labeling"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("shaping.weights", '{"os:system" = 1.0}'), ("shaping.extra_reward_models", '["/etc"]')],
)
def test_a_token_does_not_choose_what_the_machine_loads(studio, setting, value):
    """The operator may: the commands of the same names take functions and files."""
    with pytest.raises(StudioError, match=r"plugins\.allowed|config\.toml") as error:
        studio.start({setting: value})
    assert error.value.status == 422
    assert studio.status().iteration.phase == "labeling"


@pytest.mark.parametrize("role", ["annotator", "adjudicator"])
def test_annotators_are_refused_with_a_sentence(served, role):
    with Studio(served.url, token=served.token(f"An {role}", role)) as studio:
        with pytest.raises(StudioError) as error:
            studio.status()
        assert error.value.status == 403
        assert str(error.value) == "This page is for researchers. (status 403)"


def test_a_viewer_reads_but_downloads_no_names(served, tmp_path):
    with Studio(served.url, token=served.token("Vera", "viewer")) as studio:
        assert studio.export("trl", tmp_path / "mine.jsonl").exists()
        with pytest.raises(StudioError, match="Only researchers can download names"):
            studio.export("raw", tmp_path / "names.jsonl", names=True)
        assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]
        with pytest.raises(StudioError, match="for researchers"):
            studio.people.list()


@pytest.fixture
def ann(served: ServedStudio) -> Iterator[Annotator]:
    with Annotator(served.url, token=served.token("Anouk", "annotator")) as ann:
        yield ann


def test_an_annotator_judges_the_pairs_of_the_queue(served, ann):
    before = ann.progress()
    asked = [pair for pair, _ in zip(ann.pairs(at_once=2), range(5), strict=False)]
    assert len({pair.id for pair in asked}) == 5  # those of the first request are not asked again
    one, two, three, four, _ = asked
    assert one.prompt[-1].role == "user"
    judged = ann.judge(
        one, "a", strength=2, comment="Shorter.", reasons={"b": ["too long"]}, milliseconds=900
    )
    ann.judge(two.id, "tie")
    assert ann.progress().judged == before.judged + 2
    stored = served.db.read("SELECT * FROM judgments WHERE id = $id", id=judged)[0]
    assert (stored["comparison"], stored["strength"], stored["comment"]) == (one.id, 2, "Shorter.")
    revised = ann.judge(one, "b", replaces=judged)
    assert ann.judgment(revised)["judgment"]["outcome"] == "b"
    assert [each.id for each in ann.judgments().rows(1)] == [revised]
    assert {each.outcome for each in ann.judgments()} == {"b", "tie"}
    ann.skip(three)
    flagged = ann.flag(four, "Cut off.")
    assert ann.progress().latest == flagged
    ann.undo()
    assert ann.progress().latest != flagged
    assert ann.release([four.id]) == 1
    assert ann.figures().judgments == 2
    assert "<" in ann.guidelines().html
    with pytest.raises(StudioError) as error:
        ann.undo(judged)  # it was revised
    assert error.value.status == 409


def test_an_annotator_gets_each_pair_once_and_then_the_end(served):
    with Annotator(served.url, token=served.token("Otto", "annotator")) as otto:
        count = sum(1 for pair in otto.pairs(at_once=16) if otto.judge(pair, "a"))
        assert count == otto.progress().judged > 5
        assert list(otto.pairs()) == []


def test_a_wrong_token_says_how_to_get_another(served):
    with Studio(served.url, token="wrong") as studio:
        with pytest.raises(StudioError, match="users add NAME --role researcher --token") as error:
            studio.runs()
        assert error.value.status == 401


def test_without_a_token_there_is_no_studio(served, monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(StudioError, match="There is no API token"):
        Studio(served.url)
    monkeypatch.setenv(TOKEN, served.token("Ruth"))
    with kitestring.Studio(served.url + "/") as studio:
        assert studio.status().judgments > 0
    with pytest.raises(StudioError, match="must start with http"):
        Studio("localhost:7860")


def test_what_is_not_there_is_said(studio):
    for ask in (
        lambda: studio.pair("c-none"), lambda: studio.run("run-none"),
        lambda: studio.log("run-none"), lambda: studio.exclude("j-none", "x"),
    ):  # fmt: skip
        with pytest.raises(StudioError, match="none") as error:
            ask()
        assert error.value.status == 404
    with pytest.raises(StudioError, match="The id is empty"):
        studio.pair("")


def test_a_studio_that_is_down_is_said_after_the_patience():
    studio = Studio(f"http://127.0.0.1:{free_port()}", token="t", patience=0.3)
    with pytest.raises(StudioError, match=r"cannot be reached .*launch\.py serve") as error:
        studio.status()
    assert error.value.status is None
    with pytest.raises(StudioError, match="cannot be reached"):
        studio.evidence("nowhere.zip")
    assert not Path("nowhere.zip").exists()


class Flaky:
    """A server that answers with these statuses, and drops the connection for None; it keeps what
    arrives.  A `length` above that of the `body` cuts the answer, which comes `after` seconds."""

    def __init__(
        self,
        *answers: int | None,
        length: int = 0,
        body: bytes = b'{"run": "r", "error": "Busy."}',
        after: float = 0,
    ) -> None:
        self.answers, self.arrived = [*answers], []
        flaky = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                flaky.arrived.append((self.command, self.path))
                self.rfile.read(int(self.headers.get("content-length", 0)))
                answer = flaky.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                time.sleep(after)
                self.send_response(answer)
                self.send_header("Content-Length", str(length or len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Flaky:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_reading_is_repeated_after_a_lost_connection_and_a_busy_server():
    with Flaky(None, 503, 200) as server, Studio(server.url, token="t") as studio:
        assert studio._at.get("/research/api/status")["run"] == "r"
        assert len(server.arrived) == 3


def test_a_studio_that_does_not_answer_in_time_may_still_act():
    with Flaky(200, after=2.0) as server, Studio(server.url, token="t", timeout=0.2) as studio:
        with pytest.raises(StudioError, match=r"did not answer in time\. It may") as error:
            studio.cancel()
        assert (error.value.status, len(server.arrived)) == (None, 1)


def test_another_program_at_the_address_is_named():
    with Flaky(404, body=b"<html>") as server, Studio(server.url, token="t") as studio:
        with pytest.raises(StudioError, match="not as a Kitestring studio does") as error:
            studio.status()
        assert error.value.status == 404


def test_an_older_studio_is_named_by_the_field_it_lacks():
    with pytest.raises(StudioError, match=r"has no 'judgments' \(Status\)"):
        parsed(Status, {"trouble": None})


def test_without_pandas_there_are_no_frames(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(StudioError, match="pip install pandas"):
        Rows(Point, []).frame()


def test_an_act_that_may_have_happened_is_not_repeated():
    with Flaky(None, 200) as server, Studio(server.url, token="t") as studio:
        with pytest.raises(StudioError, match="cannot be reached"):
            studio.cancel()
        assert len(server.arrived) == 1
    with Flaky(503, 200) as server, Studio(server.url, token="t") as studio:
        with pytest.raises(StudioError, match="Busy") as error:
            studio.cancel()
        assert (len(server.arrived), error.value.status) == (1, 503)


def test_an_act_that_can_be_repeated_is():
    with Flaky(None, 200) as server, Studio(server.url, token="t") as studio:
        studio.prompts.edit("p", retired=True)
        assert len(server.arrived) == 2


def test_an_interrupted_download_leaves_no_file(tmp_path):
    old = tmp_path / "pairs.jsonl"
    old.write_text("an earlier export")
    with Flaky(200, length=1000) as server, Studio(server.url, token="t") as studio:
        with pytest.raises(StudioError, match="cannot be reached"):
            studio.export(out=old)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["an earlier export"]


def test_rows_are_a_sequence():
    rows = Rows(int, [1, 2, 3])
    assert (rows[0], list(rows[1:]), len(rows)) == (1, [2, 3], 3)
    assert rows == Rows(int, [1, 2, 3])
