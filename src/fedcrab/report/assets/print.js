// Printing: the whole page at the width of a sheet with all details open, or a one-page summary.

const [SCREEN_CHART, PAPER_CHART] = [CHART.height, 130]; // pixels
const MOST_PRINTED = 120; // rows of a table; longer ones stay closed

function preparePrint() {
  byId("print").addEventListener("click", () => print());
  byId("print-summary").addEventListener("click", () => {
    document.documentElement.dataset.print = "summary";
    print();
  });
  addEventListener("beforeprint", layOutForPaper);
  addEventListener("afterprint", layOutForScreen);
}

const paper = { open: [], theme: undefined };

function layOutForPaper() {
  const root = document.documentElement;
  paper.theme = root.dataset.theme;
  root.dataset.theme = "light";
  root.classList.add("paper");
  CHART.height = PAPER_CHART;
  showSummary();
  for (const details of document.querySelectorAll("main details:not([open])")) {
    if (details.hidden) continue;
    details.open = true;
    details.refresh?.();
    if (details.querySelectorAll("tbody tr").length > MOST_PRINTED) details.open = false;
    else paper.open.push(details);
    details.refresh?.();
  }
  redrawAll();
}

function layOutForScreen() {
  const root = document.documentElement;
  for (const details of paper.open.splice(0)) details.open = false;
  if (paper.theme === undefined) delete root.dataset.theme;
  else root.dataset.theme = paper.theme;
  root.classList.remove("paper");
  CHART.height = SCREEN_CHART;
  delete root.dataset.print;
  redrawAll();
}

function redrawAll() {
  widths.clear();
  palette = null;
  refresh();
  drawCurves();
  drawLifts();
}

// The one-page summary: what happened, who, what was done, and what is left to do.
function showSummary() {
  const answer = answerNow();
  const now = stageOf(answer);
  show(byId("summary"),
    el("h2", {}, "Summary"),
    el("p", { class: "big-lead" }, byId("verdict-title").textContent),
    el("dl", { class: "board" }, boardRows(answer, now).flatMap(([name, words]) => [el("dt", {}, name), el("dd", {}, words)])),
    el("p", { class: "note" }, "Limits: undetected attackers do not count, and attack success was measured on the available test data only."));
}

function boardRows({ plan }, now) {
  const { detection, recoveries, incident, trigger } = page.facts;
  const suspects = inOrder(suspectsNow());
  const begun = detection?.onset?.round;
  return [
    ["Status", incident.status || { recovered: "recovered", decided: "decided, not recovered yet", suspected: "under investigation", quiet: "no sign of an attack", refused: "nothing decided yet" }[now]],
    incident.owner ? ["Owner", incident.owner] : null,
    ["What happened", detection ? (suspects.length ? `${upper(clientsInWords(suspects))} ${suspects.length === 1 ? "stands" : "stand"} out among ${plural(everyone(), "client")} (${percent(detection.confidence, 1)} sure of an attack)${begun == null ? "" : `, visibly from ${roundAndTime(begun)} on`}.` : "The detector found no sign of an attack.") : "The detector was not run."],
    trigger?.planted ? ["What was planted", triggerInWords(trigger)] : null,
    ["When", whenTrained() ? `The model was ${whenTrained()}, in ${plural(page.rounds.length, "round")}.` : `${plural(page.rounds.length, "round")}; the history has no times.`],
    plan ? ["Who is excluded", `${upper(clientsInWords(namesOf(plan)))}.`] : null,
    plan ? ["What is undone", plan.rollback_round ? `Rounds ${plan.rollback_round} to ${page.rounds.length - 1} of ${page.rounds.length}.` : "The whole training."] : null,
    plan ? [now === "recovered" ? "Cost" : "Planned cost", `${plural((spentBy(plan) ?? defaultCost(plan)).clientRounds, "client-round")}, ${percent((spentBy(plan) ?? defaultCost(plan)).share)} of full retraining.`] : null,
    now === "recovered" ? ["Result", [...(recoveries.poisoned?.asr != null ? [`Attack success ${percent(recoveries.poisoned.asr, 1)} before, ${percent(chosenRecovery().asr, 1)} after. `] : []), measuredInWords(chosenRecovery(), recoveries.poisoned, recoveries.deploy === chosenRecovery().method)]] : null,
    now === "recovered" ? ["Model to deploy", recoveries.deploy ? el("code", {}, chosenRecovery().model) : "none yet"] : null,
    plan?.warnings.length ? ["Warnings", plan.warnings.join(" ")] : null,
    ["Evidence", `History ${page.facts.path}, last entry ${page.facts.head.slice(0, 16)}…; “fedcrab verify” checks that it is unchanged.`],
  ].filter(Boolean);
}
