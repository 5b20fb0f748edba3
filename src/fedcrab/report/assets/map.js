// The map: one row per client, one column per round, on one canvas; a click on a name marks the client.

const SORTS = { signal: "strongest signal first", id: "by name", cosine: "by direction", selected: "by rounds selected" };
const MOST_ROWS = 40; // shown at first
const MOST_ACROSS = 16000; // pixels: the widest canvas that every browser supports
const map = { order: [], head: 26, cell: 4, row: 24, at: null, columns: null, hidden: 0 };

function prepareMap() {
  map.columns = clientColumns();
  choices(byId("view"), "view", VIEWS, state.view, (view) => change({ view }));
  byId("sort").append(...Object.entries(SORTS).map(([value, words]) => el("option", { value }, words)));
  byId("all-rows").addEventListener("click", () => change({ rows: !state.rows }));
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

// The index of each client among the members of each round; -1 if it took no part.
function clientColumns() {
  const columns = page.facts.clients.map(() => new Int32Array(page.rounds.length).fill(-1));
  page.rounds.forEach((round, t) => round.client.forEach((client, m) => { columns[client][t] = m; }));
  return columns;
}

part((answer) => {
  choose("view", state.view);
  byId("sort").value = state.sort;
  map.order = shownRows(ordered());
  showNames();
  layOut();
  paint(answer.plan);
  showLegend();
  sayWhatTheMapHides();
  byId("clear").disabled = !state.marked.size;
  byId("clients-table").refresh();
});

function ordered() {
  const key = {
    cosine: (client) => summaryOf(client).cosine ?? 2,
    selected: (client) => summaryOf(client).selected,
  }[state.sort];
  if (state.sort === "signal") return page.facts.strongest;
  const order = [...page.facts.order];
  return key ? order.sort((a, b) => key(a) - key(b)) : order;
}

// The first rows in the chosen order, and all marked or suspected clients.
function shownRows(order) {
  const shown = state.rows ? order : order.filter((client, at) => at < MOST_ROWS || state.marked.has(client) || scoreOf(client)?.suspect);
  map.hidden = order.length - shown.length;
  return shown;
}

function sayWhatTheMapHides() {
  const rows = plural(map.order.length, "client");
  const most = map.hidden ? `${rows} of ${whole.format(map.order.length + map.hidden)} shown; the other ${whole.format(map.hidden)} have weaker signals or come later in this order.` : `All ${rows} of this page are shown.`;
  const wide = map.cell * page.rounds.length > map.room + 1 ? " Later rounds are to the right: scroll." : "";
  const carried = page.facts.others ? ` ${plural(page.facts.others, "more client")} took part and ${page.facts.others === 1 ? "has" : "have"} no row here.` : "";
  byId("map-hides").textContent = `${ABOUT_VIEW[state.view]} ${page.rounds.length ? most : ""}${wide}${carried}`;
  byId("all-rows").hidden = !map.hidden && !state.rows;
  byId("all-rows").textContent = state.rows ? `Show the first ${MOST_ROWS}` : `Show all ${whole.format(map.order.length + map.hidden)}`;
}

function scoreOf(client) {
  return page.scores?.get(client);
}

// The summary of a client over all its rounds.
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
    norms += round.norm[m] / mediansOf("norm")[t];
    cosines += round.cosine[m];
  });
  const away = page.facts.rejections.rows.filter(([, who]) => who === client).length;
  return { rounds, selected, away, norm: rounds ? norms / rounds : null, cosine: rounds ? cosines / rounds : null };
}

function layOut() {
  const room = widthOf(byId("map"), 0) - widthOf(byId("map-clients"), 0) - 2;
  map.room = room;
  map.head = timesTellRoundsApart() ? 40 : 26;
  const rounds = Math.max(page.rounds.length, 1);
  map.cell = Math.max(Math.min(3, MOST_ACROSS / rounds), Math.min(36, room / rounds));
  map.row = document.documentElement.classList.contains("paper") ? 12 : matchMedia("(pointer: coarse)").matches ? 34 : map.order.length > 150 ? 20 : 24;
  byId("map").style.setProperty("--row", `${map.row}px`);
  byId("map").style.setProperty("--head", `${map.head}px`);
}

function showNames() {
  const buttons = [...byId("map-clients").querySelectorAll("button")];
  const same = buttons.length === map.order.length && buttons.every((button, at) => Number(button.dataset.client) === map.order[at]);
  if (same && buttons.length) return buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(state.marked.has(map.order[at]))));
  const focused = document.activeElement?.dataset?.client;
  show(byId("map-clients"), el("div", { class: "corner" }, "client"), map.order.map((client) => {
    const marked = state.marked.has(client);
    const suspect = scoreOf(client)?.suspect;
    const words = `${nameOf(client)}${page.tookPart[client] ? "" : ", rejected from every round"}${suspect ? ", suspect" : ""}`;
    return el("button", { type: "button", "aria-pressed": String(marked), "data-client": client, title: words, click: () => toggle(client) },
      el("span", { class: "name" }, shortened(nameOf(client), 14)), suspect ? el("span", { class: "flag" }, "suspect") : null);
  }));
  if (focused !== undefined) byId("map-clients").querySelector(`[data-client="${focused}"]`)?.focus();
}

function paint(plan) {
  const canvas = byId("map-canvas");
  const [width, height] = [Math.floor(map.cell * page.rounds.length) || 1, map.head + map.row * map.order.length];
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

// The part that does not depend on the marked clients, painted once per view, order, size and theme.
function cellsOf({ width, height }, scale, colours) {
  const key = [state.view, width, height, map.cell, Object.values(colours), map.order].join();
  if (map.key === key) return map.cells;
  map.key = key;
  map.cells = Object.assign(document.createElement("canvas"), { width, height });
  const pen = map.cells.getContext("2d");
  pen.scale(scale, scale);
  const medians = mediansOf(state.view);
  paintHead(pen, colours);
  map.order.forEach((client, place) => paintRow(pen, client, place, colours, medians));
  paintRejections(pen, colours);
  return map.cells;
}

function paintHead(pen, colours) {
  pen.font = `${map.row < 15 ? 9 : 12}px system-ui, sans-serif`;
  pen.textAlign = "center";
  pen.fillStyle = colours.muted;
  const last = page.rounds.length - 1;
  const ticks = last > 0 ? niceTicks(0, last, Math.max(1, (map.cell * last) / 70)).filter(Number.isInteger) : [];
  for (const t of ticks) {
    const x = Math.max(8, (t + 0.5) * map.cell);
    pen.textAlign = "center";
    pen.fillText(whole.format(t), x, 13);
    pen.textAlign = x < 28 ? "left" : x > last * map.cell - 20 ? "right" : "center";
    if (timesTellRoundsApart()) pen.fillText(timeTick(t), x < 28 ? 4 : x, 27);
  }
  pen.fillStyle = colours.honest;
  for (const t of page.kept) pen.fillRect((t + 0.5) * map.cell - 1.5, map.head - 7, Math.min(3, map.cell * 0.7), 4);
}

function paintRow(pen, client, place, colours, medians) {
  const top = map.head + place * map.row;
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
  const top = map.head + place * map.row;
  pen.fillStyle = colours.poison;
  pen.fillRect(0, top, map.cell * page.rounds.length, 2);
  pen.fillRect(0, top + map.row - 2, map.cell * page.rounds.length, 2);
}

function paintRejections(pen, colours) {
  const places = new Map(map.order.map((client, place) => [client, place]));
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1.5;
  for (const [t, client] of page.facts.rejections.rows.filter(([, who]) => places.has(who))) {
    const [x, y] = [(t + 0.5) * map.cell, map.head + (places.get(client) + 0.5) * map.row];
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
  const [column, row] = [Math.floor((event.clientX - box.left) / map.cell), Math.floor((event.clientY - box.top - map.head) / map.row)];
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
  const rejections = page.facts.rejections.rows.filter(([at, who]) => at === t && who === client);
  const why = rejections.map(([, , reason]) => `rejected: ${page.facts.rejections.reasons[reason]}`);
  const what = m < 0 ? (why.length ? [] : ["took no part"]) : [
    `length ${times(round.norm[m] / mediansOf("norm")[t])} the round's median`, `direction ${number(round.cosine[m])} (cosine with the step taken)`,
    plural(round.examples[m], "example"), round.selected[m] ? "selected" : "not selected",
  ];
  return [`Client ${nameOf(client)}, ${roundAndTime(t)}`, ...what, ...why].join(" · ");
}

function times(ratio) {
  return Number.isFinite(ratio) ? `${Number(ratio.toPrecision(2))} times` : "unknown, relative to";
}

function clientsTable() {
  const headings = ["client", "marked", "rounds", "selected", "rejected", "mean length, share of the median", "mean direction"];
  const scored = Boolean(page.facts.detection);
  const rows = ordered().map((client) => {
    const s = summaryOf(client);
    const cells = [nameOf(client), state.marked.has(client) ? "yes" : "", whole.format(s.rounds), whole.format(s.selected), whole.format(s.away), percent(s.norm), number(s.cosine)];
    return scored ? [...cells, number(scoreOf(client)?.score)] : cells;
  });
  return table(scored ? [...headings, "score"] : headings, rows);
}
