// The headline: the state of the incident (suspected, decided or recovered) in one sentence.

part((answer) => {
  const now = stageOf(answer);
  show(byId("stages"), stagesOf(answer, now));
  show(byId("verdict"), ...HEADLINES[now](answer));
  byId("brief").textContent = briefOf(answer, now);
  byId("verdict").closest("section").dataset.stage = now;
});

const HEADLINES = { recovered: recoveredHeadline, decided: decidedHeadline, suspected: suspectedHeadline, quiet: quietHeadline, refused: refusedHeadline };

// `recovered` only if the marked clients are those that the recovery excluded.
function stageOf({ plan, refused }) {
  if (plan) return isRecovered() ? "recovered" : "decided";
  if (markedCount() || !page.rounds.length || !page.facts.detection) return "refused";
  return suspectsNow().length ? "suspected" : refused ? "quiet" : "refused";
}

function isRecovered() {
  const { recoveries, together } = page.facts;
  if (!recoveries) return false;
  const marked = new Set([...[...state.marked].map(nameOf), ...together]);
  return recoveries.malicious.length === marked.size && recoveries.malicious.every((id) => marked.has(id));
}

// The recovery whose model to deploy; without one, the first to show.
function chosenRecovery() {
  const { methods, deploy } = page.facts.recoveries;
  return methods.find((row) => row.method === deploy) ?? methods.find((row) => row.rolls_back) ?? methods[0];
}

function suspectsNow() {
  return [...(page.scores ?? [])].filter(([, row]) => row.suspect).sort((a, b) => b[1].score - a[1].score).map(([client]) => client);
}

// "1, 8 and 11", with at most `most` names.
function namesInWords(ids, most = 8) {
  const shown = ids.slice(0, most).map((id) => shortened(id));
  const rest = ids.length - shown.length;
  if (rest) return `${shown.join(", ")} and ${plural(rest, "other")}`;
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}` : shown.join("");
}

function inOrder(clients) {
  const known = new Set(clients);
  return page.facts.order.filter((client) => known.has(client)).map(nameOf);
}

function clientsInWords(ids) {
  return `${ids.length === 1 ? "client" : "clients"} ${namesInWords(ids)}`;
}

function shortHash(hash) {
  return el("code", { title: hash }, hash.slice(0, 12));
}

function title(...words) {
  return el("h2", { id: "verdict-title" }, ...words);
}

function lead(...words) {
  return el("p", { class: "big-lead" }, ...words);
}

function recoveredHeadline({ plan }) {
  const { recoveries } = page.facts;
  const row = chosenRecovery();
  const before = recoveries.poisoned;
  const success = row.asr != null && before?.asr != null ? `attack success ${percent(before.asr)} → ${percent(row.asr)}` : null;
  const done = success ? `Recovered: ${success}.` : row.ta == null ? `Recovered by ${row.method}.` : `Recovered: accuracy ${percent(row.ta)}.`;
  const good = recoveries.deploy === row.method;
  const next = good ? [" ", row.ta == null ? "Model " : "Deploy model ", shortHash(row.model), "."] : [" Do not deploy it yet."];
  return [
    title(done, ...next),
    lead(`Rebuilt without ${clientsInWords(namesOf(plan))} by ${row.method}${workInWords(row)}. ${measuredInWords(row, before, good)}`),
    good && recoveries.why && row.ta != null ? el("p", { class: "note" }, `Why this model, of ${whole.format(recoveries.methods.length)}: ${recoveries.why}.`) : null,
    el("p", { class: "note hash" }, "Model file ", el("code", {}, row.path), ", SHA-256 ", el("code", {}, row.model), "."),
  ];
}

function workInWords(row) {
  const scratch = page.facts.recoveries.methods.find(({ reference }) => reference)?.client_rounds;
  const all = scratch ?? answerNow().plan?.cost.retrain_client_rounds;
  return row.reference || !all || row.client_rounds == null ? "" : `, at ${percent(row.client_rounds / all)} of the work of full retraining`;
}

function measuredInWords(row, before, good) {
  if (row.ta == null) return "It has not been evaluated: evaluate it on your own data before you deploy it.";
  const scratch = page.facts.recoveries.methods.find((other) => other.reference && other !== row);
  const others = [before ? `poisoned ${percent(before.ta, 1)}` : null, scratch ? `retrained ${percent(scratch.ta, 1)}` : null].filter(Boolean).join(", ");
  const words = `Accuracy ${percent(row.ta, 1)}${others ? ` (${others})` : ""}.`;
  return good ? words : `${words} Its accuracy is too low or its attack success too high: compare the methods below.`;
}

function decidedHeadline({ plan }) {
  const t = plan.rollback_round;
  const { method, clientRounds, share } = defaultCost(plan);
  const to = t === 0 ? "the initial model" : `the model before round ${t}`;
  const when = t > 0 && hasTimes() ? `, as it was on ${day(timeBefore(t))} at ${clock(timeBefore(t), trainingSpan().short)} UTC` : "";
  const honest = everyone() - markedCount();
  return [
    title(`Decided: roll back to ${to}, then replay.`),
    lead(`${upper(clientsInWords(namesOf(plan)))} ${markedCount() === 1 ? "is" : "are"} excluded. ${why(plan, to)}${when}. The method ${method} then rebuilds the model with the ${plural(honest, "other client")}: ${plural(clientRounds, "client-round")}, ${percent(share)} of full retraining.`),
    page.facts.recoveries ? el("p", { class: "note" }, "The recovery on this page excluded other clients than those marked now.") : null,
  ];
}

function upper(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function why(plan, to) {
  const t = plan.rollback_round;
  if (t === 0) return "Every later kept model contains more of their influence than is tolerated, so the whole training is undone";
  if (plan.index === plan.candidates.length - 1) return `Even the last kept model contains no more of their influence than is tolerated, so the rollback goes to ${to}`;
  return plan.beta === 0 && plan.poison_left === 0
    ? `None of their updates is in ${to}`
    : `Their influence on ${to} is within the tolerated amount`;
}

function suspectedHeadline() {
  const { detection } = page.facts;
  const clients = suspectsNow();
  const begun = detection.onset?.round;
  const since = begun == null ? "" : ` They differ from the others from ${roundAndTime(begun)} on.`;
  return [
    title(`Suspected: ${clientsInWords(inOrder(clients))}.`),
    lead(`${percent(detection.confidence, 1)} sure that ${clients.length === 1 ? "this client" : `these ${whole.format(clients.length)} of ${plural(everyone(), "client")}`} attacked the training.${since} Nothing is decided yet: look at what they did, then mark them.`),
    el("p", { class: "actions" }, takeSuspects("headline-take"), el("a", { href: "#who" }, "See what they did")),
  ];
}

function quietHeadline() {
  const { detection } = page.facts;
  return [
    title("No sign of an attack."),
    lead(`Strongest signal: ${percent(detection.strength)} of the alarm threshold. An attacker who imitates honest clients is not visible this way. If you know who is malicious, mark them in the `, el("a", { href: "#who" }, "map of clients and rounds"), "; the page then shows how far to roll back and what that costs."),
  ];
}

function refusedHeadline({ refused }) {
  const unmarked = page.rounds.length && !markedCount();
  return unmarked
    ? [title("Nothing is decided yet."), lead("Mark the malicious clients in the ", el("a", { href: "#who" }, "map of clients and rounds"), ". The page then shows how far to roll back and what that costs.")]
    : [title(refused)];
}

function briefOf({ plan }, now) {
  if (now === "recovered") return `Recovered by ${chosenRecovery().method} · model ${chosenRecovery().model.slice(0, 12)}`;
  if (plan) return `${plural(markedCount(), "client")} marked · back to round ${plan.rollback_round} · ${percent(defaultCost(plan).share)} of retraining`;
  return now === "suspected" ? `${plural(suspectsNow().length, "suspect")} · nobody marked yet` : now === "quiet" ? "No sign of an attack" : "Nothing decided yet";
}

// The three stages, each with its result so far.
function stagesOf(answer, now) {
  const rank = { suspected: 0, quiet: 0, refused: -1, decided: 1, recovered: 2 }[now];
  return [suspectedStage(), decidedStage(answer), recoveredStage(now)].map(([name, value, words], at) =>
    el("li", { class: at < rank ? "done" : at === rank ? "now" : "later", "aria-current": at === rank ? "step" : null },
      el("span", { class: "stage" }, name), el("b", {}, value), el("span", { class: "words" }, words)));
}

function suspectedStage() {
  const { detection } = page.facts;
  if (!detection) return ["Suspected", "–", "the detector was not run"];
  const count = suspectsNow().length;
  return count
    ? ["Suspected", plural(count, "client"), `${percent(detection.confidence, 1)} sure of an attack`]
    : ["Suspected", "nobody", `strongest signal ${percent(detection.strength)} of the alarm threshold`];
}

function decidedStage({ plan }) {
  if (!plan) return ["Decided", "not yet", "nobody is marked"];
  return ["Decided", plan.rollback_round ? `back to round ${plan.rollback_round}` : "back to the start", `${plural(markedCount(), "client")} marked`];
}

function recoveredStage(now) {
  if (!page.facts.recoveries) return ["Recovered", "not yet", "no recovery has been run"];
  if (now !== "recovered") return ["Recovered", "not without these clients", "a recovery without other clients is below"];
  const row = chosenRecovery();
  const before = page.facts.recoveries.poisoned;
  if (row.asr != null && before?.asr != null) return ["Recovered", `${percent(before.asr)} → ${percent(row.asr)}`, `attack success, by ${row.method}`];
  return ["Recovered", row.ta == null ? "done" : percent(row.ta, 1), row.ta == null ? `by ${row.method}; not measured` : `accuracy, by ${row.method}`];
}
