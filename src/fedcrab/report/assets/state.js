// What is asked of the page now, and the answers. Every part draws itself from these.

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

// Before the first picture: a decision with a client marked. Else the first click would have to compile all of it.
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

// From which round on each marked client is malicious: as set for all of them, or as the page was given it.
function sinceNow() {
  const given = new Map(Object.entries(page.facts.since ?? {}));
  const rounds = [...state.marked].map((client) => [client, state.since ?? given.get(nameOf(client)) ?? 0]);
  if (page.facts.together.length) rounds.push([TOGETHER, state.since ?? given.get(page.facts.together[0]) ?? 0]);
  return new Map(rounds.filter(([, round]) => round !== 0));
}

// The name of the preset that the settings are, or nothing.
function presetNow() {
  const same = ([, p]) => p.beta === state.beta && p.evidence === state.evidence && p.rule === state.rule;
  return (Object.entries(page.facts.presets).find(same) ?? [null])[0];
}

function nameOf(client) {
  return idOf(page, client);
}

// Those who are marked on the page, and those who are marked for good.
function markedCount() {
  return state.marked.size + page.facts.together.length;
}

// Everybody who took part in a round.
function everyone() {
  return page.tookPart.filter(Boolean).length + page.facts.others + page.facts.together.length;
}
