// What each method would ask of the honest clients, and which rounds would be replayed.

function prepareCost() {
  whenOpen(byId("replay-table"), replayTable);
}

part(({ plan, presets }) => {
  show(byId("methods"), plan ? el("div", { class: "meters wide-names" }, costRows(plan, presets)) : el("p", { class: "empty" }, "Mark a client to see what recovery costs."));
  drawReplay(plan);
  byId("replay-table").hidden = !plan;
  byId("replay-table").refresh();
});

// { name, clientRounds, contacts, share, words } of each method, for the marked clients.
function methodCosts(plan, presets) {
  const own = presetNow() ? [] : [{ ...defaultCost(plan), name: "As set above", method: null }];
  return [...own, ...page.facts.methods.map((method) => methodCost(method, method.preset ? presets[method.preset] : plan))];
}

function methodCost(method, plan) {
  const counts = plannedAsks(page, method, plan, state.marked).filter((count) => count);
  const clientRounds = counts.reduce((total, count) => total + count, 0);
  const all = plan.cost.retrain_client_rounds;
  const from = method.preset ? `from round ${plan.rollback_round}` : "";
  return {
    name: method.title, method: method.name,
    clientRounds, contacts: counts.length,
    share: all ? clientRounds / all : 0,
    words: [from, `${plural(counts.length, "round")} with contact`, method.remark].filter((words) => words).join("; "),
    refused: method.refused,
  };
}

// The default method of `recover`; with the paper's preset, Crab as published.
function defaultMethod() {
  return page.facts.methods.find((method) => (presetNow() === "paper" ? method.preset === "paper" : method.default));
}

function defaultCost(plan) {
  return methodCost(defaultMethod(), plan);
}

function costRows(plan, presets) {
  return methodCosts(plan, presets).map(({ name, method, clientRounds, share, words, refused }) => {
    if (refused) return el("div", { class: "meter refused" }, el("span", { class: "name" }, name), el("span", { class: "why" }, `Not possible with this history: ${refused}.`));
    const row = meter(name, share, `${whole.format(clientRounds)} · ${percent(share)}`, "honest", 40);
    if (method === defaultMethod().name) row.querySelector(".name").append(el("span", { class: "tag" }, "default"));
    if (words) row.append(el("span", { class: "why" }, words));
    return row;
  });
}

// When the default method would ask clients. Only Crab knows beforehand which clients it asks.
function drawReplay(plan) {
  const host = byId("replay-chart");
  const method = defaultMethod();
  byId("replay-title").textContent = `When clients would be asked, by ${method.name}`;
  if (!plan) return show(host, el("p", { class: "empty" }, "Mark a client to see when clients would be asked."));
  const points = plannedRounds(page, method, plan, state.marked).filter(([, count]) => count);
  const steps = new Map(method.pace ? [] : plan.replay.map((step) => [step.round, step]));
  drawChart(host, {
    label: `Honest clients asked in each of ${plural(points.length, "round")} with contact. Arrow keys read single rounds.`,
    xs: points.map(([t]) => t), xName: "round", yName: "honest clients asked", rounds: true, xMin: 0, xMax: Math.max(page.rounds.length - 1, 1), yMin: 0,
    series: [{ name: "honest clients asked", kind: "bars", points }],
    cut: plan.rollback_round, cutWords: `replay begins at ${plan.rollback_round}`,
    read: (i) => `Round ${points[i][0]}: ${plural(points[i][1], "client")}${steps.has(points[i][0]) ? `: ${stepInWords(steps.get(points[i][0]))}` : ""}`,
  });
}

function stepInWords({ clients, others }) {
  const sorted = page.facts.order.filter((client) => clients.includes(client)).map(nameOf);
  const shown = sorted.slice(0, 30).join(", ");
  const rest = sorted.length - Math.min(30, sorted.length) + others;
  return !sorted.length && !others ? "no honest client was selected; skipped" : rest ? `${shown}${shown ? " and " : ""}${plural(rest, "other")}` : shown;
}

function replayTable() {
  const { plan } = answerNow();
  if (!plan) return null;
  return table(["round", "clients", "who trains"], plan.replay.map((step) => [whole.format(step.round), whole.format(asked(step)), stepInWords(step)]));
}
