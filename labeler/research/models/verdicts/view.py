"""The gate's verdict on each policy, its evidence and the leaderboard as HTML. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labeler.html import components
from labeler.html.components import Column, Markup, Tone
from labeler.research import canary_view
from labeler.research.charts import Chart, Limit, Series, group
from storage.gate_records import GateOverride
from storage.gate_report import GateProgress, GateReport, Rank, Standing

TONES: Mapping[str, Tone] = {"promoted": "good", "blocked": "bad", "provisional": "warn"}
_MEANING = {
    "promoted": "significantly better than SFT",
    "blocked": "the next iteration samples the last promoted policy",
    "provisional": "not enough evidence yet; the loop continues with the next policy",
}
_COLUMNS = (
    Column("Policy"),
    Column("Verdict"),
    Column("Wins against SFT", help="Probability that people prefer the policy to SFT, by a "
           "Bradley-Terry model of all judgments between policies (ties count half), with its 95% "
           "interval, clustered by prompt. The line in the middle is 50%."),
    Column("Judgments", "right", "Judgments of this policy against any other policy."),
)  # fmt: skip


def badge(verdict: str | None) -> Markup:
    """A verdict as a badge; a dash if there is none."""
    return components.badge(verdict, TONES[verdict]) if verdict else Markup(components.DASH)


def shown_policy(report: GateReport, chosen: str | None) -> Standing | None:
    """The standing of `chosen`, otherwise of the policy being judged, otherwise of the newest."""
    standings = {each.policy: each for each in report.policies}
    judged = report.iteration.policy if report.iteration else None
    for name in (chosen, judged, *standings):
        if name in standings:
            return standings[name]
    return None


def _meaning(found: Standing) -> str:
    """The reason for a verdict, or its consequence."""
    if found.verdict == "promoted" != found.by_evidence:
        return "by a researcher's ruling; the evidence does not show it"
    if found.verdict == "provisional" and found.canary and found.canary.holds:
        return "not promoted, because it lost too much on the canary; the loop continues"
    return _MEANING[found.verdict]


def standing(report: GateReport, chosen: str | None) -> Markup:
    """A policy's verdict and its evidence."""
    found = shown_policy(report, chosen)
    if found is None:
        return components.empty(
            "No trained policy yet",
            "After the first training, annotators compare each new policy with SFT without knowing "
            "which model wrote which response. The verdict appears here.",
        )
    return components.card(
        components.heading(found.policy, _meaning(found)),
        badge(found.verdict),
        *(Markup("<p>{}</p>").format(sentence) for sentence in found.words),
        _progress(report.iteration, found.policy),
        _canary(found),
        css="ks-verdict",
    )


def _canary(found: Standing) -> Markup:
    """The canary's checks of this policy; empty without a canary."""
    if found.canary is None:
        return Markup("")
    return components.stack(
        components.heading(canary_view.TITLE, found.canary.function),
        canary_view.canary(found.canary.checks, found.canary.lost),
    )


def _progress(iteration: GateProgress | None, policy: str) -> Markup:
    """The progress of this iteration's judgments against SFT, if they are of this policy."""
    if iteration is None or iteration.policy != policy or not iteration.wanted:
        return Markup("")
    share = iteration.judged / iteration.wanted
    judged, wanted = map(components.number, (iteration.judged, iteration.wanted))
    tone: Tone = "good" if share >= 1 else "info"
    return components.bar(share, tone=tone, label="judgments against SFT") + components.detail(
        f"{judged} judgments against SFT; {wanted} wanted"
    )


def gate_notice(report: GateReport) -> Markup:
    """The notice on the Overview page that a policy is blocked or needs no more judgments against SFT."""
    found = shown_policy(report, None)
    if report.iteration is None or found is None:
        return Markup("")
    if found.verdict == "blocked":
        return components.note(
            "bad",
            f"{found.policy} is blocked. The next iteration samples {report.last_promoted}.",
            "The Models page shows the evidence. You can override the verdict there.",
        )
    if found.canary and found.canary.holds and found.verdict == "provisional":
        return components.note(
            "warn",
            f"{found.policy} loses too much on the canary, so it is not promoted.",
            "The Models page shows the evidence. You can override the verdict there.",
        )
    if not found.may_stop:
        return Markup("")
    decision = found.sequential.decision
    return components.note(
        "good",
        f"{found.policy} is {decision} than SFT. You can stop comparing them.",
        "The Models page shows the evidence. More labels still improve the reward model.",
    )


def curve(report: GateReport, chosen: str | None) -> Markup:
    """log E of the sequential test after each prompt, and the limit at which it decides."""
    found = shown_policy(report, chosen)
    if found is None or len(found.sequential.path) < 2:
        return Markup("")
    test = found.sequential
    steps, values = zip(*test.path, strict=True)
    chart = Chart(
        f"Sequential test of {found.policy} against SFT",
        [Series("log E", steps, values)],
        "Logarithm of the e-value against the hypothesis that neither is better, after each judged "
        "prompt. Above the limit, the test has decided. You can check it at any time: if neither is "
        "better, log E exceeds the limit in at most 5% of cases.",
        limits=[Limit(test.limit, "decided above")],
        y_title="log E",
        tall=True,
    )
    return group([chart], x_title="judged prompt")


def board(report: GateReport) -> Markup:
    """Each policy's win rate against SFT with its interval."""
    if not report.policies:
        return Markup("")
    verdicts = {each.policy: each.verdict for each in report.policies}
    rows = [
        (
            rank.policy,
            badge(verdicts.get(rank.policy)),
            _win_rate(rank),
            components.number(rank.judgments),
        )
        for rank in report.leaderboard
    ]
    heading = components.heading(
        "Leaderboard", "all policies compared with SFT, by people's judgments"
    )
    return heading + components.table(_COLUMNS, rows, caption="Leaderboard of policies")


def _win_rate(rank: Rank) -> Markup:
    rate, low, high = rank.win_rate, rank.low, rank.high
    if rate is None or low is None or high is None:
        return Markup("<span>not comparable with SFT yet</span>")
    bar = components.interval_bar(rank.policy, low, rate, high)
    exact = rate == low == high
    text = Markup("<span>reference</span>") if exact else components.with_interval(rate, low, high)
    return Markup('<div class="ks-rank">{}{}</div>').format(bar, text)


def rulings(given: Sequence[GateOverride]) -> Markup:
    """Researchers' rulings, the newest first."""
    if not given:
        return Markup("")
    columns = (Column("Ruled"), Column("Policy"), Column("Ruling"), Column("Reason"), Column("By"))
    rows = [
        (components.moment(o.created_at), o.policy, o.ruling, components.prose(o.reason), o.researcher or components.DASH)
        for o in reversed(given)
    ]  # fmt: skip
    heading = components.heading("Rulings", "by researchers; they override the evidence")
    return heading + components.table(columns, rows, caption="Rulings")
