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
