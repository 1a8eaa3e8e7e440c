"""Is each policy better than SFT?  Verdict, evidence, log E and the leaderboard, as HTML.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labeler.html import components
from labeler.html.components import Column, Markup
from labeler.research.charts import Chart, Limit, Series, group
from storage.gate_records import GateOverride
from storage.gate_report import GateProgress, GateReport, Rank, Standing
from storage.records import Iteration

TONES: Mapping[str, components.Tone] = {"promoted": "good", "blocked": "bad", "provisional": "warn"}
_MEANING = {
    "promoted": "clearly better than SFT",
    "blocked": "the next iteration samples the last promoted policy",
    "provisional": "too little evidence so far; the loop goes on with it",
}
_COLUMNS = (
    Column("Policy"),
    Column("Verdict"),
    Column("Wins against SFT", help="Chance that people prefer it to SFT, by a Bradley-Terry "
           "model of all judgments between policies (ties count half), with its 95% interval "
           "clustered by prompt. The line in the middle is 50%."),
    Column("Judgments", "right", "Between this policy and any other, from the random stream."),
)  # fmt: skip


def badge(verdict: str | None) -> Markup:
    """A verdict as a label; a dash where there is none."""
    return components.badge(verdict, TONES[verdict]) if verdict else Markup(components.DASH)


def shown_policy(report: GateReport, chosen: str | None) -> Standing | None:
    """The standing of the policy to show: `chosen`, else the one being judged, else the newest."""
    standings = {each.policy: each for each in report.policies}
    judged = report.iteration.policy if report.iteration else None
    for name in (chosen, judged, *standings):
        if name in standings:
            return standings[name]
    return None


def _meaning(found: Standing) -> str:
    """What a verdict comes of, or leads to."""
    if found.verdict == "promoted" != found.by_evidence:
        return "by a researcher's ruling, not by the evidence"
    return _MEANING[found.verdict]


def standing(report: GateReport, chosen: str | None) -> Markup:
    """One policy's verdict and what it rests on."""
    found = shown_policy(report, chosen)
    if found is None:
        return components.empty(
            "No trained policy yet",
            "After the first training people compare each new policy with SFT, without knowing "
            "which is which. Their verdict appears here.",
        )
    words = [Markup("<p>{}</p>").format(sentence) for sentence in found.words]
    return Markup('<div class="ks-card ks-verdict">{}{}{}{}</div>').format(
        components.heading(found.policy, _meaning(found)),
        badge(found.verdict),
        components.lines(words),
        _progress(report.iteration, found.policy),
    )


def _progress(iteration: GateProgress | None, policy: str) -> Markup:
    """How many of this iteration's judgments against SFT are in, for the policy that it judges."""
    if iteration is None or iteration.policy != policy or not iteration.wanted:
        return Markup("")
    share = iteration.judged / iteration.wanted
    return Markup(
        '{}<span class="ks-detail">judgments against SFT: {} in, {} wanted</span>'
    ).format(
        components.bar(share, tone="good" if share >= 1 else "info", label="judgments against SFT"),
        components.number(iteration.judged),
        components.number(iteration.wanted),
    )


def gate_notice(report: GateReport) -> Markup:
    """What the "Loop" tab says of the policy being judged: a block, or that judging may stop."""
    found = shown_policy(report, None)
    if report.iteration is None or found is None:
        return Markup("")
    if found.verdict == "blocked":
        return components.note(
            "bad",
            f"{found.policy} is blocked: the next iteration samples {report.last_promoted}.",
            "Why, and how to overrule it, is under Policies.",
        )
    if not found.may_stop:
        return Markup("")
    decision = found.sequential.decision
    return components.note(
        "good",
        f"{found.policy} is {decision} than SFT: you may stop judging it.",
        "The evidence is under Policies. More labels still teach the reward model.",
    )


def curve(report: GateReport, chosen: str | None) -> Markup:
    """log E after each prompt, and the limit at which the test stops."""
    found = shown_policy(report, chosen)
    if found is None or len(found.sequential.path) < 2:
        return Markup("")
    test = found.sequential
    steps, values = zip(*test.path, strict=True)
    chart = Chart(
        f"Evidence on {found.policy} against SFT",
        [Series("log E", steps, values)],
        "log E of a bet against “neither is better”, after each prompt judged. Wherever it passes "
        "the limit the question is settled, and it may be looked at as often as one likes: it passes "
        "in at most 5% of cases where neither is better.",
        limits=[Limit(test.limit, "settled")],
        tall=True,
    )
    return group([chart], x_title="prompt")


def board(report: GateReport) -> Markup:
    """Every policy's chance against SFT with its interval, as a plot and in figures."""
    if not report.policies:
        return Markup("")
    verdicts = {each.policy: each.verdict for each in report.policies}
    rows = [
        (
            rank.policy,
            badge(verdicts.get(rank.policy)),
            Markup('<div class="ks-rank">{}{}</div>').format(_range(rank), _figures(rank)),
            components.number(rank.judgments),
        )
        for rank in report.leaderboard
    ]
    heading = components.heading("Leaderboard", "every policy against SFT, by people")
    return heading + components.table(_COLUMNS, rows, caption="Leaderboard of policies")


def _figures(rank: Rank) -> Markup:
    if rank.win_rate is None:
        return Markup("<span>cannot be ranked: no judgments lead to SFT</span>")
    if rank.win_rate == rank.low == rank.high:
        return Markup("<span>the measure</span>")
    return Markup('<span>{} <span class="ks-muted">{}</span></span>').format(
        components.percent(rank.win_rate), components.interval(rank.low, rank.high)
    )


def _range(rank: Rank) -> Markup:
    """A line from 0 to 100% with the interval and the estimate on it."""
    if rank.win_rate is None or rank.low is None or rank.high is None:
        return Markup("")
    low, middle, high = (round(100 * share, 1) for share in (rank.low, rank.win_rate, rank.high))
    label = f"{rank.policy}: {middle}%, 95% interval {low} to {high}%"
    return Markup(
        '<div class="ks-range" role="img" aria-label="{}"><i style="left:{}%;width:{}%"></i>'
        '<b style="left:{}%"></b></div>'
    ).format(label, low, round(high - low, 1), middle)


def rulings(given: Sequence[GateOverride]) -> Markup:
    """What researchers ruled, the newest first; nothing where nobody has."""
    if not given:
        return Markup("")
    columns = (Column("Ruled"), Column("Policy"), Column("Ruling"), Column("Reason"), Column("By"))
    rows = [
        (components.moment(o.created_at), o.policy, o.ruling, components.prose(o.reason), o.researcher or components.DASH)
        for o in reversed(given)
    ]  # fmt: skip
    return Markup("{}{}").format(
        components.heading("Rulings", "by researchers, before the evidence"),
        components.table(columns, rows, caption="Rulings"),
    )


def verdict_of(iteration: Iteration, policy: str | None) -> Markup:
    """The verdict of an iteration on the policy it judged, for the history."""
    if iteration.verdict is None:
        return Markup(components.DASH)
    return components.figure(badge(iteration.verdict), policy or "")
