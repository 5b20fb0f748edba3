// The rollback decision, from the geometry that the page carries. Pure functions: no page, no state.
// The sums are taken in the order in which `fedcrab plan` takes them, so that ties fall the same way.

const ROUNDING = 1e-13; // a sum this much smaller than what it is the sum of is nothing but rounding
const BLOCK = 128;

// Σ values[from..from+count): eight running sums side by side, halves above 128 numbers.
function sum(values, from, count) {
  if (count < 8) {
    let total = 0;
    for (let i = 0; i < count; i++) total += values[from + i];
    return total;
  }
  if (count > BLOCK) {
    const half = (count >> 1) - ((count >> 1) % 8);
    return sum(values, from, half) + sum(values, from + half, count - half);
  }
  const r = values.slice(from, from + 8);
  const whole = count - (count % 8);
  for (let i = 8; i < whole; i += 8) {
    for (let k = 0; k < 8; k++) r[k] += values[from + i + k];
  }
  let total = r[0] + r[1] + (r[2] + r[3]) + (r[4] + r[5] + (r[6] + r[7]));
  for (let i = whole; i < count; i++) total += values[from + i];
  return total;
}

// ‖vector‖, over the whole width.
function length(vector, scratch) {
  for (let i = 0; i < vector.length; i++) scratch[i] = vector[i] * vector[i];
  return Math.sqrt(sum(scratch, 0, vector.length));
}

// The counted rounds of a kind of evidence, prepared once. Each has its points (clients, and at the end the
// mean of those whom the page does not carry), their shares, their mean and what it is measured against.
function prepareEvidence(page, kind) {
  const rounds = kind === "stored" ? page.kept : page.rounds.map((_, t) => t);
  const width = page.widths[kind];
  return { rounds, width, counted: rounds.map((t) => countedRound(page.rounds[t], kind, width)) };
}

function countedRound(round, kind, width) {
  const stored = kind === "stored";
  const points = [];
  for (let m = 0; m < round.members; m++) {
    if (stored && !round.selected[m]) continue;
    points.push({ client: round.client[m], examples: round.examples[m], row: row(round, m) });
  }
  const others = stored ? round.chosen : round.others;
  if (others.count) points.push({ client: -1, examples: others.examples, row: others.row });
  const shares = sharesOf(points);
  const against = new Float64Array(width);
  if (stored && round.reference) against.set(round.reference);
  return { points, shares, mean: combine(points, shares, width), against };
}

// Row m of a packed triangle has m + 1 numbers.
function row(round, m) {
  const start = (m * (m + 1)) / 2;
  return round.triangle.subarray(start, start + m + 1);
}

function sharesOf(points) {
  const weights = Float64Array.from(points, (p) => p.examples);
  const total = sum(weights, 0, weights.length);
  return weights.map((w) => w / total);
}

// Σ share·row
function combine(points, shares, width) {
  const total = new Float64Array(width);
  points.forEach((point, at) => {
    for (let i = 0; i < point.row.length; i++) total[i] += shares[at] * point.row[i];
  });
  return total;
}

// What the malicious clients did: s and φ of every counted round, and each client's part of Σ s.
function influence(evidence, malicious) {
  const s = new Float64Array(evidence.counted.length);
  const phi = new Float64Array(evidence.counted.length);
  const parts = new Map([...malicious].sort((a, b) => a - b).map((client) => [client, 0]));
  const scratch = new Float64Array(evidence.width);
  evidence.counted.forEach((counted, at) => {
    const found = influenceOf(counted, malicious, scratch);
    s[at] = found.s;
    phi[at] = found.phi;
    found.parts.forEach(([client, part]) => parts.set(client, parts.get(client) + part));
  });
  return { rounds: evidence.rounds, s, phi, parts };
}

// s = ‖I(all) - I(honest)‖ and φ = ‖I(honest)‖ of one round.
function influenceOf(counted, malicious, scratch) {
  const bad = [];
  counted.points.forEach((point, at) => malicious.has(point.client) && bad.push(at));
  const anyone = bad.length < counted.points.length;
  const honest = honestMean(counted, bad, malicious);
  const goal = anyone ? honest : counted.against;
  const moved = new Float64Array(goal.length);
  let scale = length(goal, scratch);
  for (const at of bad) {
    addDifference(moved, counted.shares[at], counted.points[at].row, goal);
    const padded = new Float64Array(goal.length);
    padded.set(counted.points[at].row);
    scale += counted.shares[at] * length(padded, scratch);
  }
  let s = length(moved, scratch);
  if (s <= ROUNDING * scale) s = 0;
  const phi = anyone ? length(honest.map((x, i) => x - counted.against[i]), scratch) : 0;
  const parts = bad.map((at) => [counted.points[at].client, partOf(counted, at, goal, moved, s)]);
  return { s, phi, parts };
}

// total += share·(row - goal)
function addDifference(total, share, row, goal) {
  for (let i = 0; i < row.length; i++) total[i] += share * (row[i] - goal[i]);
  for (let i = row.length; i < goal.length; i++) total[i] += share * (0 - goal[i]);
}

function honestMean(counted, bad, malicious) {
  const away = new Float64Array(counted.mean.length);
  let weight = 0;
  for (const at of bad) {
    addDifference(away, counted.shares[at], counted.points[at].row, counted.mean);
    weight += counted.shares[at];
  }
  if (weight > 0.5 && bad.length < counted.points.length) {
    const points = counted.points.filter((point) => !malicious.has(point.client));
    return combine(points, sharesOf(points), counted.mean.length);
  }
  const rest = Math.max(1 - weight, 0.5);
  return counted.mean.map((x, i) => x - away[i] / rest);
}

// A client's step along the direction in which the round was moved.
function partOf(counted, at, goal, moved, s) {
  if (s === 0) return 0;
  const { row } = counted.points[at];
  let along = 0;
  for (let i = 0; i < goal.length; i++) along += ((row[i] ?? 0) - goal[i]) * (moved[i] / s);
  return counted.shares[at] * along;
}

// For each candidate the sum over the rounds strictly before it.
function sumsBefore(candidates, rounds, values) {
  let total = 0;
  let at = 0;
  return candidates.map((candidate) => {
    while (at < rounds.length && rounds[at] < candidate) total += values[at++];
    return total;
  });
}

// j*: `last` takes the largest j with S(j) ≤ Φ(j), `prefix` the last before the first excess.
function decide(sensitivity, threshold, rule) {
  const within = sensitivity.map((s, j) => s <= threshold[j]);
  if (rule === "last") return within.lastIndexOf(true);
  const first = within.indexOf(false);
  return first < 0 ? within.length - 1 : first - 1;
}
