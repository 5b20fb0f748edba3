// The start of the page: read its data, prepare the parts, and draw them.

function start() {
  page = readPage(JSON.parse(byId("facts").textContent));
  const places = new Map(page.facts.clients.map((id, place) => [id, place]));
  state.marked = new Set(page.facts.marked.map((id) => places.get(id)));
  prepareSuspects();
  state.view = strongestView();
  prepareFragment();
  prepareHead();
  prepareMap();
  prepareReach();
  prepareCost();
  for (const kind of ["all", "stored"]) page.evidence[kind] = prepareEvidence(page, kind);
  preparePrint();
  warmUp();
  refresh();
  prepareRecovered();
  prepareCertificates();
  prepareTrigger();
  if (!page.rounds.length) for (const id of ["training", "who", "reach", "cost", "act"]) byId(id).hidden = true;
  showSections();
  redrawWhenItMatters();
  goTo(fragment.section);
}

function prepareHead() {
  const { facts } = page;
  const name = facts.incident.title || facts.path.split("/").filter(Boolean).pop() || facts.path;
  byId("title").textContent = name;
  document.title = `Incident report: ${name}`;
  byId("about").textContent = [
    whenTrained() && upper(whenTrained()), plural(facts.rounds, "round"), plural(everyone(), "client"), `${plural(facts.kept.length, "model")} kept`,
    `${whole.format(facts.parameters)} parameters`, `aggregated by ${facts.aggregation}`,
    `${bytes(facts.bytes.total)} of history`, facts.closed ? null : "training not closed",
  ].filter(Boolean).join(" · ");
  const { owner, status } = facts.incident;
  show(byId("people"), status ? el("b", { class: "status" }, status) : null, owner ? el("span", {}, `Owner: ${owner}`) : null);
  byId("people").hidden = !owner && !status;
  byId("provenance").textContent = `Written by fedcrab ${facts.version} on ${facts.written.slice(0, 16).replace("T", " ")} UTC, from ${facts.path}, whose last entry has the hash ${facts.head}.`;
  sayWhatIsReduced();
}

function showSections() {
  const short = { training: "Training", who: "Clients", trigger: "Trigger", reach: "Reach", cost: "Cost", recovered: "Recovered", certificate: "Proof", act: "Commands" };
  show(byId("sections"), sectionsOfPage().map((id) => el("a", { href: `#${id}` }, short[id])));
}

function sayWhatIsReduced() {
  const { facts } = page;
  const carried = page.tookPart.filter(Boolean).length;
  const notes = [];
  if (facts.together.length) notes.push(`${plural(facts.together.length, "more marked client")} are not shown one by one. They count exactly, as one malicious group, and stay marked.`);
  if (facts.others) notes.push(`${plural(everyone(), "client")} took part; this page shows the ${whole.format(carried)} that were named, are suspected, or moved the model most. The other ${whole.format(facts.others)} count exactly, as honest, and cannot be marked here: “fedcrab report --malicious” adds them, and “fedcrab plan” accepts any client.`);
  if (carried > 1 && !facts.detection) notes.push("The detector was not run, because it takes long with this many clients; run “fedcrab detect”.");
  if (facts.turnedAwayOthers) notes.push(`${plural(facts.turnedAwayOthers, "client")} more were rejected from every round and are not shown.`);
  if (facts.rejections.others) notes.push(`${plural(facts.rejections.others, "rejection")} of clients or rounds not shown here are in “fedcrab show”.`);
  byId("reduced").hidden = !notes.length;
  byId("reduced").textContent = notes.join(" ");
}

function redrawWhenItMatters() {
  const again = () => redrawAll();
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    again();
  }).observe(document.body);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", again);
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const name = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; };
  byId("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); again(); });
  name();
}

start();
