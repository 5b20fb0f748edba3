// The state of the page and the decision that follows from it. Every part draws itself from these.

const state = { marked: new Set(), beta: 0, evidence: "all", rule: "prefix", since: null, view: "cosine", sort: "signal", rows: false };
let page = null;
const parts = [];

// A part of the page: drawPart(answer) is called after every change.
function part(drawPart) {
  parts.push(drawPart);
}

function change(changes) {
  Object.assign(state, changes);
  refresh();
}

function toggle(client) {
  const marked = new Set(state.marked);
  if (!marked.delete(client)) marked.add(client);
  change({ marked });
}

function draw() {
  const answer = answerNow();
  for (const drawPart of parts) drawPart(answer);
  return answer;
}

// Computes a decision with a marked client before the first drawing, so that the first click need not compile the code.
function warmUp() {
  const { marked } = state;
  if (marked.size || !page.rounds.length) return;
  state.marked = new Set([0]);
  draw();
  state.marked = marked;
}

function refresh() {
  const answer = draw();
  keepFragment();
  document.dispatchEvent(new CustomEvent("answered", { detail: answer }));
}

function answerNow() {
  const since = sinceNow();
  const refused = undecidable(page, state.marked, state.beta, since);
  if (refused) return { refused, plan: null, presets: {} };
  const presets = {};
  for (const [name, settings] of Object.entries(page.facts.presets)) presets[name] = makePlan(page, state.marked, { ...settings, since });
  const own = { beta: state.beta, evidence: state.evidence, rule: state.rule, since };
  return { refused: "", plan: presets[presetNow()] ?? makePlan(page, state.marked, own), presets };
}

// The first malicious round of each marked client: set on the page for all of them, or given to `report`.
function sinceNow() {
  const given = new Map(Object.entries(page.facts.since ?? {}));
  const rounds = [...state.marked].map((client) => [client, state.since ?? given.get(nameOf(client)) ?? 0]);
  if (page.facts.together.length) rounds.push([TOGETHER, state.since ?? given.get(page.facts.together[0]) ?? 0]);
  return new Map(rounds.filter(([, round]) => round !== 0));
}

// The name of the preset with these settings, or null.
function presetNow() {
  const same = ([, p]) => p.beta === state.beta && p.evidence === state.evidence && p.rule === state.rule;
  return (Object.entries(page.facts.presets).find(same) ?? [null])[0];
}

function nameOf(client) {
  return idOf(page, client);
}

// The clients marked on the page, and those that are always marked.
function markedCount() {
  return state.marked.size + page.facts.together.length;
}

// The number of clients that took part in a round.
function everyone() {
  return page.tookPart.filter(Boolean).length + page.facts.others + page.facts.together.length;
}
