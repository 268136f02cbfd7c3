// What all parts of the page need: the data, elements, and numbers as a person reads them.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const METRIC = DATA.metric;
const SEVERAL = RUNS.length > 1;
const AXIS = METRIC.unit ? `${METRIC.name}, ${METRIC.unit}` : METRIC.name;

// An element with attributes, where a function listens to the event of that name, and children, where null is none.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null));
  return element;
}

function section(id, title, explanation, ...children) {
  const heading = make("h2", { id: `${id}-title` }, title);
  const said = explanation ? make("p", {}, explanation) : null;
  return make("section", { id, "aria-labelledby": heading.id }, heading, said, children);
}

// A table that may be wider than the screen: it scrolls by itself, also by the keyboard.
function wide(caption, table) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
}

function chooser(label, options, chosen, changed) {
  const select = make("select", { change: () => changed(select.value) });
  for (const [value, text] of options) {
    select.append(make("option", { value, selected: String(value) === String(chosen) }, text));
  }
  return make("label", {}, label, select);
}

const whole = (value) => value.toLocaleString("en-GB");
const minus = (text) => text.replace("-", "−");
const short = (value) => String(Number(value.toPrecision(4)));

// As many digits for all figures: one after the point of per cents, otherwise three of the largest.
const EVERYBODYS = RUNS.flatMap((run) => [...(run.clients.figures ?? []), ...run.curves.everyone.map((at) => at[1])]);
const LARGEST = EVERYBODYS.reduce((most, value) => Math.max(most, value ?? 0), 1e-9);
const DIGITS = METRIC.unit === "%" ? 1 : Math.max(0, 2 - Math.floor(Math.log10(LARGEST)));

function figure(value) {
  if (value === null) return "–";
  return minus(value.toFixed(DIGITS)) + (METRIC.unit && ` ${METRIC.unit}`);
}

function gain(value) {
  if (value === null) return "–";
  const digits = value.toFixed(METRIC.unit === "%" ? 1 : DIGITS + 1);
  return value > 0 ? `+${digits}` : minus(digits);
}

// How much better a figure is than another.
function difference(own, other) {
  if (own === null || other === null) return null;
  const better = METRIC.higher_is_better ? own - other : other - own;
  return Math.abs(better) < 1e-9 ? 0 : better;
}

const className = (number) => DATA.class_names[number] ?? (number < 0 ? "no class" : String(number));

// Plotly takes some markup in what it writes; names are to be written as they are.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
