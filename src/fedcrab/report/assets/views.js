// What a cell of the map shows, and its colour: blue to orange, which is safe for colour blindness.

const VIEWS = { cosine: "direction", norm: "length", likeness: "likeness", selected: "selection" };
const ABOUT_VIEW = {
  cosine: "Orange updates point against the step that the server took.",
  norm: "Orange updates are longer than the round's median.",
  likeness: "Orange updates are unusually similar to another client's in the same round.",
  selected: "Blue: the selection kept this client's part of the round.",
};
const MOST_PRODUCTS = 4e7; // multiplications for all likenesses; with more, the page would be slow

let palette = null; // until the theme changes

function coloursNow() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  palette ??= { honest: read("--honest"), poison: read("--poison"), middle: read("--middle"), ink: read("--ink"), faint: read("--faint"), muted: read("--muted") };
  return palette;
}

function colourOf(round, m, colours, median) {
  if (state.view === "selected") return round.selected[m] ? colours.honest : colours.faint;
  const value = signalOf(state.view, round, m, median);
  return blend(colours, Number.isNaN(value) ? 0 : value);
}

// From -1 (as an attacker may look) to 1.
function signalOf(view, round, m, median) {
  if (view === "cosine") return round.cosine[m];
  if (view === "likeness") return (median - likenessesOf(round)[m]) / Math.max(1 - median, 1e-9);
  return -Math.log2(round.norm[m] / median) / 3;
}

// The largest cosine of each member of a round with another member.
function likenessesOf(round) {
  if (round.likeness) return round.likeness;
  const most = new Float32Array(round.members).fill(-1);
  const rows = Array.from({ length: round.members }, (_, m) => row(round, m));
  const lengths = rows.map((own) => Math.sqrt(own.reduce((total, x) => total + x * x, 0)) || 1);
  for (let i = 0; i < rows.length; i++) {
    for (let j = 0; j < i; j++) {
      let product = 0;
      for (let k = 0; k <= j; k++) product += rows[i][k] * rows[j][k];
      const cosine = product / (lengths[i] * lengths[j]);
      if (cosine > most[i]) most[i] = cosine;
      if (cosine > most[j]) most[j] = cosine;
    }
  }
  return (round.likeness = most);
}

function likenessIsCheap() {
  return page.rounds.reduce((total, { members }) => total + members ** 3 / 6, 0) <= MOST_PRODUCTS;
}

// The view in which suspected or marked clients differ most from the others, in deviations.
function strongestView() {
  const apart = new Set(state.marked.size ? state.marked : suspectsNow());
  if (!apart.size) return "cosine";
  const views = ["cosine", "norm", ...(likenessIsCheap() ? ["likeness"] : [])];
  return views.map((view) => [view, separation(view, apart)]).sort((a, b) => b[1] - a[1])[0][0];
}

function separation(view, apart) {
  const medians = mediansOf(view);
  const sums = page.facts.clients.map(() => [0, 0]);
  page.rounds.forEach((round, t) => round.client.forEach((client, m) => {
    const value = signalOf(view, round, m, medians && medians[t]);
    if (Number.isFinite(value)) { sums[client][0] += value; sums[client][1] += 1; }
  }));
  const means = (wanted) => sums.map(([total, count], client) => (count && apart.has(client) === wanted ? total / count : NaN)).filter(Number.isFinite);
  const [theirs, others] = [means(true), means(false)];
  const mean = (values) => values.reduce((total, x) => total + x, 0) / values.length;
  const spread = Math.sqrt(mean(others.map((x) => (x - mean(others)) ** 2)));
  const found = Math.abs(mean(theirs) - mean(others)) / Math.max(spread, 0.02);
  return Number.isFinite(found) ? found : 0;
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

// Per round, for the views that compare with it.
function mediansOf(view) {
  const values = { norm: (round) => round.norm, likeness: likenessesOf }[view];
  page.medians ??= {};
  return values ? (page.medians[view] ??= page.rounds.map((round) => median(values(round)))) : null;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] || 1 : 1;
}

function showLegend() {
  const colours = coloursNow();
  const swatch = (colour, words) => {
    const box = el("i", { class: "swatch" });
    box.style.background = colour;
    return el("span", {}, box, words);
  };
  const scale = {
    cosine: [swatch(blend(colours, -1), "against the step taken (cosine −1)"), swatch(blend(colours, 0), "orthogonal (0)"), swatch(blend(colours, 1), "the same direction (1)")],
    norm: [swatch(blend(colours, -1), "8 times the round's median or more"), swatch(blend(colours, 0), "the median"), swatch(blend(colours, 1), "an eighth of it or less")],
    likeness: [swatch(blend(colours, -1), "equal to another client's update"), swatch(blend(colours, 0), "as similar as the round's median")],
    selected: [swatch(colours.honest, "selected"), swatch(colours.faint, "took part, not selected")],
  }[state.view];
  const rejected = page.facts.rejections.rows.length ? el("span", {}, el("b", { class: "cross" }, "×"), "rejected") : null;
  show(byId("legend"), scale, el("span", {}, el("i", { class: "swatch blank" }), "took no part"), el("span", {}, el("i", { class: "tick-mark" }), "model kept"), rejected);
}

