// What `fedcrab plan` says, from the page's own numbers: decision, replay, cost, shares, warnings.

// What the marked clients did under a kind of evidence; the same question is answered once.
function influenceUnder(page, malicious, kind) {
  const key = [...malicious].sort((a, b) => a - b).join(" ");
  const cached = page.influences[kind];
  if (!cached || cached.key !== key) {
    page.evidence[kind] ??= prepareEvidence(page, kind);
    page.influences[kind] = { key, found: influence(page.evidence[kind], malicious) };
  }
  return page.influences[kind].found;
}

// Why there is no decision, or nothing.
function undecidable(page, malicious, beta) {
  if (!page.rounds.length) return "No round has been recorded: there is nothing to roll back.";
  if (!malicious.size) return "No client is marked.";
  if (!(Number.isFinite(beta) && beta >= 0)) return "β must be a number of 0 or more.";
  const honest = page.tookPart.some((there, client) => there && !malicious.has(client));
  if (!honest && !page.facts.others) return "Every client is marked: nobody is left to recover with.";
  return "";
}

function makePlan(page, malicious, { beta, evidence, rule }) {
  const found = influenceUnder(page, malicious, evidence);
  const candidates = page.kept.length ? page.kept : [0];
  const sensitivity = sumsBefore(candidates, found.rounds, found.s);
  const threshold = sumsBefore(candidates, found.rounds, found.phi).map((total) => beta * total);
  const index = decide(sensitivity, threshold, rule);
  const replay = candidates.slice(index).map((t) => replayOf(page, t, malicious));
  return {
    malicious: [...malicious].sort((a, b) => a - b).map((client) => page.facts.clients[client]),
    beta, evidence, rule, candidates, sensitivity, threshold, index,
    rollback_round: candidates[index],
    model: page.facts.models[index],
    replay,
    cost: costOf(page, replay, malicious),
    shares: sharesOfPoison(found),
    warnings: warningsOf(page, malicious, evidence, index, candidates, replay),
  };
}

// The honest selected clients of a round: those carried by place, the others as a number.
function replayOf(page, t, malicious) {
  const round = page.rounds[t];
  const clients = [];
  for (let m = 0; m < round.members; m++) {
    if (round.selected[m] && !malicious.has(round.client[m])) clients.push(round.client[m]);
  }
  return { round: t, clients, others: round.othersSelected };
}

function asked(step) {
  return step.clients.length + step.others;
}

// Client-rounds of the replay, beside those of training again from scratch.
function costOf(page, replay, malicious) {
  const ours = replay.reduce((total, step) => total + asked(step), 0);
  const scratch = clientRounds(page, page.rounds.map((_, t) => t), malicious);
  return {
    rounds: replay.filter(asked).length,
    client_rounds: ours,
    retrain_rounds: page.rounds.length,
    retrain_client_rounds: scratch,
    share_of_retrain: scratch ? ours / scratch : 0,
  };
}

// The honest participants of these rounds, counted.
function clientRounds(page, rounds, malicious) {
  let total = 0;
  for (const t of rounds) {
    const round = page.rounds[t];
    total += round.others.count;
    for (let m = 0; m < round.members; m++) total += malicious.has(round.client[m]) ? 0 : 1;
  }
  return total;
}

// Each marked client's part of all the sensitivity there is, as a share of it.
function sharesOfPoison(found) {
  const total = sum(found.s, 0, found.s.length);
  return new Map([...found.parts].map(([client, part]) => [client, total > 0 ? part / total : 0]));
}

function warningsOf(page, malicious, evidence, index, candidates, replay) {
  const { sentences, caveats, clients, order } = page.facts;
  const said = [];
  if (index === candidates.length - 1 && index > 0) {
    said.push(fill(sentences.last_record, { round: candidates[candidates.length - 1] }));
  }
  if (!page.kept.some((t) => selectedIn(page.rounds[t], malicious))) {
    said.push(fill(sentences.never_selected, { advice: evidence === "stored" ? sentences.advice : "" }));
  }
  const never = order.filter((client) => malicious.has(client) && !page.tookPart[client]);
  if (never.length) said.push(fill(sentences.never_let_in, { clients: never.map((c) => clients[c]).join(", ") }));
  said.push(...caveats, ...recoveredBefore(page, malicious));
  const alone = replay.filter((step) => !asked(step)).map((step) => step.round);
  if (alone.length) said.push(fill(sentences.nobody_left, { rounds: alone.join(", ") }));
  if (!page.facts.closed) said.push(sentences.not_closed);
  return said;
}

// Where training went on from a recovered model: what was undone then is counted as if it were not.
function recoveredBefore(page, malicious) {
  const { sentences, clients, recoveredBefore: { rounds, gone } } = page.facts;
  if (!rounds.length) return [];
  const named = new Set([...malicious].map((client) => clients[client]));
  const unnamed = gone.filter((id) => !named.has(id));
  const words = unnamed.length ? fill(sentences.gone, { clients: unnamed.join(", ") }) : "";
  return [fill(sentences.recovered_before, { rounds: rounds.join(", "), gone: words })];
}

function selectedIn(round, malicious) {
  return round.client.some((client, m) => round.selected[m] && malicious.has(client));
}

// A sentence with its places filled in; what is filled in is never read again.
function fill(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}
