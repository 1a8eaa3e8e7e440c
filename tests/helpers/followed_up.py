"""A workspace in which a new policy has answered prompts that somebody judged."""

from __future__ import annotations

from storage.engine.database import Database
from storage.labeling import judgments, queue
from storage.records import Annotator, FollowUp, Iteration, ModelVersion, ScreenOutcome
from storage.tables import iterations, models


def follow_up(
    db: Database,
    who: Annotator,
    answers: list[tuple[ScreenOutcome, int | None, str]],
    *,
    others: int = 364,
) -> None:
    """`who` judges a pair for each answer (outcome, strength, the new policy's text), the pairs are
    learned from with as many `others`, and the next iteration begins."""
    learned = []
    for outcome, strength, text in answers:
        [pair] = queue.lease(db, who.id, 1).pairs
        id = f"j-{who.id}-{pair.comparison.id}"
        judgments.judge(
            db, id=id, comparison=pair.comparison.id, annotator=who.id, outcome=outcome,
            strength=strength,
        )  # fmt: skip
        new = {"=a": pair.left, "=b": pair.right}.get(text, text)
        learned.append(
            FollowUp(
                id=f"u-{id}", iteration=1, prompt=pair.prompt.id, policy="policy-1", text=new,
                learned=[id], tokens=3, finish_reason="stop", temperature=1.0, top_p=0.9, seed=0,
            )
        )  # fmt: skip
    db.write(lambda tx: tx.store(*learned))
    known = [model for model in models.listing(db) if model.id == "reward-1"]
    counts = dict(known[0].summary["learned_by"]) if known else {"others": others}
    counts[who.id] = len(answers)
    summary = {"learned_by": counts}
    models.add(db, ModelVersion(id="reward-1", role="reward", name="reward-1", summary=summary))
    first = iterations.get(db, 1)
    iterations.save(
        db, Iteration(number=1, phase=first.phase, reward_model="reward-1", labels_wanted=600)
    )
