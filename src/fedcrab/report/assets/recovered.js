// What was recovered: poisoned, recovered and retrained side by side.

const KINDS_OF_LINES = ["honest", "second", "third", "fourth", "fifth"]; // one after another; the reference is plain

function prepareRecovered() {
  const { recoveries } = page.facts;
  if (!recoveries) return;
  byId("recovered").hidden = false;
  byId("recovered-lead").textContent = leadOf(recoveries);
  show(byId("outcomes"), outcomesOf(recoveries));
  show(byId("recovered-costs"), costsTable(recoveries));
  drawCurves();
}

function leadOf({ malicious, methods }) {
  const known = new Set(malicious);
  const names = [...page.facts.order.map(nameOf), ...page.facts.together].filter((id) => known.has(id)).slice(0, 30).join(", ") + (malicious.length > 30 ? " and others" : "");
  return `With ${names || "nobody"} taken for malicious: ${plural(methods.length, "recovery", "recoveries")}, judged on test data that no client and no method has seen.${supposedIn(methods)}`;
}

// A recovery may have been decided for attackers whom nobody named; the page itself does not count any.
function supposedIn(methods) {
  const counts = [...new Set(methods.map(({ decision }) => decision.unfound).filter((count) => count > 0))];
  return counts.length
    ? ` Decided for up to ${counts.join(" or ")} attackers beyond those named; the rollback that this page shows above counts marked clients alone, plan --unfound ${counts[0]} shows the one that was taken.`
    : "";
}

function outcomesOf({ poisoned, methods }) {
  const rows = [...(poisoned ? [{ title: "Poisoned model", bad: true, ...poisoned }] : []), ...methods];
  return rows.map((row) => el("article", { class: row.bad ? "outcome bad" : "outcome" },
    el("h3", {}, row.title),
    el("dl", {}, outcome("Accuracy", percent(row.ta, 1)), row.asr == null ? null : outcome("Attack success", percent(row.asr, 1)),
      row.misr == null ? null : outcome("Membership told", percent(row.misr, 1)),
      row.bad ? null : outcome("Client-rounds", row.client_rounds == null ? "–" : whole.format(row.client_rounds)))));
}

function outcome(name, value) {
  return [el("dt", {}, name), el("dd", {}, value)];
}

function costsTable({ methods }) {
  const scratch = methods.find((row) => row.reference)?.client_rounds;
  const rows = methods.map((row) => [
    row.title,
    row.rolls_back && row.rollback_round != null ? whole.format(row.rollback_round) : "–",
    row.rounds == null ? "–" : whole.format(row.rounds),
    row.contact_rounds == null ? "–" : whole.format(row.contact_rounds),
    row.client_rounds == null ? "–" : `${whole.format(row.client_rounds)}${scratch ? ` (${percent(row.client_rounds / scratch)})` : ""}`,
    row.sample_gradients == null ? "–" : whole.format(row.sample_gradients),
    row.seconds == null ? "–" : `${row.seconds.toFixed(1)} s`, row.bytes ? bytes(row.bytes) : "–",
    row.distance == null || row.reference ? "–" : number(row.distance),
  ]);
  return table(["method", "rolled back to", "rounds", "with contact", "client-rounds", "sample gradients", "time", "history", "distance to retrained"], rows);
}

function drawCurves() {
  const { methods, poisoned } = page.facts.recoveries ?? { methods: [] };
  const curves = methods.filter((row) => row.curve.length);
  byId("recovered").querySelector(".pair").hidden = !curves.length;
  if (!curves.length) return;
  drawCurve(byId("ta-chart"), "Accuracy", curves, 1, poisoned?.ta);
  const attacked = curves.some((row) => row.curve.some((point) => point[2] != null));
  byId("asr-part").hidden = !attacked;
  if (attacked) drawCurve(byId("asr-chart"), "Attack success", curves, 2, poisoned?.asr);
}

function kindOfLine(row, curves) {
  const place = curves.filter(({ reference }) => !reference).indexOf(row);
  return place < 0 ? "plain" : KINDS_OF_LINES[place % KINDS_OF_LINES.length];
}

function drawCurve(host, name, curves, which, level) {
  const most = Math.max(...curves.map((row) => row.curve[row.curve.length - 1][0]), 1);
  const points = curves.flatMap((row) => row.curve.map((point) => ({ work: point[0], value: point[which], title: row.title })))
    .filter((point) => point.value != null).sort((a, b) => a.work - b.work);
  drawChart(host, {
    label: `${name} after each step of each recovery, against the client-rounds spent. Arrow keys read single steps.`,
    xs: points.map((point) => point.work), xName: "client-rounds", xMin: 0, xMax: most, yMin: 0, yMax: 1, yFormat: percent,
    series: [
      ...curves.map((row) => ({ name: row.title, kind: kindOfLine(row, curves), points: row.curve.map((p) => [p[0], p[which] ?? NaN]) })),
      ...(level == null ? [] : [{ name: "poisoned", kind: "poison", points: [[0, level], [most, level]] }]),
    ],
    read: (i) => `${points[i].title} after ${plural(points[i].work, "client-round")}: ${name.toLowerCase()} ${percent(points[i].value, 1)}`,
  });
}

// The certificates in words: what is proven, under which assumptions, and what is not.

const FLAGS = {
  sound: "proved, where what it assumes is true",
  heuristic: "a sensible figure that nothing proves",
  "not provable": "for comparison only",
};

function prepareCertificates() {
  const certified = (page.facts.recoveries?.methods ?? []).filter((row) => row.certificate);
  byId("certificate").hidden = !certified.length;
  show(byId("certificate-words"), certified.map((row) => certificateInWords(row)), certified.length ? notProved() : null);
}

function certificateInWords({ title, certificate }) {
  const { conclusion, terms, unknown, signature, path, doing_nothing: nothing } = certificate;
  const headline = conclusion.value == null
    ? "Nothing is proved of its distance to a model trained from scratch: no retraining was run, and nothing was declared that would bound it."
    : `The recovered model is at most ${number(conclusion.value)} from the one trained from scratch without the malicious clients.`;
  return el("article", { class: "certified" },
    el("h3", {}, title),
    el("p", { class: "big-lead" }, headline),
    nothing ? el("p", { class: "note" }, besideDoingNothing(nothing)) : null,
    conclusion.value != null && conclusion.assumes.length ? [el("p", { class: "note" }, "This assumes:"), el("ul", { class: "note" }, conclusion.assumes.map((words) => el("li", {}, words)))] : null,
    el("details", {}, el("summary", {}, `The ${plural(terms.length, "statement")} behind it`), el("div", { class: "scroll" }, statementsTable(terms))),
    el("p", { class: "note" }, unknown.length ? `${plural(unknown.length, "further bound")} not available: assumptions missing. ` : "", `The certificate ${signature}. `, "This page repeats what it says; “", el("code", {}, `fedcrab verify ${quoted(path)}`), "” recomputes it from the history."));
}

function besideDoingNothing({ value, nearer }) {
  const bound = `Of the poisoned model the same is proved with ${number(value)}`;
  return nearer === "recovered"
    ? `${bound}: the bound of the recovered model is the smaller one.`
    : `${bound}: what is proved ranks recovery below doing nothing. It may still be nearer in truth.`;
}

function statementsTable(terms) {
  return table(["statement", "at most", "how far to trust it", "what it is"], terms.map(({ name, value, flag, formula }) => [name, number(value), FLAGS[flag] ?? flag, formula]));
}

function notProved() {
  return [
    el("h3", {}, "What this does not prove"),
    el("ul", { class: "note" },
      el("li", {}, "That nobody else was malicious: every statement takes all clients who were not named for honest."),
      el("li", {}, "That the model behaves as the retrained one would: distances between models are bounded, not what they answer. Accuracy and attack success above are measured, on the data at hand."),
      el("li", {}, "Anything without what is assumed: the assumptions are declared by whoever ran the recovery, not checked.")),
  ];
}
