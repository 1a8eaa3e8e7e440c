// The ring in the bar: this annotator's share of the round.  A round is an iteration's queue: the pairs
// that the annotator judged of it, and those that they can still judge.

function showProgress({ done, remaining, today, judged, iteration }) {
  const round = done + remaining;
  const share = round ? Math.round((100 * done) / round) : 0;
  const name = iteration ? t("this round") : "";
  $(".ring").hidden = !round;
  $("[data-count=done]").textContent = done;
  $("[data-count=round]").textContent = round;
  $(".ring .name").textContent = name;
  $(".ring .arc").style.strokeDashoffset = 100 - share;
  $(".ring").setAttribute("aria-valuenow", share);
  $(".ring").setAttribute("aria-valuetext", t("{done} of {round} pairs judged", { done, round }));
  $(".ring").title = t("{today} today, {judged} in total. Training can start before all pairs are judged.", { today, judged });
}
