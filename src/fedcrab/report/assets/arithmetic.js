// The rollback decision, from the coordinates in the page. Pure functions: no document, no state.
// Sums are added in the order of `fedcrab plan`, so that the bits, and therefore ties, are the same.

const ROUNDING = 1e-13; // a sum below this share of its terms counts as 0
const BLOCK = 128;
const OTHERS = -1; // instead of a client: the mean of the clients not on the page that count as honest
const TOGETHER = -2; // the mean of the clients not on the page that are marked

// Σ values[from..from+count): eight running sums, as in numpy; above 128 numbers in halves.
function sum(values, from, count) {
  if (count < 8) {
    let total = 0;
    for (let i = from; i < from + count; i++) total += values[i];
    return total;
  }
  if (count > BLOCK) {
    const half = (count >> 1) - ((count >> 1) % 8);
    return sum(values, from, half) + sum(values, from + half, count - half);
  }
  let [a, b, c, d] = [values[from], values[from + 1], values[from + 2], values[from + 3]];
  let [e, f, g, h] = [values[from + 4], values[from + 5], values[from + 6], values[from + 7]];
  const end = from + count - (count % 8);
  for (let i = from + 8; i < end; i += 8) {
    a += values[i]; b += values[i + 1]; c += values[i + 2]; d += values[i + 3];
    e += values[i + 4]; f += values[i + 5]; g += values[i + 6]; h += values[i + 7];
  }
  let total = a + b + (c + d) + (e + f + (g + h));
  for (let i = end; i < from + count; i++) total += values[i];
  return total;
}

// ‖vector‖, padded with zeros to the whole width.
function length(vector, squares) {
  const own = vector.length;
  for (let i = 0; i < own; i++) squares[i] = vector[i] * vector[i];
  for (let i = own; i < squares.length; i++) squares[i] = 0;
  return Math.sqrt(sum(squares, 0, squares.length));
}

// The counted rounds of a kind of evidence, prepared once. Each has its points (clients, then the means of the
// clients not on the page), their shares, their mean and its reference.
function prepareEvidence(page, kind) {
  const rounds = kind === "stored" ? page.kept : page.rounds.map((_, t) => t);
  const width = page.widths[kind];
  const room = () => new Float64Array(width);
  const scratch = { squares: room(), away: room(), honest: room(), moved: room(), apart: room() };
  const counted = rounds.map((t) => countedRound(page.rounds[t], kind, width));
  for (const { points } of counted) for (const point of points) point.length = length(point.row, scratch.squares);
  return { rounds, scratch, counted };
}

function countedRound(round, kind, width) {
  const stored = kind === "stored";
  const points = [];
  for (let m = 0; m < round.members; m++) {
    if (stored && !round.selected[m]) continue;
    points.push({ client: round.client[m], examples: round.examples[m], row: row(round, m) });
  }
  const others = stored ? round.chosen : round.others;
  if (others.count) points.push({ client: OTHERS, examples: others.examples, row: others.row });
  const marked = stored ? round.markedChosen : round.marked;
  if (marked.count) points.push({ client: TOGETHER, examples: marked.examples, row: marked.row });
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

// s and φ of every counted round, and each malicious client's part of Σ s.
// A client is honest before its round in `since`.
function influence(evidence, malicious, since) {
  const s = new Float64Array(evidence.counted.length);
  const phi = new Float64Array(evidence.counted.length);
  const parts = new Map([...malicious].sort((a, b) => a - b).map((client) => [client, 0]));
  evidence.counted.forEach((counted, at) => {
    const bad = [];
    counted.points.forEach((point, place) => isMalicious(point.client, evidence.rounds[at], malicious, since) && bad.push(place));
    [s[at], phi[at]] = influenceOf(counted, bad, parts, evidence.scratch);
  });
  return { rounds: evidence.rounds, s, phi, parts };
}

function isMalicious(client, round, malicious, since) {
  return (client === TOGETHER || malicious.has(client)) && round >= (since.get(client) ?? 0);
}

// s = ‖I(all) - I(honest)‖ and φ = ‖I(honest)‖ of one round; adds to the clients' parts.
function influenceOf(counted, bad, parts, scratch) {
  const anyone = bad.length < counted.points.length;
  const honest = honestMean(counted, bad, scratch);
  const goal = anyone ? honest : counted.against;
  const moved = scratch.moved.fill(0);
  let scale = length(goal, scratch.squares);
  for (const at of bad) {
    addDifference(moved, counted.shares[at], counted.points[at].row, goal);
    scale += counted.shares[at] * counted.points[at].length;
  }
  let s = length(moved, scratch.squares);
  if (s <= ROUNDING * scale) s = 0;
  for (const at of s > 0 ? bad : []) {
    const { client, row } = counted.points[at];
    parts.set(client, (parts.get(client) ?? 0) + counted.shares[at] * along(row, goal, moved, s));
  }
  return [s, anyone ? distance(honest, counted.against, scratch) : 0];
}

// total += share·(row - goal)
function addDifference(total, share, row, goal) {
  const own = row.length;
  for (let i = 0; i < own; i++) total[i] += share * (row[i] - goal[i]);
  for (let i = own; i < goal.length; i++) total[i] += share * (0 - goal[i]);
}

function honestMean(counted, bad, { away, honest }) {
  away.fill(0);
  let weight = 0;
  for (const at of bad) {
    addDifference(away, counted.shares[at], counted.points[at].row, counted.mean);
    weight += counted.shares[at];
  }
  if (weight > 0.5 && bad.length < counted.points.length) {
    const points = counted.points.filter((_, at) => !bad.includes(at));
    return combine(points, sharesOf(points), away.length);
  }
  const rest = Math.max(1 - weight, 0.5);
  for (let i = 0; i < honest.length; i++) honest[i] = counted.mean[i] - away[i] / rest;
  return honest;
}

// ‖a - b‖
function distance(a, b, { apart, squares }) {
  for (let i = 0; i < apart.length; i++) apart[i] = a[i] - b[i];
  return length(apart, squares);
}

// The length of row - goal along `moved`, whose length is s.
function along(row, goal, moved, s) {
  let total = 0;
  for (let i = 0; i < row.length; i++) total += (row[i] - goal[i]) * (moved[i] / s);
  for (let i = row.length; i < goal.length; i++) total -= goal[i] * (moved[i] / s);
  return total;
}

// For each candidate, the sum over the rounds before it.
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
