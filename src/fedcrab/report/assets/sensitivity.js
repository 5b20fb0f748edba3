// How far the poison reaches: the settings, the chart of S and Φ, and each client's share.

const EVIDENCE = { all: "all rounds", stored: "stored rounds" };
const RULE = { prefix: "before first excess", last: "last within" };
const MEANING = {
  all: "Every round and every participant counts, kept or not.",
  stored: "Only kept rounds and selected clients count, as in the paper: a client that was never selected has no influence here.",
  prefix: "The rollback goes to the last kept model before S first exceeds Φ.",
  last: "The rollback goes to the last kept model with S within Φ, even if S exceeded Φ in between.",
};

function prepareReach() {
  choices(byId("preset"), "preset", { hardened: "hardened", paper: "paper" }, presetNow(), (name) => change({ ...page.facts.presets[name] }));
  choices(byId("evidence"), "evidence", EVIDENCE, state.evidence, (evidence) => change({ evidence }));
  choices(byId("rule"), "rule", RULE, state.rule, (rule) => change({ rule }));
  byId("beta").addEventListener("input", (event) => change({ beta: Number(event.target.value) }));
  byId("beta-number").addEventListener("input", (event) => change({ beta: event.target.value === "" ? NaN : Number(event.target.value) }));
  byId("since").max = String(Math.max(page.rounds.length - 1, 0));
  byId("since").addEventListener("input", (event) => change({ since: event.target.value === "" ? null : Number(event.target.value) }));
  whenOpen(byId("records-table"), recordsTable);
}

part(({ plan }) => {
  choose("preset", presetNow());
  choose("evidence", state.evidence);
  choose("rule", state.rule);
  byId("beta").value = String(state.beta);
  byId("beta").setAttribute("aria-valuetext", `${number(state.beta)}: ${percent(state.beta)} of the honest clients' movement`);
  if ((byId("beta-number").value === "" || Number(byId("beta-number").value) !== state.beta) && document.activeElement !== byId("beta-number") && Number.isFinite(state.beta)) byId("beta-number").value = String(state.beta);
  byId("settings").textContent = `${MEANING[state.evidence]} ${MEANING[state.rule]}`;
  byId("onset").textContent = onsetInWords(plan);
  drawReach(plan);
  show(byId("shares"), plan ? sharesOfClients(plan) : null);
  byId("records-table").hidden = !plan;
  byId("records-table").refresh();
});

// When the suspects started, as far as it is visible, if exactly they are marked; and what `since` would save.
function onsetInWords(plan) {
  const found = page.facts.detection?.onset;
  const suspects = new Set(suspectsNow());
  if (!plan || !found || page.facts.together.length || suspects.size !== state.marked.size || ![...state.marked].every((client) => suspects.has(client))) return "";
  if (found.round == null) return `It is not clear when the suspects started: ${found.why}.`;
  if (Object.values(plan.since).some((round) => round > found.certain)) return `Careful: they differ from the others by round ${found.certain}, but count as honest until later.`;
  if (Object.keys(plan.since).length || !found.since) return `The suspects differ visibly from the others from ${roundAndTime(found.round)} on.`;
  return `The suspects show no sign of an attack before round ${found.round}, and a clear one by round ${found.certain}. If you know that they were honest at first, enter ${found.since}, ${plural(found.round - found.since, "round")} earlier, because a first act can be too small to see: ${savingInWords(plan, found.since)}. An attacker that hides has no visible start.`;
}

function savingInWords(plan, round) {
  const { beta, evidence, rule } = plan;
  const since = new Map([...state.marked].map((client) => [client, round]));
  const { influences } = page;
  page.influences = {}; // those of the plan shown stay in the cache
  const saving = makePlan(page, state.marked, { beta, evidence, rule, since });
  page.influences = influences;
  return `back to round ${saving.rollback_round}, ${percent(defaultCost(saving).share)} of full retraining instead of ${percent(defaultCost(plan).share)}`;
}

function drawReach(plan) {
  const host = byId("reach-chart");
  if (!plan) return show(host, el("p", { class: "empty" }, "Mark a client to see S and Φ."));
  const { candidates, index } = plan;
  const moved = honestMovement(plan);
  const [sensitivity, threshold] = [plan.sensitivity, plan.threshold].map((values) => values.map((value) => value / moved));
  const most = Math.max(...extremes(threshold), 0);
  const high = Math.max(...extremes(sensitivity), 0);
  const cropped = most > 0 && high > 4 * most;
  drawChart(host, {
    label: `Poison S and tolerated Φ at each kept round. At the rollback, round ${plan.rollback_round}: S ${percent(sensitivity[index], 1)}, Φ ${percent(threshold[index], 1)} of the distance that the honest clients moved the model. Arrow keys read single rounds.`,
    xs: candidates, xName: "model before round", yName: "share of honest movement", rounds: true, yFormat: percent, xMin: 0, xMax: Math.max(page.rounds.length - 1, 1),
    yMin: 0, yMax: (cropped ? 4 * most : Math.max(high, most)) * 1.05 || 1,
    series: [
      { name: "tolerated Φ", kind: "honest", points: candidates.map((t, j) => [t, threshold[j]]) },
      { name: "poison S", kind: "poison", points: candidates.map((t, j) => [t, sensitivity[j]]) },
    ],
    cut: plan.rollback_round, cutWords: `roll back to ${plan.rollback_round}`,
    hint: cropped ? `S grows to ${percent(high)}, ${number(high / most)} times the largest Φ; the chart ends at four times.` : "",
    read: (j) => recordInWords(plan, j),
  });
}

function recordInWords(plan, j) {
  const verdict = j === plan.index ? "the rollback goes here" : plan.sensitivity[j] <= plan.threshold[j] ? "within" : "too much";
  const share = (value) => percent(value / honestMovement(plan), 1);
  return `Model before ${roundAndTime(plan.candidates[j])}: S ${share(plan.sensitivity[j])} · Φ ${share(plan.threshold[j])} · ${verdict}`;
}

// How far the honest clients moved the model in the whole training: the unit of S and Φ on the page.
function honestMovement(plan) {
  const { phi } = influenceUnder(page, state.marked, sinceNow(), plan.evidence);
  return sum(phi, 0, phi.length) || 1;
}

function recordsTable() {
  const { plan } = answerNow();
  if (!plan) return null;
  const moved = honestMovement(plan);
  const rows = plan.candidates.map((t, j) => [
    whole.format(t), percent(plan.sensitivity[j] / moved, 1), number(plan.sensitivity[j]), number(plan.threshold[j]),
    j === plan.index ? el("b", {}, "roll back") : plan.sensitivity[j] <= plan.threshold[j] ? "within" : "S > Φ",
  ]);
  return table(["before round", "S, of honest movement", "S", "Φ", "decision"], rows);
}

// Each marked client's share of the poison.
function sharesOfClients(plan) {
  const rows = [...plan.shares].sort((a, b) => b[1] - a[1]).slice(0, 12);
  const left = plan.shares.size - rows.length;
  return [
    el("h3", {}, "Share of the poison"),
    el("div", { class: "meters" }, rows.map(([client, share]) => meter(nameOf(client), share, percent(share, 1), "poison"))),
    left > 0 ? el("p", { class: "note" }, `and ${plural(left, "client")} with less each`) : null,
  ];
}

function meter(name, share, words, kind, most = 24) {
  const fill = el("i", { class: kind });
  fill.style.width = `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;
  return el("div", { class: "meter" }, el("span", { class: "name", title: name }, shortened(name, most)), el("span", { class: "track", "aria-hidden": "true" }, fill), el("span", { class: "value" }, words));
}
