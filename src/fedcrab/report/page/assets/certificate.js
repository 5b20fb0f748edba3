// The certificates in words: what is proved, under what, and what is not.

const FLAGS = {
  sound: "proved, where what it assumes is true",
  heuristic: "a sensible figure that nothing proves",
  "not provable": "for comparison only",
};

function prepareCertificates() {
  const certified = (page.facts.recoveries?.methods ?? []).filter((row) => row.certificate);
  byId("certificate").hidden = !certified.length;
  show(byId("certificate-words"), certified.map((row) => certificateInWords(row)), certified.length ? notProved() : null);
}

function certificateInWords({ method, certificate }) {
  const { conclusion, terms, unknown, signed, path } = certificate;
  const headline = conclusion.value == null
    ? "Nothing is proved of its distance to a model trained from scratch: no retraining was run, and nothing was declared that would bound it."
    : `The recovered model is at most ${number(conclusion.value)} from the one trained from scratch without the malicious clients.`;
  return el("article", { class: "certified" },
    el("h3", {}, methodName(method)),
    el("p", { class: "big-lead" }, headline),
    conclusion.value != null && conclusion.assumes.length ? [el("p", { class: "note" }, "This assumes:"), el("ul", { class: "note" }, conclusion.assumes.map((words) => el("li", {}, words)))] : null,
    el("details", {}, el("summary", {}, `The ${plural(terms.length, "statement")} behind it`), el("div", { class: "scroll" }, statementsTable(terms))),
    el("p", { class: "note" }, unknown.length ? `${plural(unknown.length, "further bound")} cannot be stated for want of what they assume. ` : "", signed ? "The certificate is signed. " : "The certificate is not signed. ", "This page repeats what it says; “", el("code", {}, `fedcrab verify ${quoted(path)}`), "” recomputes it from the history."));
}

function statementsTable(terms) {
  return table(["statement", "at most", "how far to trust it", "what it is"], terms.map(({ name, value, flag, formula }) => [name, number(value), FLAGS[flag] ?? flag, formula]));
}

function notProved() {
  return [
    el("h3", {}, "What this does not prove"),
    el("ul", { class: "note" },
      el("li", {}, "That nobody else was malicious: every statement takes all clients who were not named for honest."),
      el("li", {}, "That the model behaves as the retrained one would: distances between models are bounded, not what they answer. Accuracy and attack success above are measured, on the data at hand."),
      el("li", {}, "Anything without what is assumed: the assumptions are declared by whoever ran the recovery, not checked.")),
  ];
}
