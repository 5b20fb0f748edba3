// The page's data, unpacked: rounds with their members and coordinates.

const KINDS = { f64: Float64Array, f32: Float32Array, i32: Int32Array, u8: Uint8Array };

// The four means among a round's points, in their order: of the clients not on the page that count as honest, of
// the selected ones of these, and the same for those that are marked.
const MEANS = ["others", "chosen", "marked", "markedChosen"];

function unpack({ kind, base64 }) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new KINDS[kind](bytes.buffer);
}

function readPage(facts) {
  const arrays = {};
  for (const [name, array] of Object.entries(facts.arrays)) arrays[name] = unpack(array);
  const rounds = readRounds(facts, arrays);
  const tookPart = new Array(facts.clients.length).fill(false);
  for (const client of arrays.client) tookPart[client] = true;
  return {
    facts, rounds, tookPart,
    kept: facts.kept,
    widths: facts.widths,
    loss: arrays.loss,
    times: { began: arrays.began, ended: arrays.ended },
    divergence: arrays.divergence,
    evidence: {},
    influences: {},
  };
}

function readRounds(facts, arrays) {
  const taken = { member: 0, number: 0, reference: 0 };
  const take = (array, what, count) => array.subarray(taken[what], taken[what] + count);
  const rounds = [];
  for (let t = 0; t < facts.rounds; t++) {
    const members = arrays.members[t];
    const means = MEANS.filter((name) => arrays[name][t]).length;
    const points = members + means;
    const round = {
      members,
      othersSelected: arrays.othersSelected[t],
      triangle: take(arrays.triangles, "number", (points * (points + 1)) / 2),
      reference: arrays.references[t] ? take(arrays.reference, "reference", arrays.references[t]) : null,
    };
    for (const name of ["client", "examples", "norm", "cosine", "selected"]) {
      round[name] = take(arrays[name], "member", members);
    }
    taken.member += members;
    taken.number += round.triangle.length;
    taken.reference += arrays.references[t];
    let at = members;
    for (const name of MEANS) {
      const count = arrays[name][t];
      round[name] = { count, examples: arrays[`${name}Examples`][t], row: count ? row(round, at++) : null };
    }
    rounds.push(round);
  }
  return rounds;
}
