// The times of the rounds in the ledger, always in UTC.

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY = 86400;

// When round t started, in seconds since 1970; NaN if the ledger has no times.
function timeBefore(t) {
  const { began, ended } = page.times;
  const known = t > 0 ? [ended[t - 1], began[t]] : [began[0], ended[0]];
  return known.find(Number.isFinite) ?? NaN;
}

function hasTimes() {
  return page.rounds.length > 0 && Number.isFinite(timeBefore(0)) && Number.isFinite(timeBefore(page.rounds.length));
}

const two = (value) => String(value).padStart(2, "0");

function clock(seconds, withSeconds = false) {
  const at = new Date(seconds * 1000);
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}${withSeconds ? `:${two(at.getUTCSeconds())}` : ""}`;
}

function day(seconds, withYear = true) {
  const at = new Date(seconds * 1000);
  return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}${withYear ? ` ${at.getUTCFullYear()}` : ""}`;
}

// The time span of the training: long ones are shown by day, short ones by the second.
function trainingSpan() {
  const [from, to] = [timeBefore(0), timeBefore(page.rounds.length)];
  return { from, to, long: to - from > 2 * DAY, short: to - from < 600 };
}

// Whether times on an axis are useful: in a training of a few seconds all ticks would be the same.
function timesTellRoundsApart() {
  return hasTimes() && trainingSpan().to - trainingSpan().from >= 30;
}

// The label of a round on an axis; empty if the ledger has no times.
function timeTick(t) {
  const at = timeBefore(Math.max(0, Math.min(page.rounds.length, t)));
  const { long, short } = trainingSpan();
  return Number.isFinite(at) ? (long ? day(at, false) : clock(at, short)) : "";
}

// The title of such an axis.
function axisDay() {
  const { from, to, long } = trainingSpan();
  const days = day(from) === day(to) ? day(from) : `${day(from)} – ${day(to)}`;
  return long ? `${days}, UTC` : `${days}, times in UTC`;
}

// Within a sentence: "round 12 (17 Nov 2026, 05:03 UTC)".
function roundAndTime(t) {
  const at = hasTimes() ? timeBefore(t) : NaN;
  return `round ${t}${Number.isFinite(at) ? ` (${day(at)}, ${clock(at, trainingSpan().short)} UTC)` : ""}`;
}

function whenTrained() {
  if (!hasTimes()) return null;
  const { from, to, short } = trainingSpan();
  const until = day(from) === day(to) ? clock(to, short) : `${day(to)}, ${clock(to, short)}`;
  return `trained ${day(from)}, ${clock(from, short)} to ${until} UTC`;
}
