// The recoveries: poisoned, recovered and retrained models side by side.

const KINDS_OF_LINES = ["honest", "second", "third", "fourth", "fifth"]; // in turn; the retrained model is plain

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
  return `Without ${malicious.length === 1 ? "client" : "clients"} ${names || "nobody"}: ${plural(methods.length, "recovery", "recoveries")}, evaluated on test data that no client and no method has seen.${undetectedIn(methods)}`;
}

// A recovery may allow for undetected attackers; the page itself does not.
function undetectedIn(methods) {
  const counts = [...new Set(methods.map(({ decision }) => decision.unfound).filter((count) => count > 0))];
  return counts.length
    ? ` These recoveries allow for up to ${counts.join(" or ")} undetected attackers beyond those named. The rollback shown above counts marked clients only; plan --undetected ${counts[0]} shows the one that was used.`
    : "";
}

function outcomesOf({ poisoned, methods }) {
  const rows = [...(poisoned ? [{ title: "Poisoned model", bad: true, ...poisoned }] : []), ...methods];
  return rows.map((row) => el("article", { class: row.bad ? "outcome bad" : "outcome" },
    el("h3", {}, row.title),
    el("dl", {}, outcome("Accuracy", percent(row.ta, 1)), row.asr == null ? null : outcome("Attack success", percent(row.asr, 1)),
      row.misr == null ? null : outcome("Membership inferred", row.misrIsChance ? "as by chance" : percent(row.misr, 1)),
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
    row.reference ? "0 (this is the retrained model)" : farFromRetrained(row.method),
  ]);
  return table(["method", "rolled back to round", "rounds", "rounds with contact", "client-rounds", "sample gradients", "time", "history", "distance to the retrained model"], rows);
}

// Relative to the poisoned model's distance from the retrained one.
function farFromRetrained(method) {
  const { poisoned, [method]: own } = page.facts.recoveries.distances;
  return own == null || !poisoned ? "–" : `${percent(own / poisoned)} of the poisoned model's`;
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
    xs: points.map((point) => point.work), xName: "client-rounds spent", xMin: 0, xMax: most, yMin: 0, yMax: 1, yFormat: percent,
    series: [
      ...curves.map((row) => ({ name: row.title, kind: kindOfLine(row, curves), points: row.curve.map((p) => [p[0], p[which] ?? NaN]) })),
      ...(level == null ? [] : [{ name: "poisoned", kind: "poison", points: [[0, level], [most, level]] }]),
    ],
    read: (i) => `${points[i].title} after ${plural(points[i].work, "client-round")}: ${name.toLowerCase()} ${percent(points[i].value, 1)}`,
  });
}
