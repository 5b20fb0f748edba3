// The colours of the map: blue to orange, which everybody tells apart; from the style of the page.

let palette = null; // until the theme changes

function coloursNow() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  palette ??= { honest: read("--honest"), poison: read("--poison"), middle: read("--middle"), ink: read("--ink"), faint: read("--faint"), muted: read("--muted") };
  return palette;
}

function colourOf(round, m, colours, median) {
  if (state.view === "selected") return round.selected[m] ? colours.honest : colours.faint;
  const value = state.view === "cosine" ? round.cosine[m] : -Math.log2(round.norm[m] / median) / 3;
  return blend(colours, Number.isNaN(value) ? 0 : value);
}

// From poison (-1) over the middle (0) to honest (1).
function blend(colours, value) {
  const share = Math.min(1, Math.abs(value));
  return mixed(colours.middle, value < 0 ? colours.poison : colours.honest, share);
}

const mixtures = new Map();

function mixed(from, to, share) {
  const key = `${from}${to}${Math.round(share * 40)}`;
  if (!mixtures.has(key)) {
    const [a, b] = [channels(from), channels(to)];
    const at = Math.round(share * 40) / 40;
    mixtures.set(key, `rgb(${a.map((x, i) => Math.round(x + (b[i] - x) * at)).join(",")})`);
  }
  return mixtures.get(key);
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function mediansOfNorms() {
  page.medians ??= page.rounds.map((round) => {
    const sorted = [...round.norm].sort((a, b) => a - b);
    return sorted.length ? sorted[Math.floor(sorted.length / 2)] || 1 : 1;
  });
  return page.medians;
}

function showLegend() {
  const colours = coloursNow();
  const swatch = (colour, words) => {
    const box = el("i", { class: "swatch" });
    box.style.background = colour;
    return el("span", {}, box, words);
  };
  const scale = {
    cosine: [swatch(blend(colours, -1), "against the step taken (cosine −1)"), swatch(blend(colours, 0), "across (0)"), swatch(blend(colours, 1), "along (1)")],
    norm: [swatch(blend(colours, -1), "8 times the round's median and more"), swatch(blend(colours, 0), "as the median"), swatch(blend(colours, 1), "an eighth and less")],
    selected: [swatch(colours.honest, "selected"), swatch(colours.faint, "took part, not selected")],
  }[state.view];
  const rejected = page.facts.rejections.rows.length ? el("span", {}, el("b", { class: "cross" }, "×"), "turned away") : null;
  show(byId("legend"), scale, el("span", {}, el("i", { class: "swatch blank" }), "took no part"), el("span", {}, el("i", { class: "tick-mark" }), "model kept"), rejected);
}

// The map: one row per client, one column per round, painted on one canvas; names beside it are the switches.

const VIEWS = { cosine: "direction", norm: "length", selected: "selection" };
const SORTS = { id: "by name", score: "by score", cosine: "by direction", selected: "by rounds selected" };
const MOST_ACROSS = 16000; // pixels that every browser paints on
const HEAD = 26; // pixels above the rows: the rounds, and which of them are kept
const map = { order: [], cell: 4, row: 24, at: null, columns: null };

function prepareMap() {
  map.columns = clientColumns();
  choices(byId("view"), "view", VIEWS, state.view, (view) => change({ view }));
  for (const [value, words] of Object.entries(SORTS)) {
    if (value !== "score" || page.facts.detection) byId("sort").append(el("option", { value }, words));
  }
  byId("sort").addEventListener("change", (event) => { change({ sort: event.target.value }); });
  byId("clear").addEventListener("click", () => change({ marked: new Set() }));
  const canvas = byId("map-canvas");
  canvas.addEventListener("pointermove", (event) => look(cellAt(event)));
  canvas.addEventListener("click", (event) => {
    look(cellAt(event));
    if (event.pointerType !== "touch" && map.at) toggle(map.order[map.at.row]);
  });
  canvas.addEventListener("keydown", walk);
  whenOpen(byId("clients-table"), clientsTable);
}

// For each client, which of its round's members it was: -1 where it took no part.
function clientColumns() {
  const columns = page.facts.clients.map(() => new Int32Array(page.rounds.length).fill(-1));
  page.rounds.forEach((round, t) => round.client.forEach((client, m) => { columns[client][t] = m; }));
  return columns;
}

part((answer) => {
  map.order = ordered();
  showNames();
  layOut();
  paint(answer.plan);
  showLegend();
  byId("clear").disabled = !state.marked.size;
  byId("clients-table").refresh();
});

function ordered() {
  const key = {
    score: (client) => -(scoreOf(client)?.score ?? -1),
    cosine: (client) => summaryOf(client).cosine ?? 2,
    selected: (client) => summaryOf(client).selected,
  }[state.sort];
  const order = [...page.facts.order];
  return key ? order.sort((a, b) => key(a) - key(b)) : order;
}

function scoreOf(client) {
  return page.scores?.get(client);
}

// A client over all its rounds.
function summaryOf(client) {
  page.summaries ??= [];
  return (page.summaries[client] ??= summarise(client));
}

function summarise(client) {
  let [rounds, selected, norms, cosines] = [0, 0, 0, 0];
  page.rounds.forEach((round, t) => {
    const m = map.columns[client][t];
    if (m < 0) return;
    rounds += 1;
    selected += round.selected[m];
    norms += round.norm[m];
    cosines += round.cosine[m];
  });
  const away = page.facts.rejections.rows.filter(([, who]) => who === client).length;
  return { rounds, selected, away, norm: rounds ? norms / rounds : null, cosine: rounds ? cosines / rounds : null };
}

function layOut() {
  const room = widthOf(byId("map"), 0) - widthOf(byId("map-clients"), 0) - 2;
  const rounds = Math.max(page.rounds.length, 1);
  map.cell = Math.max(Math.min(3, MOST_ACROSS / rounds), Math.min(36, room / rounds));
  map.row = matchMedia("(pointer: coarse)").matches ? 34 : map.order.length > 150 ? 20 : 24;
  byId("map").style.setProperty("--row", `${map.row}px`);
  byId("map").style.setProperty("--head", `${HEAD}px`);
}

function showNames() {
  const focused = document.activeElement?.dataset?.client;
  show(byId("map-clients"), el("div", { class: "corner" }, "client"), map.order.map((client) => {
    const marked = state.marked.has(client);
    const suspect = scoreOf(client)?.suspect;
    const words = `${nameOf(client)}${page.tookPart[client] ? "" : ", never let in"}${suspect ? ", suspect" : ""}`;
    return el("button", { type: "button", "aria-pressed": String(marked), "data-client": client, title: words, click: () => toggle(client) },
      el("span", { class: "name" }, shortened(nameOf(client), 14)), suspect ? el("span", { class: "flag" }, "suspect") : null);
  }));
  if (focused !== undefined) byId("map-clients").querySelector(`[data-client="${focused}"]`)?.focus();
}

function paint(plan) {
  const canvas = byId("map-canvas");
  const [width, height] = [Math.floor(map.cell * page.rounds.length) || 1, HEAD + map.row * map.order.length];
  const scale = width * height > 4e6 ? 1 : Math.min(devicePixelRatio || 1, 2);
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("aria-label", `Map of ${plural(map.order.length, "client")} and ${plural(page.rounds.length, "round")}: ${VIEWS[state.view]}. Arrow keys read single cells, Enter marks the client.`);
  const colours = coloursNow();
  const pen = canvas.getContext("2d");
  pen.drawImage(cellsOf(canvas, scale, colours), 0, 0);
  pen.scale(scale, scale);
  map.order.forEach((client, place) => state.marked.has(client) && paintMark(pen, place, colours));
  if (plan) paintCut(pen, plan.rollback_round, height, colours);
}

// All that marks do not change, painted once for each view, order, size and theme.
function cellsOf({ width, height }, scale, colours) {
  const key = [state.view, width, height, map.cell, Object.values(colours), map.order].join();
  if (map.key === key) return map.cells;
  map.key = key;
  map.cells = Object.assign(document.createElement("canvas"), { width, height });
  const pen = map.cells.getContext("2d");
  pen.scale(scale, scale);
  const medians = state.view === "norm" ? mediansOfNorms() : null;
  paintHead(pen, colours);
  map.order.forEach((client, place) => paintRow(pen, client, place, colours, medians));
  paintRejections(pen, colours);
  return map.cells;
}

function paintHead(pen, colours) {
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.fillStyle = colours.muted;
  const last = page.rounds.length - 1;
  const ticks = last > 0 ? niceTicks(0, last, Math.max(1, (map.cell * last) / 70)).filter(Number.isInteger) : [];
  for (const t of ticks) pen.fillText(whole.format(t), Math.max(8, (t + 0.5) * map.cell), 13);
  pen.fillStyle = colours.honest;
  for (const t of page.kept) pen.fillRect((t + 0.5) * map.cell - 1.5, HEAD - 7, Math.min(3, map.cell * 0.7), 4);
}

function paintRow(pen, client, place, colours, medians) {
  const top = HEAD + place * map.row;
  const gap = map.cell >= 6 ? 1 : 0;
  page.rounds.forEach((round, t) => {
    const m = map.columns[client][t];
    if (m < 0) return;
    pen.fillStyle = colourOf(round, m, colours, medians && medians[t]);
    const left = Math.round(t * map.cell);
    pen.fillRect(left, top + 2, Math.max(1, Math.round((t + 1) * map.cell) - left - gap), map.row - 4);
  });
}

function paintMark(pen, place, colours) {
  const top = HEAD + place * map.row;
  pen.fillStyle = colours.poison;
  pen.fillRect(0, top, map.cell * page.rounds.length, 2);
  pen.fillRect(0, top + map.row - 2, map.cell * page.rounds.length, 2);
}

function paintRejections(pen, colours) {
  const places = new Map(map.order.map((client, place) => [client, place]));
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1.5;
  for (const [t, client] of page.facts.rejections.rows) {
    const [x, y] = [(t + 0.5) * map.cell, HEAD + (places.get(client) + 0.5) * map.row];
    const size = Math.min(4, Math.max(2, map.cell / 3));
    pen.beginPath();
    pen.moveTo(x - size, y - size); pen.lineTo(x + size, y + size);
    pen.moveTo(x + size, y - size); pen.lineTo(x - size, y + size);
    pen.stroke();
  }
}

function paintCut(pen, t, height, colours) {
  pen.fillStyle = colours.ink;
  pen.fillRect(Math.max(0, t * map.cell - 1), 0, 2, height);
}

function cellAt(event) {
  const box = byId("map-canvas").getBoundingClientRect();
  const [column, row] = [Math.floor((event.clientX - box.left) / map.cell), Math.floor((event.clientY - box.top - HEAD) / map.row)];
  return { row: Math.max(0, Math.min(map.order.length - 1, row)), t: Math.max(0, Math.min(page.rounds.length - 1, column)) };
}

function walk(event) {
  const { row, t } = map.at ?? { row: 0, t: -1 };
  const to = { ArrowLeft: [row, t - 1], ArrowRight: [row, t + 1], ArrowUp: [row - 1, t], ArrowDown: [row + 1, t] }[event.key];
  if (to) {
    event.preventDefault();
    look({ row: Math.max(0, Math.min(map.order.length - 1, to[0])), t: Math.max(0, Math.min(page.rounds.length - 1, to[1])) });
  } else if ((event.key === "Enter" || event.key === " ") && map.at) {
    event.preventDefault();
    toggle(map.order[map.at.row]);
  }
}

function look(at) {
  map.at = map.order.length && page.rounds.length ? at : null;
  byId("map-readout").textContent = map.at ? cellInWords(map.order[at.row], at.t) : "";
}

function cellInWords(client, t) {
  const [round, m] = [page.rounds[t], map.columns[client][t]];
  const refusals = page.facts.rejections.rows.filter(([at, who]) => at === t && who === client);
  const why = refusals.map(([, , reason]) => `turned away: ${page.facts.rejections.reasons[reason]}`);
  const what = m < 0 ? (why.length ? [] : ["took no part"]) : [
    `length ${number(round.norm[m])}`, `direction (cosine with the step taken) ${number(round.cosine[m])}`,
    plural(round.examples[m], "example"), round.selected[m] ? "selected" : "not selected",
  ];
  return [`Client ${nameOf(client)}, round ${t}`, ...what, ...why].join(" · ");
}

function clientsTable() {
  const headings = ["client", "marked", "rounds", "selected", "turned away", "mean length", "mean direction"];
  const scored = Boolean(page.facts.detection);
  const rows = map.order.map((client) => {
    const s = summaryOf(client);
    const cells = [nameOf(client), state.marked.has(client) ? "yes" : "", whole.format(s.rounds), whole.format(s.selected), whole.format(s.away), number(s.norm), number(s.cosine)];
    return scored ? [...cells, number(scoreOf(client)?.score)] : cells;
  });
  return table(scored ? [...headings, "score"] : headings, rows);
}
