// The suspects of the detector, with scores and reasons, and a button that marks them.

function prepareSuspects() {
  const { detection } = page.facts;
  if (!detection) return;
  const places = new Map(page.facts.clients.map((id, place) => [id, place]));
  page.scores = new Map(detection.clients.filter((row) => places.has(row.client)).map((row) => [places.get(row.client), row]));
  byId("suspects").hidden = false;
}

part(() => {
  if (!page.facts.detection) return;
  const suspects = [...page.scores].filter(([, row]) => row.suspect).sort((a, b) => b[1].score - a[1].score);
  show(byId("suspects"), suspects.length ? suspected(suspects) : nobodySuspected());
});

function suspected(suspects) {
  const { detection } = page.facts;
  const clients = new Set(suspects.map(([client]) => client));
  const most = Math.max(...suspects.map(([, row]) => row.score), 1e-300);
  const shown = suspects.slice(0, 12);
  const reasons = new Set(suspects.map(([, row]) => row.reason).filter(Boolean));
  return [
    el("div", { class: "headed" }, el("h3", {}, `${plural(clients.size, "suspect")}, ${detection.detector === "all" ? "by all detectors together" : `by the detector “${detection.detector}”`}`), takeSuspects("take-suspects")),
    el("p", { class: "note" }, sentenceOf(detection)),
    reasons.size === 1 ? el("p", { class: "note" }, `What they have in common: ${[...reasons][0]}.`) : null,
    el("p", { class: "note" }, "Score per client:"),
    el("div", { class: "meters" }, shown.map(([client, row]) => {
      const line = meter(nameOf(client), row.score / most, number(Number(row.score.toPrecision(2))), "poison");
      if (row.reason && reasons.size > 1) line.append(el("span", { class: "why" }, row.reason));
      return line;
    })),
    suspects.length > shown.length ? el("p", { class: "note" }, `and ${plural(suspects.length - shown.length, "more")}`) : null,
  ];
}

// A button that marks the suspects in addition to the clients already marked.
function takeSuspects(id) {
  const clients = suspectsNow();
  const taken = clients.every((client) => state.marked.has(client));
  const words = taken ? "✓ The suspects are marked" : `Mark ${clients.length === 1 ? "the suspect" : `all ${whole.format(clients.length)} suspects`}`;
  return el("button", { type: "button", id, class: "primary", disabled: taken, click: () => change({ marked: new Set([...state.marked, ...clients]) }) }, words);
}

function nobodySuspected() {
  const { detection } = page.facts;
  return [el("h3", {}, "No suspects"), el("p", { class: "note" }, sentenceOf(detection))];
}

function sentenceOf(detection) {
  return [detection.sentence, ...(detection.notes ?? [])].filter(Boolean).join(" ");
}
