// Line charts as SVG: axes, bands, lines, a cursor that follows pointer and arrow keys, and a line of text.

const HINT = "Point at the chart, or move through it with the arrow keys, to read the figures.";
const CHART = { height: 260, left: 52, right: 14, top: 30, bottom: 36 };
const CLOCKS = 16; // extra pixels below a chart with times

// Like drawChart, but draws again only if `key`, which names what the chart depends on, has changed.
function drawChartOnce(host, key, spec) {
  const whole = [key, widthOf(host), CHART.height].join();
  if (host.drawn === whole) return;
  host.drawn = whole;
  drawChart(host, spec());
}

// spec: { label, rounds?, xs, xName, yName, yMax?, yMin?, series: [{ name, kind, points }], bands, dots, cut, read(i), yFormat }
function drawChart(host, spec) {
  const width = Math.max(240, Math.round(widthOf(host)));
  spec.times = spec.rounds === true && timesTellRoundsApart();
  const area = areaOf(spec, width);
  const hair = svg("line", { class: "hair", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${CHART.height + (spec.times ? CLOCKS : 0)}`, width, height: CHART.height + (spec.times ? CLOCKS : 0), role: "img", tabindex: 0, "aria-label": spec.label },
    clipOf(width, spec), bandsOf(area, spec), gridOf(area, spec, width), cutOf(area, spec, width),
    spec.series.map((series) => seriesOf(area, spec, series)), dotsOf(area, spec), cutWordsOf(area, spec, width), hair,
  );
  const readout = el("p", { class: "readout", "aria-live": "polite" }, spec.hint || HINT);
  show(host, legendOf(spec), picture, readout);
  follow(picture, readout, hair, area, spec, width);
}

// Reading a width forces a layout of the page, so it is cached until the page's width changes.
const widths = new Map();

function widthOf(host, unknown = 640) {
  if (!widths.get(host)) widths.set(host, host.offsetWidth);
  return widths.get(host) || unknown;
}

function areaOf(spec, width) {
  const xs = spec.xs.length ? spec.xs : [0];
  const [first, last] = [spec.xMin ?? xs[0], spec.xMax ?? xs[xs.length - 1]];
  const values = spec.series.flatMap((series) => series.points.map(([, y]) => y)).filter(Number.isFinite);
  const low = spec.yMin ?? Math.min(0, ...extremes(values));
  const high = spec.yMax ?? Math.max(...extremes(values));
  const top = high > low ? high : low + 1;
  const across = width - CHART.left - CHART.right;
  const up = CHART.height - CHART.top - CHART.bottom;
  return {
    low, top, first, last,
    x: (value) => CHART.left + (last > first ? ((value - first) / (last - first)) * across : across / 2),
    y: (value) => CHART.top + up * (1 - (value - low) / (top - low)),
  };
}

function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return values.length ? [low, high] : [0, 1];
}

function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? 10 * power;
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

let clips = 0;

function clipOf(width, spec) {
  spec.clip = `clip-${++clips}`;
  const box = { x: CHART.left - 4, y: CHART.top - 4, width: width - CHART.left - CHART.right + 8, height: CHART.height - CHART.top - CHART.bottom + 8 };
  return svg("defs", {}, svg("clipPath", { id: spec.clip }, svg("rect", box)));
}

function gridOf(area, spec, width) {
  const bottom = CHART.height - CHART.bottom;
  const format = spec.yFormat ?? number;
  const across = niceTicks(area.low, area.top, 4).map((value) => [
    svg("line", { class: "grid", x1: CHART.left, x2: width - CHART.right, y1: area.y(value), y2: area.y(value) }),
    svg("text", { class: "tick", x: CHART.left - 8, y: area.y(value) + 4, "text-anchor": "end" }, format(value)),
  ]);
  const rounds = area.last > area.first ? niceTicks(area.first, area.last, Math.min(10, width / 70)) : [area.first];
  const anchor = (value) => (area.x(value) > width - CHART.right - 16 ? "end" : "middle");
  const along = rounds.filter(Number.isInteger).map((value) => [
    svg("text", { class: "tick", x: area.x(value), y: bottom + 16, "text-anchor": "middle" }, whole.format(value)),
    spec.times ? svg("text", { class: "tick clock", x: area.x(value), y: bottom + 30, "text-anchor": anchor(value) }, timeTick(value)) : null,
  ]);
  const unit = spec.yName ? svg("text", { class: "tick unit", x: 4, y: 11 }, spec.yName) : null;
  const words = spec.times ? `${spec.xName} · ${axisDay()}` : spec.xName;
  const name = svg("text", { class: "axis", x: width - CHART.right, y: CHART.height + (spec.times ? CLOCKS : 0) - 3, "text-anchor": "end" }, words);
  return [across, along, name, unit].flat(2).filter(Boolean);
}

function bandsOf(area, spec) {
  const path = (spec.bands ?? []).map(([from, to]) => {
    const x = Math.max(area.x(from), CHART.left);
    const across = Math.max(0, Math.min(area.x(to), area.x(area.last)) - x);
    return `M${x.toFixed(1)} ${CHART.top}h${across.toFixed(1)}V${CHART.height - CHART.bottom}h${(-across).toFixed(1)}Z`;
  });
  return path.length ? svg("path", { class: "band", d: path.join("") }) : null;
}

// The part that is undone: everything right of the cut.
function cutOf(area, spec, width) {
  if (spec.cut == null) return [];
  const x = Math.max(CHART.left, Math.min(area.x(spec.cut), width - CHART.right));
  const bottom = CHART.height - CHART.bottom;
  return [
    svg("rect", { class: "undone", x, y: CHART.top, width: width - CHART.right - x, height: bottom - CHART.top }),
    svg("line", { class: "cut", x1: x, x2: x, y1: CHART.top - 6, y2: bottom }),
  ];
}

function cutWordsOf(area, spec, width) {
  if (spec.cut == null) return null;
  const x = Math.max(CHART.left, Math.min(area.x(spec.cut), width - CHART.right));
  const late = x > width * 0.65;
  return svg("text", { class: "cut-words", x: late ? x - 6 : x + 6, y: CHART.top - 2, "text-anchor": late ? "end" : "start" }, spec.cutWords);
}

function seriesOf(area, spec, { kind, points }) {
  if (kind === "bars") return barsOf(area, points);
  let path = "";
  let pen = false;
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) { pen = false; continue; }
    path += `${pen ? "L" : "M"}${area.x(x).toFixed(1)} ${clamped(area.y(y))}`;
    pen = true;
  }
  const few = points.filter(([, y]) => Number.isFinite(y)).length <= 60;
  const marks = few ? points.filter(([, y]) => Number.isFinite(y)).map(([x, y]) => markOf(kind, area.x(x), area.y(y))) : [];
  return svg("g", { class: `series ${kind}`, "clip-path": `url(#${spec.clip})` }, svg("path", { d: path, fill: "none" }), marks);
}

function barsOf(area, points) {
  const nearest = points.slice(1).reduce((least, [x], i) => Math.min(least, area.x(x) - area.x(points[i][0])), 18);
  const half = Math.max(0.5, Math.min(9, nearest * 0.4));
  const path = points.map(([x, y]) => `M${(area.x(x) - half).toFixed(1)} ${area.y(0)}V${clamped(area.y(y))}h${(2 * half).toFixed(1)}V${area.y(0)}Z`).join("");
  return svg("g", { class: "series bars" }, svg("path", { d: path }));
}

function clamped(y) {
  return Math.max(-1e4, Math.min(1e4, y)).toFixed(1);
}

// Shapes differ too, not only colours: squares for poison, circles for the others.
function markOf(kind, x, y) {
  return kind === "poison"
    ? svg("rect", { x: x - 2.5, y: clamped(y - 2.5), width: 5, height: 5 })
    : svg("circle", { cx: x, cy: clamped(y), r: 2.5 });
}

function dotsOf(area, spec) {
  const y = CHART.height - CHART.bottom;
  const path = (spec.dots ?? []).map((x) => `M${area.x(x).toFixed(1)} ${y - 2}v4`).join("");
  return path ? svg("path", { class: "dots", d: path }) : null;
}

function legendOf(spec) {
  const entries = spec.series.filter(({ name }) => name).map(({ name, kind }) =>
    el("span", {}, svg("svg", { width: 26, height: 10, "aria-hidden": "true" },
      svg("g", { class: `series ${kind}` }, svg("path", { d: "M1 5H25", fill: "none" }), markOf(kind, 13, 5))), name));
  return entries.length > 1 ? el("div", { class: "legend" }, entries) : null;
}

function follow(picture, readout, hair, area, spec, width) {
  let at = -1;
  const look = (index) => {
    if (!spec.xs.length) return;
    at = Math.max(0, Math.min(spec.xs.length - 1, index));
    const x = area.x(spec.xs[at]);
    hair.setAttribute("x1", x);
    hair.setAttribute("x2", x);
    hair.setAttribute("visibility", "visible");
    readout.textContent = spec.read(at);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    look(nearest(spec.xs, area, ((event.clientX - box.left) / box.width) * width));
  });
  picture.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: spec.xs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    look(to);
  });
}

function nearest(xs, area, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(area.x(xs[i]) - x) < Math.abs(area.x(xs[best]) - x)) best = i;
  return best;
}
