// The state in the address: marked clients, settings and section, so that links and reloads keep it.
// The address contains only what differs from the page as written.

const FRAGMENT = { marked: "marked", beta: "beta", evidence: "evidence", rule: "rule", since: "since", view: "view", sort: "sort" };
const fragment = { initial: null, section: "", timer: 0 };

function fragmentOf(now) {
  const parts = [];
  for (const [name, key] of Object.entries(FRAGMENT)) {
    const [value, before] = [asText(name, now[name]), asText(name, fragment.initial[name])];
    if (value !== before) parts.push(`${key}=${value}`);
  }
  if (fragment.section) parts.push(`at=${fragment.section}`);
  return parts.join("&");
}

function asText(name, value) {
  if (name === "marked") return [...value].sort((a, b) => a - b).map((client) => encodeURIComponent(page.facts.clients[client])).join(",");
  return value == null ? "" : encodeURIComponent(String(value));
}

// The state in a fragment; invalid values are ignored.
function readFragment(text) {
  const values = new Map(text.replace(/^#/, "").split("&").map((piece) => [piece.split("=")[0], piece.slice(piece.indexOf("=") + 1)]));
  const changes = { ...fragment.initial };
  const places = new Map(page.facts.clients.map((id, place) => [id, place]));
  const ids = (values.get("marked") ?? "").split(",").map(decoded).filter((id) => places.has(id));
  if (values.has("marked")) changes.marked = new Set(ids.map((id) => places.get(id)));
  for (const [name, known] of [["evidence", EVIDENCE], ["rule", RULE], ["view", VIEWS], ["sort", SORTS]]) {
    if (Object.hasOwn(known, values.get(name) ?? "")) changes[name] = values.get(name);
  }
  if (values.get("beta") && Number(values.get("beta")) >= 0) changes.beta = Number(values.get("beta"));
  if (values.get("since") && Number(values.get("since")) >= 0) changes.since = Number(values.get("since"));
  fragment.section = sectionsOfPage().includes(values.get("at")) ? values.get("at") : "";
  return changes;
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return ""; }
}

function sectionsOfPage() {
  return [...document.querySelectorAll("main section[id]")].filter((section) => !section.hidden).map(({ id }) => id);
}

// Written after a delay: a slider changes faster than a browser allows for addresses.
function keepFragment() {
  clearTimeout(fragment.timer);
  fragment.timer = setTimeout(writeFragment, 120);
}

function writeFragment() {
  clearTimeout(fragment.timer);
  const text = fragmentOf(state);
  if (location.hash.replace(/^#/, "") !== text) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function prepareFragment() {
  fragment.initial = { ...state, marked: new Set(state.marked) };
  Object.assign(state, readFragment(location.hash));
  addEventListener("hashchange", () => { change(readFragment(location.hash)); goTo(fragment.section); });
  addEventListener("pagehide", writeFragment);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    goTo(link.getAttribute("href").slice(1));
    keepFragment();
  });
}

function goTo(section) {
  if (!section || !byId(section)) return;
  fragment.section = section;
  byId(section).scrollIntoView();
  byId(section).focus({ preventScroll: true });
}
