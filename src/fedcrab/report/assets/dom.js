// Elements and number formats. Strings are always inserted as text, never as HTML.

const byId = (id) => document.getElementById(id);

function el(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function furnish(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

function show(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// A number with at most four digits.
function number(value) {
  if (!Number.isFinite(value)) return value == null ? "–" : Number.isNaN(value) ? "not a number" : value > 0 ? "∞" : "−∞";
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function percent(value, digits = 0) {
  if (value == null) return "–";
  return value > 0 && value < 0.5 * 10 ** (-digits - 2) ? `<${10 ** -digits}%` : `${(100 * value).toFixed(digits)}%`;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  let at = 0;
  for (; count >= 1000 && at < units.length - 1; at++) count /= 1000;
  return `${Number(count.toPrecision(3))} ${units[at]}`;
}

function plural(count, one, many = `${one}s`) {
  return `${whole.format(count)} ${count === 1 ? one : many}`;
}

// A long name cut in the middle; the whole of it is in the title.
function shortened(text, most = 24) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 6).join("")}…${letters.slice(-5).join("")}`;
}

// Radio buttons that look like a switch.
function choices(fieldset, name, options, chosen, choose) {
  const labels = Object.entries(options).map(([value, words]) => {
    const input = el("input", { type: "radio", name, value, change: () => choose(value) });
    input.checked = value === chosen;
    return el("label", {}, input, el("span", {}, words));
  });
  fieldset.append(el("div", { class: "switch" }, labels));
}

function choose(name, value) {
  for (const input of document.querySelectorAll(`input[name="${name}"]`)) input.checked = input.value === value;
}

function table(headings, rows, caption) {
  const head = el("tr", {}, headings.map((words) => el("th", { scope: "col" }, words)));
  const body = rows.map((cells) =>
    el("tr", {}, cells.map((cell, at) => el(at ? "td" : "th", at ? {} : { scope: "row" }, cell))));
  return el("table", {}, caption ? el("caption", {}, caption) : null, el("thead", {}, head), el("tbody", {}, body));
}

// Fill a <details> element only while it is open.
function whenOpen(details, make) {
  const place = details.querySelector(".scroll");
  details.refresh = () => (details.open ? show(place, make()) : place.replaceChildren());
  details.addEventListener("toggle", details.refresh);
}
