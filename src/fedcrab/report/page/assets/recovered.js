// What was recovered: poisoned, recovered and retrained side by side.

const KINDS_OF_LINES = { "crab-hardened": "honest", "crab-paper": "second", federaser: "third", fedrecover: "fourth", retrain: "plain" };

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
  const names = page.facts.order.map(nameOf).filter((id) => known.has(id)).slice(0, 30).join(", ") + (malicious.length > 30 ? " and others" : "");
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
  const rows = [...(poisoned ? [{ method: "poisoned", ...poisoned }] : []), ...methods];
  return rows.map((row) => el("article", { class: row.method === "poisoned" ? "outcome bad" : "outcome" },
    el("h3", {}, methodName(row.method)),
    el("dl", {}, outcome("Accuracy", percent(row.ta, 1)), row.asr == null ? null : outcome("Attack success", percent(row.asr, 1)),
      row.misr == null ? null : outcome("Membership told", percent(row.misr, 1)),
      row.method === "poisoned" ? null : outcome("Client-rounds", row.client_rounds == null ? "–" : whole.format(row.client_rounds)))));
}

function outcome(name, value) {
  return [el("dt", {}, name), el("dd", {}, value)];
}

function costsTable({ methods }) {
  const scratch = methods.find((row) => row.method === "retrain")?.client_rounds;
  const rows = methods.map((row) => [
    methodName(row.method),
    row.method.startsWith("crab") && row.rollback_round != null ? whole.format(row.rollback_round) : "–",
    row.rounds == null ? "–" : whole.format(row.rounds),
    row.client_rounds == null ? "–" : `${whole.format(row.client_rounds)}${scratch ? ` (${percent(row.client_rounds / scratch)})` : ""}`,
    row.sample_gradients == null ? "–" : whole.format(row.sample_gradients),
    row.seconds == null ? "–" : `${row.seconds.toFixed(1)} s`, row.bytes ? bytes(row.bytes) : "–",
    row.distance == null || row.method === "retrain" ? "–" : number(row.distance),
  ]);
  return table(["method", "rolled back to", "rounds", "client-rounds", "sample gradients", "time", "history", "distance to retrained"], rows);
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

function drawCurve(host, name, curves, which, level) {
  const most = Math.max(...curves.map((row) => row.curve[row.curve.length - 1][0]), 1);
  const points = curves.flatMap((row) => row.curve.map((point) => ({ work: point[0], value: point[which], method: row.method })))
    .filter((point) => point.value != null).sort((a, b) => a.work - b.work);
  drawChart(host, {
    label: `${name} after each step of each recovery, against the client-rounds spent. Arrow keys read single steps.`,
    xs: points.map((point) => point.work), xName: "client-rounds", xMin: 0, xMax: most, yMin: 0, yMax: 1, yFormat: percent,
    series: [
      ...curves.map((row) => ({ name: methodName(row.method), kind: KINDS_OF_LINES[row.method] ?? "plain", points: row.curve.map((p) => [p[0], p[which] ?? NaN]) })),
      ...(level == null ? [] : [{ name: "poisoned", kind: "poison", points: [[0, level], [most, level]] }]),
    ],
    read: (i) => `${methodName(points[i].method)} after ${plural(points[i].work, "client-round")}: ${name.toLowerCase()} ${percent(points[i].value, 1)}`,
  });
}
