// The commands that do what the page shows, quoted for a shell whatever the clients are called.

part(({ plan }) => {
  if (!plan) return show(byId("commands"), el("p", { class: "empty" }, "Mark a client to see the commands."));
  const unnameable = plan.malicious.filter((id) => !nameable(id));
  show(byId("commands"),
    unnameable.length ? el("p", { class: "note" }, `A command line cannot name ${unnameable.join(" and ")}: that is not an id that a round could have. Leave it unmarked, or decide in Python.`) : shellCommands(plan),
    command("The same decision in Python, to recover on a fleet of your own", pythonOf(plan)));
});

function shellCommands(plan) {
  return [
    command("The decision, with all its figures", planCommand(plan)),
    recoveryOf(plan),
    command("Check that nobody has changed this history", `fedcrab verify ${quoted(pathOf())}`),
  ];
}

// Where the history came from says how its clients are asked again.
function recoveryOf(plan) {
  const { source } = page.facts;
  if (source === "simulator") return command("The recovery, on the simulated clients of this history", recoverCommand(plan));
  if (source === "nvflare") return command("The job of the recovery, on the same FLARE sites: TRAINING is the folder of the training's job, as its recipe exports it", flareCommand(plan));
  if (source !== "flower") return null;
  return plan.malicious.some((id) => id.includes("'"))
    ? el("p", { class: "note" }, "A run configuration on the command line cannot contain the quotation mark in these ids: put it into a TOML file and name that file with flwr run --run-config.")
    : command("The recovery, on the same Flower clients: run it in the folder of the app", flowerCommand(plan));
}

function flowerCommand(plan) {
  const since = Object.entries(plan.since);
  const rounds = new Set(plan.malicious.map((id) => plan.since[id] ?? 0));
  const ids = namesOf(plan).map((id) => (rounds.size > 1 && plan.since[id] ? `${id}@${plan.since[id]}` : listed(id))).join(",");
  const own = presetNow() === "hardened" ? [] : [`beta=${plan.beta}`];
  const values = ["mode='recover'", `malicious='${ids}'`, ...(since.length && rounds.size === 1 ? [`since=${since[0][1]}`] : []), ...own, `history='${page.facts.path}'`, "recovered='/absolute/path/of/the/recovery'"];
  return `flwr run . --run-config ${doubleQuoted(values.join(" "))} --stream`;
}

function flareCommand(plan) {
  const own = presetNow() === "hardened" ? "" : ` --set 'planned={"beta": ${plan.beta}}'`;
  return `python -m fedcrab.nvflare TRAINING --history ${quoted(page.facts.path)} ${optionOf(plan)}${sinceOption(plan)}${own} --recovered recovered`;
}

// Inside double quotes, as a shell takes it back.
function doubleQuoted(text) {
  return `"${text.replace(/["\\$`]/g, "\\$&")}"`;
}

// What the ids of clients that took part are held to.
function nameable(id) {
  return id !== "" && id === id.trim();
}

// As --malicious reads it back: quoted as in CSV, where a comma or anything else of its own is in it.
function listed(id) {
  return /[",@]/.test(id) || id === "-" ? `"${id.replaceAll('"', '""')}"` : id;
}

function optionOf(plan) {
  return `--malicious=${quoted(namesOf(plan).map(listed).join(","))}`;
}

// As a shell takes it back, letter for letter.
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

function recoverCommand(plan) {
  const same = presetNow();
  const own = ` --set beta=${plan.beta} --set evidence=${plan.evidence} --set rule=${plan.rule}`;
  const how = ` --method ${defaultMethod().name}${same ? "" : own}`;
  return `fedcrab recover ${quoted(pathOf())} ${optionOf(plan)}${sinceOption(plan)}${how} --out recovered`;
}

// One round for all of them, or one for each.
function sinceOption(plan) {
  const since = new Map(Object.entries(plan.since));
  const rounds = plan.malicious.map((id) => since.get(id) ?? 0);
  if (rounds.every((round) => round === rounds[0])) return rounds[0] ? ` --since ${rounds[0]}` : "";
  return [...since].map(([id, round]) => ` --since ${quoted(`${id}@${round}`)}`).join("");
}

// In the order in which people count them.
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
  const told = el("span", { class: "told", role: "status" });
  const code = el("pre", { tabindex: 0 }, el("code", {}, text));
  const copy = el("button", { type: "button", click: () => copyText(text, code, told) }, "Copy");
  return el("div", { class: "command" }, el("p", {}, words), code, copy, told);
}

async function copyText(text, code, told) {
  try {
    await navigator.clipboard.writeText(text);
    told.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(code);
    told.textContent = "Selected: copy with Ctrl+C.";
  }
}
