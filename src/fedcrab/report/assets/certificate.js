// The certificates in words: what is proven, under which assumptions, and what is not.

const FLAGS = {
  sound: "proven, if its assumptions hold",
  heuristic: "an estimate, not proven",
  "not provable": "for comparison only",
};

function prepareCertificates() {
  const every = (page.facts.recoveries?.methods ?? []).filter((row) => row.certificate);
  const certified = every.some((row) => !row.reference) ? every.filter((row) => !row.reference) : every;
  byId("certificate").hidden = !certified.length;
  show(byId("certificate-words"), certified.map((row) => certificateInWords(row)), certified.length ? notProved() : null);
}

function certificateInWords({ title, reference, certificate }) {
  const { conclusion, terms, unknown, signature, path, doing_nothing: nothing } = certificate;
  return el("article", { class: "certified" },
    el("h3", {}, title),
    el("p", { class: "big-lead" }, reference ? "This is the model trained from scratch without the malicious clients, to which the others are compared." : conclusionInWords(conclusion)),
    nothing && !reference ? el("p", { class: "note" }, besideDoingNothing(nothing)) : null,
    conclusion.value != null && conclusion.assumes.length && !reference ? [el("p", { class: "note" }, "This assumes:"), el("ul", { class: "note" }, conclusion.assumes.map((words) => el("li", {}, words)))] : null,
    reference ? null : el("details", {}, el("summary", {}, `The ${plural(terms.length, "statement")} behind it`), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Statements about ${title}` }, statementsTable(terms))),
    el("p", { class: "note" }, unknown.length ? `${plural(unknown.length, "further bound")} not available: assumptions missing. ` : "", `The certificate ${signature}. `, "This page only repeats it; “", el("code", {}, `fedcrab verify ${quoted(path)}`), "” recomputes it from the history."));
}

function conclusionInWords({ value, name }) {
  if (value == null) return "Nothing is proven about its distance to a model trained from scratch: no retraining was run, and no assumption was declared that would bound it.";
  const scratch = "the model trained from scratch without the malicious clients";
  if (value === 0) return `The recovered model equals ${scratch}.`;
  const measured = name === "distance.measured";
  return `The recovered model ${measured ? "is" : "is at most"} ${relative(value)} away from ${scratch}${measured ? " (measured)" : ""}.`;
}

// A distance relative to one that a reader knows: how far the whole training moved the model.
function relative(value) {
  const whole = page.facts.recoveries.distances.training;
  if (!whole) return number(value);
  const share = value / whole;
  const words = share >= 10 ? `${number(Number(share.toPrecision(2)))} times as far as training moved the model` : `${percent(share, share < 0.1 ? 1 : 0)} of the distance that training moved the model`;
  return `${words} (${number(value)})${share > 1 && share < 10 ? ", which is more than the whole training," : ""}`;
}

function besideDoingNothing({ value, nearer }) {
  const bound = `For the poisoned model the same bound is ${relative(value)}`;
  return nearer === "recovered"
    ? `${bound}: the bound of the recovered model is smaller.`
    : `${bound}: by this bound, recovery is no better than doing nothing. The true distance may still be smaller.`;
}

function statementsTable(terms) {
  return table(["statement", "at most", "of the distance that training moved the model", "status", "formula"],
    terms.map(({ name, value, flag, formula }) => [name, number(value), shareOfTraining(value), FLAGS[flag] ?? flag, formula]));
}

function shareOfTraining(value) {
  const whole = page.facts.recoveries.distances.training;
  return whole ? percent(value / whole) : "–";
}

function notProved() {
  return [
    el("h3", {}, "What this does not prove"),
    el("ul", { class: "note" },
      el("li", {}, "That nobody else was malicious: every statement assumes that all clients that were not named are honest."),
      el("li", {}, "That the model behaves as the retrained one would: distances between models are bounded, their predictions are not. Accuracy and attack success above were measured on the data at hand."),
      el("li", {}, "Anything, if an assumption is false: assumptions are declared by whoever ran the recovery, and not checked.")),
  ];
}
