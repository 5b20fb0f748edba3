// The commands of the recovery on the engine of the training: simulator, Flower or NVIDIA FLARE.

const RECOVERED = "/absolute/path/of/the/recovery"; // for the reader to fill in

// The engine that recorded the history decides the command; for own code there is only the Python version.
function recoveryOf(plan) {
  return { simulator: simulatorRecovery, flower: flowerRecovery, nvflare: flareRecovery }[page.facts.source]?.(plan) ?? null;
}

function simulatorRecovery(plan) {
  return command("The recovery, on the simulated clients of this history", recoverCommand(plan));
}

function recoverCommand(plan) {
  const own = ` --set beta=${plan.beta} --set evidence=${plan.evidence} --set rule=${plan.rule}`;
  const how = ` --method ${defaultMethod().name}${presetNow() ? "" : own}`;
  return `fedcrab recover ${quoted(pathOf())} ${optionOf(plan)}${sinceOption(plan)}${how} --out recovered`;
}

function flowerRecovery(plan) {
  if (!presetNow() && (plan.evidence !== "all" || plan.rule !== "prefix")) return el("p", { class: "note" }, "A recovery on Flower accepts a preset and β, but no other evidence or rule: choose a preset above.");
  return plan.malicious.some((id) => id.includes("'"))
    ? el("p", { class: "note" }, "A run configuration on the command line cannot contain the quotation mark in these ids: write it to a TOML file and name that file with flwr run --run-config.")
    : command("The recovery, on the same Flower clients; run it in the folder of the app. In a simulation, add the --federation-config of the training: without it Flower starts two clients", flowerCommand(plan));
}

function flowerCommand(plan) {
  const since = Object.entries(plan.since);
  const rounds = new Set(plan.malicious.map((id) => plan.since[id] ?? 0));
  const ids = namesOf(plan).map((id) => listed(rounds.size > 1 ? withSince(plan, id) : id)).join(",");
  const own = { hardened: [], paper: ["method='crab-paper'"] }[presetNow()] ?? [`beta=${plan.beta}`];
  const values = ["mode='recover'", `malicious='${ids}'`, ...(since.length && rounds.size === 1 ? [`since=${since[0][1]}`] : []), ...own, `history='${page.facts.absolutePath}'`, `recovered='${RECOVERED}'`];
  return `flwr run . --run-config ${doubleQuoted(values.join(" "))} --stream`;
}

// A client with its first malicious round, if that is not 0.
function withSince(plan, id) {
  return plan.since[id] ? `${id}@${plan.since[id]}` : id;
}

// FLARE runs jobs: the first command makes the recovery's job from the training's, and the second submits it.
function flareRecovery(plan) {
  return [
    command("The job of the recovery, on the same FLARE sites; TRAINING is the folder of the training's job, as its recipe exports it", flareCommand(plan)),
    command("Submit it", "nvflare job submit -j recovery-job"),
  ];
}

function flareCommand(plan) {
  const settings = JSON.stringify({ beta: plan.beta, evidence: plan.evidence, rule: plan.rule });
  const own = { hardened: "", paper: " --method crab-paper" }[presetNow()] ?? ` --set 'planned=${settings}'`;
  return `python -m fedcrab.nvflare TRAINING --history ${quoted(pathOf())} ${optionOf(plan)}${sinceOption(plan)}${own} --recovered recovered`;
}

// Quoted for a shell, inside double quotes.
function doubleQuoted(text) {
  return `"${text.replace(/["\\$`]/g, "\\$&")}"`;
}
