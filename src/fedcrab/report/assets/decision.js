// The decision in one sentence, a bar that shows it, and the figures that matter.

part(({ refused, plan }) => {
  show(byId("verdict"), ...(plan ? decided(plan) : undecided(refused)));
  show(byId("span"), plan ? spanOf(plan) : null);
  show(byId("figures"), plan ? figuresOf(plan) : null);
  show(byId("warnings"), (plan?.warnings ?? []).map((words) => el("li", {}, words)));
  byId("brief").textContent = plan
    ? `${plural(markedCount(), "client")} marked · back to round ${plan.rollback_round} · ${percent(defaultCost(plan).share)} of retraining`
    : refused;
});

function undecided(refused) {
  const help = page.rounds.length && !markedCount()
    ? el("p", { class: "big-lead" }, "Mark the clients that you believe to be malicious in the ", el("a", { href: "#who" }, "map of clients and rounds"), ". The page then says how far to roll back, and what that costs.")
    : null;
  return [el("h2", { id: "verdict-title" }, refused), help];
}

function decided(plan) {
  const t = plan.rollback_round;
  const title = t === 0 ? "Roll back to the initial model." : `Roll back to the model before round ${t}.`;
  const why = t === 0
    ? `No kept model after it is within what is tolerated: the ${plural(markedCount(), "marked client")} moved every later one too far.`
    : plan.index === plan.candidates.length - 1
      ? `Even in the last kept model, what the ${plural(markedCount(), "marked client")} moved it by is within what is tolerated.`
      : `In ${plan.rule === "last" ? "this kept model" : "every kept model up to this one"}, what the ${plural(markedCount(), "marked client")} moved it by is within what is tolerated; ${plan.rule === "last" ? "in every later one" : "in the next one"} it is not.`;
  return [el("h2", { id: "verdict-title" }, title), el("p", { class: "big-lead" }, why)];
}

// The training as one bar: what stays, what is undone.
function spanOf(plan) {
  const total = page.rounds.length;
  const stays = plan.rollback_round;
  const piece = (count, kind, words) => {
    if (!count) return null;
    const box = el("div", { class: kind }, el("span", {}, words));
    box.style.flexGrow = String(count);
    return box;
  };
  const last = total - 1;
  return [
    piece(stays, "stays", stays === 1 ? "round 0 stays" : `rounds 0–${stays - 1} stay`),
    piece(total - stays, "goes", `${stays === last ? `round ${last}` : `rounds ${stays}–${last}`} undone and replayed`),
  ];
}

function figuresOf(plan) {
  const { clientRounds, contacts, share, name } = defaultCost(plan);
  const figures = [
    ["Marked", whole.format(markedCount()), `of ${plural(everyone(), "client")}`],
    ["Rounds with contact", whole.format(contacts), `of ${whole.format(plan.cost.retrain_rounds)} in training`],
    ["Client-rounds", whole.format(clientRounds), `of ${whole.format(plan.cost.retrain_client_rounds)} to train again`],
    ["Work", percent(share), `of training again, by ${name}`],
  ];
  return figures.map(([name, value, words]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), " ", el("span", {}, words))));
}
