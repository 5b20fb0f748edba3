// The planted trigger: an image of it, since when it works, and who taught it.

function prepareTrigger() {
  const { trigger } = page.facts;
  byId("trigger").hidden = !trigger;
  if (!trigger) return;
  byId("trigger-lead").textContent = triggerInWords(trigger);
  show(byId("trigger-pictures"), trigger.pictures.map(pictureOf));
  drawLifts();
}

part(() => {
  const { trigger } = page.facts;
  if (trigger) show(byId("trigger-taught"), taughtBy(trigger));
});

function triggerInWords({ planted, label, success, confidence, since }) {
  if (!planted) return "An audit of the final model found no planted trigger. It only finds patches that work on most examples.";
  const when = since == null ? "" : ` It has worked since the model before ${roundAndTime(since)}.`;
  return `The final model has a planted trigger: with it, ${percent(success)} of the examples of other classes are classified as class ${label} (${percent(confidence, 1)} sure).${when}`;
}

function pictureOf({ title, width, height, channels, pixels }) {
  const canvas = el("canvas", { width, height, role: "img", "aria-label": `Picture: ${title}` });
  const bytes = unpack(pixels);
  const image = canvas.getContext("2d").createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = bytes[channels * i + Math.min(c, channels - 1)];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return el("figure", {}, canvas, el("figcaption", {}, title));
}

// How well the trigger works on each kept model.
function drawLifts() {
  const { lifts } = page.facts.trigger ?? {};
  const host = byId("trigger-chart");
  host.parentElement.hidden = !lifts?.length;
  if (!lifts?.length) return;
  drawChart(host, {
    label: `Share of examples whose class the trigger changes, per kept model, from ${percent(lifts[0][1])} to ${percent(lifts.at(-1)[1])}. Arrow keys read single models.`,
    xs: lifts.map(([t]) => t), xName: "model before round", yName: "success of the trigger", rounds: true, xMin: 0, xMax: page.rounds.length, yMin: 0, yMax: 1, yFormat: percent,
    series: [{ name: "", kind: "poison", points: lifts }],
    read: (i) => `Model before ${roundAndTime(lifts[i][0])}: the trigger changes the class of ${percent(lifts[i][1], 1)} of the examples of other classes`,
  });
}

function taughtBy({ taught, unknown }) {
  if (!taught?.length) return page.facts.trigger.planted && unknown ? el("p", { class: "note" }, `Who taught it is not known. ${unknown}`) : null;
  const places = new Map(page.facts.clients.map((id, place) => [id, place]));
  const named = taught.filter((row) => row.named && places.has(row.client)).map((row) => places.get(row.client));
  const taken = named.every((client) => state.marked.has(client));
  const take = el("button", { type: "button", id: "take-teachers", class: "primary", disabled: taken, click: () => change({ marked: new Set([...state.marked, ...named]) }) },
    taken ? "✓ The clients that taught it are marked" : `Mark ${named.length === 1 ? "the client that" : `the ${whole.format(named.length)} clients that`} taught it`);
  const rows = [...taught].sort((a, b) => b.part - a.part);
  const most = Math.max(rows[0].part, 1e-300);
  const shown = rows.slice(0, Math.max(8, named.length));
  const since = new Set(taught.filter((row) => row.named).map((row) => row.since));
  const when = (round) => (round == null ? "taught it" : `taught it from ${roundAndTime(round)} on`);
  return [
    el("div", { class: "headed" }, el("h3", {}, "Who taught it"), named.length ? take : null),
    named.length ? null : el("p", { class: "note" }, "No client stands out clearly: the bars are only a ranking."),
    named.length ? el("p", { class: "note" }, `How much each client taught it, relative to the largest.${since.size === 1 && named.length > 1 ? ` They all ${when([...since][0])}.` : ""}`) : null,
    el("div", { class: "meters" }, shown.map((row) => {
      const line = meter(row.client, row.part / most, percent(Math.max(0, row.part / most)), row.named ? "poison" : "");
      if (row.named && (since.size > 1 || named.length === 1)) line.append(el("span", { class: "why" }, when(row.since)));
      return line;
    })),
    taught.length > shown.length ? el("p", { class: "note" }, `and ${plural(taught.length - shown.length, "client")} with less each`) : null,
  ];
}
