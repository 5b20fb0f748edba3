// The decision: a bar of the training, the main figures, and every warning.

part(({ plan }) => {
  show(byId("span"), plan ? spanOf(plan) : null);
  show(byId("figures"), plan ? figuresOf(plan) : null);
  show(byId("warnings"), (plan?.warnings ?? []).map((words) => el("li", {}, words)));
});

// The training as one bar: the rounds that stay and the rounds that are undone.
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

// The cost of the recovery, if it has been run for the marked clients.
function spentBy(plan) {
  const row = isRecovered() ? chosenRecovery() : null;
  if (!row || row.client_rounds == null || row.contact_rounds == null) return null;
  const all = plan.cost.retrain_client_rounds;
  return { clientRounds: row.client_rounds, contacts: row.contact_rounds, share: all ? row.client_rounds / all : 0, method: row.method };
}

function figuresOf(plan) {
  const { clientRounds, contacts, share, method } = spentBy(plan) ?? defaultCost(plan);
  const figures = [
    ["Marked", whole.format(markedCount()), `of ${plural(everyone(), "client")}`],
    ["Rounds with contact", whole.format(contacts), `of ${whole.format(plan.cost.retrain_rounds)} in training`],
    ["Client-rounds", whole.format(clientRounds), `of ${whole.format(plan.cost.retrain_client_rounds)} to retrain`],
    ["Work", percent(share), `of full retraining, by ${method}`],
  ];
  return figures.map(([name, value, words]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), " ", el("span", {}, words))));
}
