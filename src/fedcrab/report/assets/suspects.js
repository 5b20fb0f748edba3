// Whom the detector suspects, with scores and reasons; one click takes them over.

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
  const taken = clients.size === state.marked.size && [...clients].every((client) => state.marked.has(client));
  const take = el("button", { type: "button", id: "take-suspects", class: "primary", disabled: taken, click: () => change({ marked: clients }) },
    taken ? "The suspects are marked" : `Mark ${clients.size === 1 ? "the suspect" : `all ${whole.format(clients.size)} suspects`}`);
  const most = Math.max(...suspects.map(([, row]) => row.score), 1e-300);
  const shown = suspects.slice(0, 12);
  const reasons = new Set(suspects.map(([, row]) => row.reason).filter(Boolean));
  return [
    el("div", { class: "headed" }, el("h3", {}, `${plural(clients.size, "suspect")} by detector “${detection.detector}”`), take),
    el("p", { class: "note" }, sentenceOf(detection)),
    reasons.size === 1 ? el("p", { class: "note" }, `What they have in common: ${[...reasons][0]}.`) : null,
    el("div", { class: "meters" }, shown.map(([client, row]) => {
      const line = meter(nameOf(client), row.score / most, number(row.score), "poison");
      if (row.reason && reasons.size > 1) line.append(el("span", { class: "why" }, row.reason));
      return line;
    })),
    suspects.length > shown.length ? el("p", { class: "note" }, `and ${plural(suspects.length - shown.length, "more")}`) : null,
  ];
}

function nobodySuspected() {
  const { detection } = page.facts;
  return [el("h3", {}, "No suspects"), el("p", { class: "note" }, sentenceOf(detection))];
}

function sentenceOf(detection) {
  return [detection.sentence, ...(detection.notes ?? [])].filter(Boolean).join(" ");
}
