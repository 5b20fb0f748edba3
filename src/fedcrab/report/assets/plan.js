// The result of `fedcrab plan`, from the page's numbers: decision, replay, cost, shares, warnings.

// The influence of the marked clients under a kind of evidence; cached.
function influenceUnder(page, malicious, since, kind) {
  const key = [TOGETHER, ...[...malicious].sort((a, b) => a - b)].map((client) => `${client}@${since.get(client) ?? 0}`).join(" ");
  const cached = page.influences[kind];
  if (!cached || cached.key !== key) {
    page.evidence[kind] ??= prepareEvidence(page, kind);
    page.influences[kind] = { key, found: influence(page.evidence[kind], malicious, since) };
  }
  return page.influences[kind].found;
}

// Why there is no decision; empty if there is one.
function undecidable(page, malicious, beta, since = new Map()) {
  if (!page.rounds.length) return "No round has been recorded: there is nothing to roll back.";
  if (!malicious.size && !page.facts.together.length) return "Nobody is marked yet.";
  if (!(Number.isFinite(beta) && beta >= 0)) return "β must be a number of 0 or more.";
  const real = (round) => Number.isInteger(round) && round >= 0 && round < page.rounds.length;
  if (![...since.values()].every(real)) return `Clients can be malicious since round 0 to ${page.rounds.length - 1}.`;
  const honest = page.tookPart.some((there, client) => there && !malicious.has(client));
  if (!honest && !page.facts.others) return "Every client is marked: nobody is left to recover with.";
  return "";
}

// `since` maps a marked client to its first malicious round; by default round 0.
function makePlan(page, malicious, { beta, evidence, rule, since = new Map() }) {
  const found = influenceUnder(page, malicious, since, evidence);
  const candidates = page.kept.length ? page.kept : [0];
  const sensitivity = sumsBefore(candidates, found.rounds, found.s);
  const threshold = sumsBefore(candidates, found.rounds, found.phi).map((total) => beta * total);
  const index = decide(sensitivity, threshold, rule);
  const left = poisonLeft(page, malicious, since, candidates, index);
  const replay = candidates.slice(index).map((t) => replayOf(page, t, malicious));
  return {
    malicious: [...[...malicious].sort((a, b) => a - b).map((client) => page.facts.clients[client]), ...page.facts.together],
    since: sinceOf(page, malicious, since),
    beta, evidence, rule, candidates, sensitivity, threshold, index,
    rollback_round: candidates[index],
    model: page.facts.models[index],
    replay,
    cost: costOf(page, replay, malicious),
    shares: sharesOfPoison(found),
    poison_left: left?.part ?? 0,
    warnings: warningsOf(page, malicious, since, evidence, left, replay),
  };
}

// The honest selected clients of a round: those on the page by index, the others as a number.
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

// Client-rounds of the replay and of full retraining.
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

// The number of honest participants of these rounds.
function clientRounds(page, rounds, malicious) {
  return rounds.reduce((total, t) => total + honestIn(page, t, malicious), 0);
}

// The number of participants of a round that are not marked; cached per set of marked clients.
const honestCounts = new WeakMap();

function honestIn(page, t, malicious) {
  if (!honestCounts.has(malicious)) honestCounts.set(malicious, page.rounds.map((round) => honestInRound(round, malicious)));
  return honestCounts.get(malicious)[t];
}

function honestInRound(round, malicious) {
  let total = round.others.count;
  for (let m = 0; m < round.members; m++) total += malicious.has(round.client[m]) ? 0 : 1;
  return total;
}

// [round, number of clients asked] for a recovery by this method, if all answer; `plan` is that of its preset.
function plannedRounds(page, method, plan, malicious) {
  const honest = (t) => honestIn(page, t, malicious);
  if (method.pace) return paced(page, method.pace, plan.rollback_round, honest);
  if (method.schedule) return scheduled(page, method.schedule, plan.rollback_round, honest);
  if (method.rounds) return method.rounds.map((t) => [t, Math.min(honest(t), method.each ?? Infinity)]);
  return plan.replay.map((step, place) => [step.round, place >= plan.replay.length - method.settle ? honest(step.round) : asked(step)]);
}

function plannedAsks(page, method, plan, malicious) {
  return plannedRounds(page, method, plan, malicious).map(([, count]) => count);
}

// Replay asks a few clients every five rounds, more often at the end, and everybody in the last; if few rounds are
// replayed, it asks some in every round (recover/schedule.py).
function paced(page, { asked, few, longest, taper: [share, least, most], settled, short }, first, honest) {
  const rounds = page.rounds.length;
  const last = rounds - Math.max(1, Math.floor((rounds - first) / settled));
  const taper = Math.max(least, Math.min(most, Math.floor((rounds - first) / share)));
  const counts = [];
  const gap = (t) => (rounds - first < short ? 1 : Math.min(longest, 1 + Math.floor((rounds - t) / taper)));
  for (let t = first + 1; t < last; t += gap(t)) counts.push([t, Math.min(asked, Math.max(few, Math.ceil(honest(t) / 2)), honest(t))]);
  for (let t = Math.max(last, first + 1); t < rounds; t++) counts.push([t, honest(t)]);
  return counts;
}

// FedRecover asks all clients in its first rounds, then every few rounds, and in the last (recover/fedrecover.py).
function scheduled(page, { pairs }, first, honest) {
  const rounds = page.rounds.length;
  const within = (share, least, most) => Math.min(most, Math.max(least, Math.floor(rounds / share)));
  const [warmUp, every, tune] = [within(10, pairs + 1, 20), within(8, 2, 10), within(20, 1, 5)];
  const counts = [];
  for (let t = first; t < rounds; t++) {
    if (t < first + warmUp || (t - first - warmUp + 1) % every === 0 || t >= rounds - tune) counts.push([t, honest(t)]);
  }
  return counts;
}

// Each marked client's share of the total sensitivity.
function sharesOfPoison(found) {
  const total = sum(found.s, 0, found.s.length);
  return new Map([...found.parts].map(([client, part]) => [client, total > 0 ? part / total : 0]));
}

function warningsOf(page, malicious, since, evidence, left, replay) {
  const { sentences, caveats, clients, order } = page.facts;
  const warnings = [];
  if (left) warnings.push(fill(sentences.poison_left, left));
  if (evidence === "stored" && !page.kept.some((t) => selectedIn(page.rounds[t], t, malicious, since))) {
    warnings.push(sentences.never_selected);
  }
  const never = order.filter((client) => malicious.has(client) && !page.tookPart[client]);
  if (never.length) warnings.push(fill(sentences.never_let_in, { clients: never.map((c) => clients[c]).join(", ") }));
  warnings.push(...caveats, ...recoveredBefore(page, malicious));
  const alone = replay.filter((step) => !asked(step)).map((step) => step.round);
  if (alone.length) warnings.push(fill(sentences.nobody_left, { rounds: alone.join(", ") }));
  if (!page.facts.closed) warnings.push(sentences.not_closed);
  return warnings;
}

// The warning if training continued from a recovered model: what that recovery removed still counts here.
function recoveredBefore(page, malicious) {
  const { sentences, clients, recoveredBefore: { rounds, gone } } = page.facts;
  if (!rounds.length) return [];
  const named = new Set([...[...malicious].map((client) => clients[client]), ...page.facts.together]);
  const unnamed = gone.filter((id) => !named.has(id));
  const words = unnamed.length ? fill(sentences.gone, { clients: unnamed.join(", ") }) : "";
  return [fill(sentences.recovered_before, { rounds: rounds.join(", "), gone: words })];
}

function selectedIn(round, t, malicious, since) {
  if (round.markedChosen.count && isMalicious(TOGETHER, t, malicious, since)) return true;
  return round.client.some((client, m) => round.selected[m] && isMalicious(client, t, malicious, since));
}

// The first malicious rounds by client id, without those that are 0.
function sinceOf(page, malicious, since) {
  const late = [...malicious].sort((a, b) => a - b).filter((client) => since.get(client));
  const together = since.get(TOGETHER) ? page.facts.together.map((id) => [id, since.get(TOGETHER)]) : [];
  return Object.fromEntries([...late.map((client) => [page.facts.clients[client], since.get(client)]), ...together]);
}

// The marked clients' influence in the rollback model, under evidence `all`; null if there is none.
function poisonLeft(page, malicious, since, candidates, index) {
  const { rounds, s, phi } = influenceUnder(page, malicious, since, "all");
  const poison = sumsBefore(candidates, rounds, s);
  if (poison[index] <= 0) return null;
  const share = poison[index] / (poison[index] + sumsBefore(candidates, rounds, phi)[index]);
  const theirs = new Set();
  for (let t = 0; t < candidates[index]; t++) {
    if (page.rounds[t].marked.count && isMalicious(TOGETHER, t, malicious, since)) theirs.add(TOGETHER);
    for (const client of page.rounds[t].client) if (isMalicious(client, t, malicious, since)) theirs.add(client);
  }
  return {
    part: share,
    round: candidates[index],
    share: share >= 0.001 ? `${(100 * share).toFixed(1)}%` : "less than 0.1%",
    clients: [...page.facts.order, TOGETHER].filter((client) => theirs.has(client)).map((c) => idOf(page, c)).join(", "),
    clean: candidates[decide(poison, poison.map(() => 0), "prefix")],
  };
}

// The id of a client; marked clients that are not on the page have one name together.
function idOf(page, client) {
  return client === TOGETHER ? `${page.facts.together.length} more marked clients, together` : page.facts.clients[client];
}

// A sentence with its placeholders filled in; braces in the values stay as they are.
function fill(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}
