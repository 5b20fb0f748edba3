// What is asked of the page now, and the answers. Every part draws itself from these.

const state = { marked: new Set(), beta: 0.3, evidence: "all", rule: "prefix", view: "cosine", sort: "id" };
let page = null;
const parts = [];

// A part of the page: draw(answer) is called after every change.
function part(draw) {
  parts.push(draw);
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

function refresh() {
  const answer = answerNow();
  for (const draw of parts) draw(answer);
  document.dispatchEvent(new CustomEvent("answered", { detail: answer }));
}

function answerNow() {
  const refused = undecidable(page, state.marked, state.beta);
  if (refused) return { refused, plan: null, presets: {} };
  const presets = {};
  for (const [name, settings] of Object.entries(page.facts.presets)) presets[name] = makePlan(page, state.marked, settings);
  const own = { beta: state.beta, evidence: state.evidence, rule: state.rule };
  return { refused: "", plan: presets[presetNow()] ?? makePlan(page, state.marked, own), presets };
}

// The name of the preset that the settings are, or nothing.
function presetNow() {
  const same = ([, p]) => p.beta === state.beta && p.evidence === state.evidence && p.rule === state.rule;
  return (Object.entries(page.facts.presets).find(same) ?? [null])[0];
}

function nameOf(client) {
  return page.facts.clients[client];
}
