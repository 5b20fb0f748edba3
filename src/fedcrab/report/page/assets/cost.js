// What each way to recover would ask of the honest clients, and what Crab would replay.

const METHODS = {
  "crab-hardened": "Crab, hardened",
  "crab-paper": "Crab, as published",
  federaser: "FedEraser",
  fedrecover: "FedRecover",
  retrain: "Train from scratch",
  poisoned: "Poisoned model",
};

function methodName(name) {
  return METHODS[name] ?? name;
}

function prepareCost() {
  whenOpen(byId("replay-table"), replayTable);
}

part(({ plan, presets }) => {
  show(byId("methods"), plan ? el("div", { class: "meters wide-names" }, costRows(plan, presets)) : el("p", { class: "empty" }, "Mark a client to see what recovery takes."));
  drawReplay(plan);
  byId("replay-table").hidden = !plan;
  byId("replay-table").refresh();
});

// { name, clientRounds, words } of each method, under the marks of now.
function methodCosts(plan, presets) {
  const all = plan.cost.retrain_client_rounds;
  const own = presetNow() ? [] : [{ name: "as set above", clientRounds: plan.cost.client_rounds, words: `from round ${plan.rollback_round}`, refused: null }];
  const methods = page.facts.methods.map((method) => {
    const decided = method.preset ? presets[method.preset] : null;
    return {
      name: methodName(method.name),
      clientRounds: decided ? decided.cost.client_rounds : clientRounds(page, method.rounds, state.marked),
      words: decided ? `from round ${decided.rollback_round}` : method.remark ?? "",
      refused: method.refused,
    };
  });
  return [...own, ...methods].map((row) => ({ ...row, share: all ? row.clientRounds / all : 0 }));
}

function costRows(plan, presets) {
  return methodCosts(plan, presets).map(({ name, clientRounds, share, words, refused }) => {
    if (refused) return el("div", { class: "meter refused" }, el("span", { class: "name" }, name), el("span", { class: "why" }, `Not from this history: ${refused}.`));
    const row = meter(name, share, `${whole.format(clientRounds)} · ${percent(share)}`, "honest");
    if (words) row.append(el("span", { class: "why" }, words));
    return row;
  });
}

function drawReplay(plan) {
  const host = byId("replay-chart");
  if (!plan) return show(host, el("p", { class: "empty" }, "Mark a client to see what would be replayed."));
  const xs = plan.replay.map((step) => step.round);
  drawChart(host, {
    label: `Honest clients asked in each of ${plural(plan.replay.length, "replayed round")}. Arrow keys read single rounds.`,
    xs, xName: "replayed round", xMin: 0, xMax: Math.max(page.rounds.length - 1, 1), yMin: 0,
    series: [{ name: "honest clients asked", kind: "bars", points: plan.replay.map((step) => [step.round, asked(step)]) }],
    cut: plan.rollback_round, cutWords: `replay begins at ${plan.rollback_round}`,
    read: (i) => `Round ${plan.replay[i].round}: ${stepInWords(plan.replay[i])}`,
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
