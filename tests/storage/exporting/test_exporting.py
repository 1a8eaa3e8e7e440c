"""What each format says of each outcome, and that the libraries it is made for take it."""

from __future__ import annotations

import base64
import csv
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import huggingface_hub
import pandas as pd
import pytest

from storage.engine.database import Database
from storage.exporting.exports import Destination, export, why_empty
from storage.exporting.formats import EDIT_FORMATS, Format, Ties
from storage.importing.imports import import_judgments, import_preferences
from storage.records import (
    Adjudication,
    Annotator,
    Comparison,
    Completion,
    Flag,
    FlagAnswer,
    Judgment,
    Mark,
    Message,
    ModelVersion,
    Prompt,
    Withdrawal,
)
from storage.tables import settings

CHAT = (
    Message("system", "Be brief."),
    Message("user", "Hi"),
    Message("assistant", "Hello"),
    Message("user", "Name a fruit"),
)
TRANSCRIPT = (
    "System:\nBe brief.\n\nUser:\nHi\n\nAssistant:\nHello\n\nUser:\nName a fruit\n\nAssistant:\n"
)


MARK = Mark(
    reason="too long", quote="cond", prefix="se", suffix=" 0", start=2, end=6,
    rendered_start=2, rendered_end=6,
)  # fmt: skip


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Four comparisons by ann (preference, tie, both bad, revised), one of them by bob too.

    The answers to question n are "first n" and "second n"; question 3 is a chat.
    """
    with Database.open(tmp_path / "workspace") as db:
        db.write(lambda tx: tx.store(*records()))
        yield db


def records() -> Iterator[Any]:
    yield ModelVersion(id="policy-1", role="policy", name="first policy")
    yield Annotator(id="a-ann", name="Ann Example")
    yield Annotator(id="a-bob", name="Bob | Example", kind="simulated")
    for n in range(4):
        prompt = Prompt.make(CHAT if n == 3 else f"question {n}", role="train")
        yield prompt
        for side in ("first", "second"):
            yield Completion(
                id=f"{side}-{n}", prompt=prompt.id, policy="policy-1", text=f"{side} {n}"
            )
        yield Comparison(
            id=f"c-{n}", prompt=prompt.id, first=f"first-{n}", second=f"second-{n}",
            iteration=1, arm="random", item="i0" if n == 0 else None,
        )  # fmt: skip
    yield judgment(
        "j0", "c-0", "second", swapped=True, strength=2, criteria={"helpful": "second"},
        reasons={"second": ["too long"]}, safety={"first": "safe", "second": "unsafe"},
        marks={"second": [MARK]},
        comment='say "why",\nplease', edit="better", milliseconds=1234, guidelines="f" * 16,
    )  # fmt: skip
    yield judgment("j1", "c-1", "tie")
    yield judgment("j2", "c-2", "both_bad", swapped=True)
    yield judgment("j3", "c-3", "second")
    yield judgment("j4", "c-3", "first", replaces="j3", minute=4)
    yield judgment("j5", "c-0", "first", annotator="a-bob", minute=5)
    yield judgment("j6", "c-1", "first", annotator="a-bob", minute=6)
    then = datetime(2026, 5, 1, 12, tzinfo=UTC)
    yield Flag(
        id="f", comparison="c-0", annotator="a-bob", comment="rude",
        created_at=then.replace(minute=10),
    )  # fmt: skip
    yield FlagAnswer(
        id="fa", flag="f", researcher="", text="Removed.", created_at=then.replace(minute=20)
    )
    yield Withdrawal(id="wf", replaces="f", annotator="", created_at=then.replace(minute=20))
    yield Withdrawal(
        id="w6", replaces="j6", annotator="a-bob", created_at=datetime(2026, 5, 1, 13, tzinfo=UTC)
    )


def judgment(
    id: str, comparison: str, outcome: Any, *, annotator: str = "a-ann", swapped: bool = False,
    minute: int = 0, **more: Any,
) -> Judgment:  # fmt: skip
    return Judgment(
        id=id, comparison=comparison, annotator=annotator, outcome=outcome, shown_swapped=swapped,
        created_at=datetime(2026, 5, 1, 12, minute, tzinfo=UTC), **more,
    )  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def exported(db: Database, path: Path, format: Format, ties: Ties = "drop", **options: Any) -> Any:
    export(db, format=format, ties=ties, out=path, **options)
    return rows_of(path)


def pairs(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {(row["prompt"], row["chosen"], row["rejected"]) for row in rows}


DECIDED = {
    ("question 0", "second 0", "first 0"),  # ann
    ("question 0", "first 0", "second 0"),  # bob
    (TRANSCRIPT, "first 3", "second 3"),  # ann, revised: j3 said second
}


def test_trl_drops_splits_or_keeps_ties_and_both_bad(db: Database, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    dropped = exported(db, path, "trl")
    assert [set(row) for row in dropped] == [{"prompt", "chosen", "rejected"}] * 3
    assert pairs(dropped) == DECIDED
    split = exported(db, path, "trl", "split")
    assert len(split) == 7
    assert pairs(split) == DECIDED | {
        ("question 1", "first 1", "second 1"),
        ("question 1", "second 1", "first 1"),
        ("question 2", "first 2", "second 2"),
        ("question 2", "second 2", "first 2"),
    }
    kept = exported(db, path, "trl", "keep")
    assert {row["prompt"]: row["outcome"] for row in kept} == {
        "question 0": "preference",
        "question 1": "tie",
        "question 2": "both_bad",
        TRANSCRIPT: "preference",
    }
    assert len(kept) == 5


def test_a_kept_tie_goes_either_way_by_a_fair_coin(db: Database, tmp_path: Path) -> None:
    prompt = Prompt.make("question 1", role="train").id
    ties: list[Any] = []
    for n in range(400):
        pair = {"prompt": prompt, "first": "first-1", "second": "second-1", "iteration": 1}
        ties.append(Comparison(id=f"t-{n}", arm="random", **pair))
        ties.append(judgment(f"t{n}", f"t-{n}", "tie"))
    db.write(lambda tx: tx.store(*ties))
    kept = exported(db, tmp_path / "out.jsonl", "trl", "keep")
    first = sum(row["outcome"] == "tie" and row["chosen"] == "first 1" for row in kept)
    assert abs(first - 200.5) < 61  # 401 tosses, 6 standard deviations: each run has its own key
    assert exported(db, tmp_path / "again.jsonl", "trl", "keep") == kept


def test_conversational_rows_are_chats(db: Database, tmp_path: Path) -> None:
    rows = exported(db, tmp_path / "out.jsonl", "trl-conversational")
    assert {
        "prompt": [{"role": m.role, "content": m.content} for m in CHAT],
        "chosen": [{"role": "assistant", "content": "first 3"}],
        "rejected": [{"role": "assistant", "content": "second 3"}],
    } in rows
    assert len(rows) == 3


def test_unpaired_rows_label_both_bad_false_whatever_ties_are(db: Database, tmp_path: Path) -> None:
    always = {
        ("question 0", "second 0", True), ("question 0", "first 0", False),
        ("question 0", "first 0", True), ("question 0", "second 0", False),
        ("question 2", "first 2", False), ("question 2", "second 2", False),
        (TRANSCRIPT, "first 3", True), (TRANSCRIPT, "second 3", False),
    }  # fmt: skip
    both_true = {("question 1", "first 1", True), ("question 1", "second 1", True)}
    both_false = {("question 1", "first 1", False), ("question 1", "second 1", False)}
    expected: dict[Ties, set[Any]] = {
        "drop": always,
        "keep": always | both_true,
        "split": always | both_true | both_false,
    }
    for ties, rows in expected.items():
        found = exported(db, tmp_path / "out.jsonl", "trl-unpaired", ties)
        said = [(row["prompt"], row["completion"], row["label"]) for row in found]
        assert len(said) == len(rows)
        assert set(said) == rows


def test_raw_has_one_row_a_judgment_as_it_was_on_the_screen(db: Database, tmp_path: Path) -> None:
    rows = {row["id"]: row for row in exported(db, tmp_path / "out.jsonl", "raw", names=True)}
    assert list(rows) == ["j0", "j1", "j2", "j4", "j5"]
    # second was preferred and stood on the left, because first was shown on the right.
    assert rows["j0"] == {
        "id": "j0", "comparison": "c-0", "item": "i0", "iteration": 1, "arm": "random",
        "expected": None, "explanation": None, "repeats": None, "conversation": None, "turn": None,
        "prompt": "question 0", "messages": [{"role": "user", "content": "question 0"}],
        "prompt_role": "train", "response_a": "second 0", "response_b": "first 0",
        "model_a": "policy-1", "model_b": "policy-1",
        "annotator": "Ann Example", "annotator_kind": "person",
        "outcome": "a", "strength": 2,
        "criteria": {"helpful": "a", "truthful": None, "harmless": None, "clear": None},
        "reasons": {"a": ["too long"], "b": None}, "safety": {"a": "unsafe", "b": "safe"},
        "marks": {"a": [asdict(MARK)], "b": None},
        "comment": 'say "why",\nplease', "edit": "better", "flags": [
            {
                "annotator": "Bob | Example", "comment": "rude", "state": "cleared",
                "created_at": "2026-05-01T12:10:00+00:00",
                "answers": [{"text": "Removed.", "created_at": "2026-05-01T12:20:00+00:00"}],
            },
        ], "milliseconds": 1234, "guidelines": "f" * 16, "shown_swapped": True,
        "status": "current", "replaces": None, "withdrawn_at": None,
        "ruling": None, "ruling_reason": None, "excluded": False, "exclusion_reason": None,
        "created_at": "2026-05-01T12:00:00+00:00",
    }  # fmt: skip
    assert rows["j5"]["flags"] == rows["j0"]["flags"]
    assert rows["j1"]["flags"] == []
    assert [rows[id]["outcome"] for id in ("j1", "j2", "j4", "j5")] == ["tie", "both_bad", "a", "a"]
    history = exported(db, tmp_path / "all.jsonl", "raw", history=True, names=True)
    assert {row["id"]: row["status"] for row in history} == {
        "j0": "current", "j1": "current", "j2": "current", "j3": "revised", "j4": "current",
        "j5": "current", "j6": "withdrawn",
    }  # fmt: skip


_JUDGMENTS = """
    SELECT j.* EXCLUDE annotator, a.name, a.kind FROM judgments AS j
    JOIN annotators AS a ON a.id = j.annotator ORDER BY j.id
"""
_WITHDRAWN = """
    SELECT w.replaces, w.created_at FROM withdrawals AS w SEMI JOIN judgments AS j ON j.id = w.replaces
"""


def test_a_raw_history_comes_back_as_it_was(db: Database, tmp_path: Path) -> None:
    for place in ("out.jsonl", "out.parquet", "out.csv", "folder"):
        export(db, format="raw", out=tmp_path / place, names=True, history=True)
        with Database.open(tmp_path / f"from {place}") as other:
            report = import_judgments(other, tmp_path / place)
            assert report.warnings == []
            assert other.read(_JUDGMENTS) == db.read(_JUDGMENTS)
            assert other.read(_WITHDRAWN) == db.read(_WITHDRAWN)
            assert sum(import_judgments(other, tmp_path / place).added.values()) == 0
        assert sum(import_judgments(db, tmp_path / place).added.values()) == 0


def test_pairs_come_back_as_the_same_preferences(db: Database, tmp_path: Path) -> None:
    for format in ("trl-conversational", "trl-unpaired"):
        export(db, format=format, ties="keep", out=tmp_path / f"{format}.parquet")
        with Database.open(tmp_path / format) as other:
            import_preferences(other, tmp_path / f"{format}.parquet")
            outcomes = {
                (row["f"], row["s"], row["outcome"])
                for row in other.read(
                    "SELECT f.text AS f, s.text AS s, j.outcome FROM judgments AS j"
                    " JOIN comparisons AS c ON c.id = j.comparison"
                    " JOIN completions AS f ON f.id = c.first"
                    " JOIN completions AS s ON s.id = c.second"
                )
            }
        assert outcomes == {
            ("first 0", "second 0", "first"),
            ("first 0", "second 0", "second"),
            ("first 1", "second 1", "tie"),
            ("first 2", "second 2", "both_bad"),
            ("first 3", "second 3", "first"),
        }


def test_annotators_are_pseudonymous_and_the_same_ones_stay_the_same(
    db: Database, tmp_path: Path
) -> None:
    one = exported(db, tmp_path / "one.jsonl", "raw")
    two = exported(db, tmp_path / "two.jsonl", "raw")
    assert [row["annotator"] for row in one] == [row["annotator"] for row in two]
    ann, bob = one[0]["annotator"], one[-1]["annotator"]
    assert ann != bob
    assert [row["annotator"] for row in one] == [ann, ann, ann, ann, bob]
    assert [row["id"] for row in one] == [row["id"] for row in two]
    for path in tmp_path.glob("*.jsonl*"):
        text = path.read_text()
        assert "Example" not in text
        assert "a-ann" not in text
    # Another workspace has another key, so nobody can try names out.
    settings.put(db, "pseudonym_secret", "00" * 32)
    assert exported(db, tmp_path / "three.jsonl", "raw")[0]["annotator"] != ann


def test_the_card_tells_what_is_inside(db: Database, tmp_path: Path) -> None:
    db.write(lambda tx: tx.store(
        Adjudication(id="r0", comparison="c-0", adjudicator="", outcome="second", shown_swapped=False, reason="clear"),
        Adjudication(id="r2", comparison="c-2", adjudicator="", outcome="tie", shown_swapped=False, reason="clear"),
    ))  # fmt: skip
    report = export(db, format="trl", out=tmp_path / "out.jsonl")
    assert report.card == str(tmp_path / "out.jsonl.card.md")
    assert (report.rows, report.judgments) == (3, 5)
    assert report.outcomes == {"preference": 3, "tie": 1, "both_bad": 1}
    assert report.left_out == {"tie": 1, "both_bad": 1}
    assert "transcripts" in report.notes[0]
    card = Path(report.card).read_text()
    assert "3 rows from 3 of 5 judgments: on 2 pairs of responses to 2 prompts, by 2" in card
    assert "all judgments: 1 both bad, 3 preferences, 1 tie." in card
    assert "Left out: 1 both bad, 1 tie." in card
    # One pair judged by both, who disagree: percent 0; alpha = 1 - 1 / (1 - 0) = 0.
    assert "1 pair was judged by two or more annotators. Percent agreement 0.0%" in card
    assert "Krippendorff's alpha (nominal) 0.000" in card
    assert "pseudonyms" in card
    # Ann's j0 and j4 have rows, and Bob's j5; only j0 has a version.
    assert "\n2 judgments by 1 person and 1 judgment by 1 simulated annotator.\n" in card
    assert (
        "by version: version `ffffffffffffffff` (1 judgment), not recorded (2 judgments)." in card
    )
    # c-0 has one vote for each response; c-2 is both bad and ruled a tie.
    assert (
        "pairs of the workspace: on 2 pairs: 0 confirmed the outcome with the most votes, 1 changed it, 1 decided"
        in card
    )
    assert "## License\n\nTo be added" in card
    named = export(db, format="raw", out=tmp_path / "raw.csv", names=True)
    # A name cannot break the table.
    assert "| Bob / Example | simulated | 1 |" in Path(named.card).read_text()


def test_a_csv_cell_may_hold_lines_and_quotes(db: Database, tmp_path: Path) -> None:
    export(db, format="raw", out=tmp_path / "out.csv", names=True)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["comment"] == 'say "why",\nplease'
    assert json.loads(rows[0]["messages"]) == [{"role": "user", "content": "question 0"}]
    assert rows[1]["strength"] == ""


def test_nothing_to_export_is_an_error_that_leaves_no_file(tmp_path: Path) -> None:
    with Database.open(tmp_path / "workspace") as db:
        with pytest.raises(ValueError, match="no judgments to export"):
            export(db, format="trl", out=tmp_path / "out.jsonl")
        db.write(lambda tx: tx.store(*(r for r in records() if getattr(r, "id", "") not in HIDDEN)))
        with pytest.raises(ValueError, match="all 2 judgments are ties or both bad"):
            export(db, format="trl", out=tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["workspace"]


def test_an_export_is_empty_only_if_no_judgment_at_all_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.exporting.exports._TRIED", 1)
    with Database.open(tmp_path / "workspace") as db:
        db.write(lambda tx: tx.store(*(r for r in records() if getattr(r, "id", "") not in HIDDEN)))
        assert "ties or both bad" in str(why_empty(db, format="trl", ties="drop"))
        [decided] = [r for r in records() if getattr(r, "id", "") == "j0"]
        db.write(lambda tx: tx.store(replace(decided, created_at=LATER)))
        assert why_empty(db, format="trl", ties="drop") is None


LATER = datetime(2030, 1, 1, tzinfo=UTC)
HIDDEN = ("j0", "j3", "j4", "j5", "j6", "w6")


def test_places_and_options_are_checked(db: Database, tmp_path: Path) -> None:
    assert Destination.of("hf://datasets/me/votes") == Destination("hub", "me/votes")
    assert Destination.of("hf://me/votes") == Destination("hub", "me/votes")
    assert Destination.of(tmp_path) == Destination("folder", str(tmp_path))
    assert Destination.of("new/folder") == Destination("folder", "new/folder")
    assert Destination.of("a/b.CSV") == Destination("file", "a/b.CSV")
    for place in ("hf://votes", "s3://bucket/x.parquet", "votes.txt"):
        with pytest.raises(ValueError, match=r"must|not supported"):
            Destination.of(place)
    with pytest.raises(ValueError, match="--format is 'dpo' and must be one of trl"):
        export(db, format="dpo", out=tmp_path / "x.csv")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="--history needs --format raw"):
        export(db, format="trl", out=tmp_path / "x.csv", history=True)
    (tmp_path / "README.md").write_text("my notes")
    with pytest.raises(ValueError, match=r"README\.md that no export wrote"):
        export(db, format="trl", out=tmp_path)
    assert (tmp_path / "README.md").read_text() == "my notes"


def test_all_formats_in_all_file_types_say_the_same(db: Database, tmp_path: Path) -> None:
    for format in get_args(Format):
        counts = {
            export(db, format=format, ties="keep", out=tmp_path / place, names=True).rows
            for place in ("x.jsonl", "x.parquet", "x.csv", "folder")
        }
        lines = rows_of(tmp_path / "x.jsonl")
        table = pd.read_parquet(tmp_path / "x.parquet")
        assert counts == {len(lines)} == {len(table)}
        assert list(table.columns) == list(lines[0])
        column = "completion" if format == "trl-unpaired" else "prompt"
        if format not in ("trl-conversational", *EDIT_FORMATS):  # these have chats
            assert list(table[column]) == [row[column] for row in lines]
            assert list(pd.read_csv(tmp_path / "x.csv")[column]) == list(table[column])


# --- the libraries it is made for ------------------------------------------------------------


@pytest.fixture
def tiny() -> Any:
    from tests.helpers.tiny import tiny_model, tiny_tokenizer  # noqa: PLC0415 - torch only where it is needed

    return tiny_model, tiny_tokenizer


@pytest.mark.parametrize("format", ["trl", "trl-conversational"])
def test_the_trainers_of_trl_take_it_unchanged(
    db: Database, tmp_path: Path, tiny: Any, format: Format
) -> None:
    from datasets import load_dataset  # noqa: PLC0415
    from transformers import AutoModelForSequenceClassification  # noqa: PLC0415
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer  # noqa: PLC0415

    model, tokenizer = tiny
    export(db, format=format, ties="keep", out=tmp_path / "data")
    dataset = load_dataset(str(tmp_path / "data"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(dataset) == 5
    shared: dict[str, Any] = {
        "output_dir": str(tmp_path / "run"), "max_steps": 1, "per_device_train_batch_size": 5,
        "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True,
        "bf16": False, "gradient_checkpointing": False, "logging_steps": 1,
    }  # fmt: skip
    model().save_pretrained(tmp_path / "model")
    classifier = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "model", num_labels=1
    )
    reward = RewardTrainer(
        model=classifier, args=RewardConfig(**shared), train_dataset=dataset,
        processing_class=tokenizer(),
    )  # fmt: skip
    assert len(reward.train_dataset) == 5
    assert reward.train().training_loss > 0
    text = tokenizer().decode(reward.train_dataset[3]["chosen_ids"])
    end = TRANSCRIPT if format == "trl" else "<|user|>Name a fruit<|assistant|>"
    assert text.endswith(f"{end}first 3<|end|>")
    dpo = DPOTrainer(
        model=model(), ref_model=model(), args=DPOConfig(**shared), train_dataset=dataset,
        processing_class=tokenizer(),
    )  # fmt: skip
    assert len(dpo.train_dataset) == 5
    # Equal models: the loss of a first step is log 2, whatever the pair.
    assert dpo.train().training_loss == pytest.approx(0.6931, abs=1e-3)


@dataclass
class Hub:
    """The few routes of the hub that an upload calls, on localhost."""

    public: set[str] = field(default_factory=set)
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.url}/datasets/me/votes"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            return 200, {"files": modes}
        if "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.files[value["path"]] = base64.b64decode(value["content"])
            return 200, {
                "commitUrl": f"{self.url}/datasets/me/votes/commit/1",
                "commitOid": "1" * 40,
            }
        if method == "GET" and path.startswith("/api/datasets/"):
            name = path.removeprefix("/api/datasets/").removesuffix("/revision/main")
            return 200, {"id": name, "private": name not in self.public, "sha": "1" * 40}
        return 404, {"error": f"unexpected {method} {path}"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = found.answer(self.command, self.path.split("?")[0], body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = respond

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", found.url)
    monkeypatch.setenv("HF_TOKEN", "hf_for_a_local_server")
    yield found
    server.shutdown()
    server.server_close()


def test_a_push_is_private_and_holds_data_and_card(db: Database, tmp_path: Path, hub: Hub) -> None:
    report = export(db, format="trl", out="hf://datasets/me/votes")
    assert (report.out, report.card) == ("me/votes", "me/votes/README.md")
    (created,) = hub.created
    assert (created["name"], created["organization"], created["type"]) == ("votes", "me", "dataset")
    assert created["visibility"] == "private"
    assert set(hub.files) == {"README.md", "data/train.parquet"}
    assert b"written by Kitestring" in hub.files["README.md"]
    (tmp_path / "pushed.parquet").write_bytes(hub.files["data/train.parquet"])
    assert len(pd.read_parquet(tmp_path / "pushed.parquet")) == 3


def test_a_private_push_does_not_go_to_a_public_dataset(db: Database, hub: Hub) -> None:
    hub.public.add("me/votes")
    with pytest.raises(ValueError, match="is already a public dataset"):
        export(db, format="trl", out="hf://me/votes")
    assert hub.files == {}
    export(db, format="trl", out="hf://me/votes", private=False)
    assert hub.created[-1]["visibility"] == "public"
    assert "data/train.parquet" in hub.files


def test_a_hub_out_of_reach_is_a_sentence(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"me/votes did not reach the hub: .*check the network"):
        export(db, format="trl", out="hf://me/votes")
