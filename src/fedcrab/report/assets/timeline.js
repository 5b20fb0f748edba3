// The training round by round: loss, windows, kept rounds, and accuracy if it was measured.

part(({ plan }) => {
  if (page.loss.some(Number.isFinite)) drawChartOnce(byId("loss-chart"), plan?.rollback_round, () => lossChart(plan));
  else show(byId("loss-chart"), el("p", { class: "empty" }, "No round of this history has a finite loss: it was recorded without a probe, or the training diverged."));
  drawAccuracy(plan);
});

function lossChart(plan) {
  const { facts, rounds, loss } = page;
  const xs = rounds.map((_, t) => t);
  const points = xs.map((t) => [t, loss[t]]);
  const odd = points.filter(([, y]) => !Number.isFinite(y)).length;
  return {
    label: lossLabel(odd),
    xs, xName: "round", yName: "loss", rounds: true,
    series: [{ name: "loss", kind: "plain", points }],
    bands: facts.windows.filter((_, at) => at % 2 === 0).map(([first, last]) => [first - 0.5, last + 0.5]),
    dots: facts.kept,
    ...cutAt(plan),
    hint: odd ? `${plural(odd, "round")} without a finite loss: gaps in the line.` : "",
    read: roundInWords,
  };
}

function cutAt(plan) {
  return plan ? { cut: plan.rollback_round - 0.5, cutWords: `roll back to ${plan.rollback_round}` } : {};
}

function lossLabel(odd) {
  const finite = [...page.loss].filter(Number.isFinite);
  if (!finite.length) return "Loss by round: no finite value.";
  return `Loss by round: from ${number(finite[0])} to ${number(finite[finite.length - 1])} over ${plural(page.rounds.length, "round")}${odd ? `, ${odd} of them without a finite loss` : ""}. Arrow keys read single rounds.`;
}

function roundInWords(t) {
  const { facts, rounds } = page;
  const window = facts.windows.findIndex(([first, last]) => first <= t && t <= last);
  const turned = facts.rejections.rows.filter(([at]) => at === t).length;
  const state = facts.kept.includes(t) ? "model kept" : window < 0 ? "not decided yet" : "model not kept";
  return [
    `${upper(roundAndTime(t))}: loss ${number(page.loss[t])}`, `divergence ${number(page.divergence[t])}`,
    window < 0 ? "open window" : `window ${window}`, state,
    plural(rounds[t].members + rounds[t].others.count + rounds[t].marked.count, "client"),
    turned ? `${turned} rejected` : null,
  ].filter(Boolean).join(" · ");
}

function drawAccuracy(plan) {
  const known = page.facts.accuracy ?? [];
  byId("accuracy-part").hidden = !known.length;
  if (!known.length) return;
  drawChartOnce(byId("accuracy-chart"), plan?.rollback_round, () => accuracyChart(plan, known));
}

function accuracyChart(plan, known) {
  const attacked = known.some(([, , asr]) => asr != null);
  return {
    label: `Accuracy${attacked ? " and attack success" : ""} of the kept models, measured on test data. Arrow keys read single models.`,
    xs: known.map(([t]) => t), xName: "model before round", yName: attacked ? "share of test examples" : "accuracy", rounds: true, xMin: 0, xMax: page.rounds.length,
    yMin: 0, yMax: 1, yFormat: percent,
    series: [
      { name: "accuracy", kind: "honest", points: known.map(([t, ta]) => [t, ta]) },
      ...(attacked ? [{ name: "attack success", kind: "poison", points: known.map(([t, , asr]) => [t, asr]) }] : []),
    ],
    ...(plan ? { cut: plan.rollback_round, cutWords: `roll back to ${plan.rollback_round}` } : {}),
    read: (i) => `Model before ${roundAndTime(known[i][0])}: accuracy ${percent(known[i][1], 1)}${attacked ? ` · attack success ${percent(known[i][2], 1)}` : ""}`,
  };
}
