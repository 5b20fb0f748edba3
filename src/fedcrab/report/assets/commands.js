// The commands for the decision on the page, quoted for a shell, whatever the client ids are.

part(({ plan }) => {
  if (!plan) return show(byId("commands"), el("p", { class: "empty" }, "Mark a client to see the commands."));
  const unnameable = plan.malicious.filter((id) => !nameable(id));
  show(byId("commands"),
    unnameable.length ? el("p", { class: "note" }, `A command line cannot name ${unnameable.join(" and ")}, which is not a valid id of a participant. Leave it unmarked, or decide in Python.`) : shellCommands(plan),
    command("The same decision in Python, to recover with your own fleet", pythonOf(plan)));
});

function shellCommands(plan) {
  return [
    command("The decision, with all its figures", planCommand(plan)),
    ...[recoveryOf(plan)].flat(),
    command("Check that nobody has changed this history", `fedcrab verify ${quoted(pathOf())}`),
  ];
}

// Whether a client that took part can have this id.
function nameable(id) {
  return id !== "" && id === id.trim();
}

// Quoted for --malicious as in CSV, if the id contains a comma or another special character.
function listed(id) {
  return /[",@]/.test(id) || id === "-" ? `"${id.replaceAll('"', '""')}"` : id;
}

function optionOf(plan) {
  return `--malicious=${quoted(namesOf(plan).map(listed).join(","))}`;
}

// Quoted for a shell.
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function pathOf() {
  return page.facts.path.startsWith("-") ? `./${page.facts.path}` : page.facts.path;
}

function settingsOf(plan) {
  const same = presetNow();
  if (same) return same === "hardened" ? "" : ` --preset ${same}`;
  return ` --beta ${plan.beta} --evidence ${plan.evidence} --rule ${plan.rule}`;
}

function planCommand(plan) {
  return `fedcrab plan ${quoted(pathOf())} ${optionOf(plan)}${sinceOption(plan)}${settingsOf(plan)}`;
}

// One round for all clients, or one per client.
function sinceOption(plan) {
  const since = new Map(Object.entries(plan.since));
  const rounds = plan.malicious.map((id) => since.get(id) ?? 0);
  if (rounds.every((round) => round === rounds[0])) return rounds[0] ? ` --since ${rounds[0]}` : "";
  return [...since].map(([id, round]) => ` --since ${quoted(`${id}@${round}`)}`).join("");
}

// In natural order: c2 before c10.
function namesOf(plan) {
  const marked = new Set(plan.malicious);
  return [...page.facts.order.map(nameOf).filter((id) => marked.has(id)), ...page.facts.together];
}

function pythonOf(plan) {
  const ids = namesOf(plan).map((id) => JSON.stringify(id)).join(", ");
  const rounds = Object.entries(plan.since).map(([id, round]) => `${JSON.stringify(id)}: ${round}`).join(", ");
  const since = rounds ? `, since={${rounds}}` : "";
  return [
    "import fedcrab",
    `history = fedcrab.History.open(${JSON.stringify(page.facts.path)})`,
    `plan = fedcrab.plan(history, malicious={${ids}}, beta=${plan.beta}, evidence="${plan.evidence}", rule="${plan.rule}"${since})`,
    ...(defaultMethod().pace
      ? ["for step in fedcrab.recover.replay(plan, fleet): ..."]
      : [`how = fedcrab.recover.CRAB_PRESETS["${presetNow() ?? "hardened"}"]`, "for step in fedcrab.recover.crab(plan, fleet, **how): ..."]),
  ].join("\n");
}

function command(words, text) {
  const status = el("span", { class: "told", role: "status" });
  const code = el("pre", { tabindex: 0 }, el("code", {}, text));
  const copy = el("button", { type: "button", click: () => copyText(text, code, status) }, "Copy");
  return el("div", { class: "command" }, el("p", {}, words), code, copy, status);
}

async function copyText(text, code, status) {
  try {
    await navigator.clipboard.writeText(text);
    status.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(code);
    status.textContent = "Selected: copy with Ctrl+C.";
  }
}
