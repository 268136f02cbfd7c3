// Figures, cost and settings.

const STROKES = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };

const capital = (text) => text[0].toUpperCase() + text.slice(1);

// A bar of a share of the whole width.
const bar = (share) => make("span", { class: "bar" }, make("i", { style: `width: ${100 * share}%` }));

const note = (measure) => (measure.note ? make("span", { class: "note" }, measure.note) : null);

// The line of a run's curves, as the charts draw it.
function swatch(run) {
  const colours = `stroke="var(--run-${run % SYMBOLS.length})" stroke-dasharray="${STROKES[dashOf(run)]}"`;
  const place = make("span", { class: "swatch", "aria-hidden": "true" });
  place.innerHTML = `<svg viewBox="0 0 32 16"><line x2="32" y1="8" y2="8" stroke-width="4" ${colours}/></svg>`;
  return place;
}

function cards(measures) {
  return make("dl", { class: "cards" }, measures.filter((measure) => measure.value !== null).map((measure) => make(
    "div",
    { class: "card" },
    make("dt", {}, measure.label),
    make("dd", {}, make("span", { class: "figure" }, minus(measure.text)), note(measure)),
  )));
}

// One table per group, one row per measure.
function lines(measures) {
  const tables = [...new Set(measures.map((measure) => measure.group))].map((group) => {
    const rows = measures.filter((measure) => measure.group === group).map((measure) => {
      const name = make("th", { scope: "row" }, measure.label, note(measure));
      return make("tr", {}, name, make("td", { class: "number" }, measure.text));
    });
    return make("table", { class: "lines" }, make("caption", {}, capital(group)), make("tbody", {}, rows));
  });
  return make("div", { class: "charts" }, tables);
}

// One row per run, one column per measure that any of them has; the best of each is marked.
function sideBySide(key, caption, { bars = false } = {}) {
  const columns = new Map(); // by label: the measure of each run, or none
  RUNS.forEach((run, k) => run[key].forEach((measure) => {
    if (!columns.has(measure.label)) columns.set(measure.label, RUNS.map(() => null));
    columns.get(measure.label)[k] = measure.value === null ? null : measure;
  }));
  const kept = [...columns.entries()].filter(([, own]) => own.some((measure) => measure !== null));
  const groups = kept.map(([, own]) => own.find((measure) => measure !== null).group);
  const above = [...new Set(groups)].filter((group) => group).map((group) => {
    const width = groups.filter((other) => other === group).length;
    return make("th", { scope: "colgroup", colspan: width, class: "group" }, capital(group));
  });
  const head = ["run", ...kept.map(([label]) => label)].map((label, k) => (
    make("th", { scope: "col", class: k ? "number" : null }, label)
  ));
  const cell = (own, k) => {
    if (own[k] === null) return make("td", { class: "number" }, "–");
    const { value, text, better } = own[k];
    const values = own.filter((measure) => measure !== null).map((measure) => measure.value);
    const most = Math.max(...values);
    const best = new Set(values).size > 1 && value === (better > 0 ? most : Math.min(...values));
    const said = best ? make("span", { class: "hidden" }, " (best)") : null;
    const share = bars && most > 0 ? bar(value / most) : null;
    return make("td", { class: best ? "number best" : "number" }, minus(text), said, share);
  };
  const rows = RUNS.map((run, k) => {
    const name = make("th", { scope: "row" }, swatch(k), run.name);
    return make("tr", {}, name, kept.map(([, own]) => cell(own, k)));
  });
  const first = above.length ? make("tr", {}, make("td"), above) : null;
  return wide(caption, make("table", {}, make("thead", {}, first, make("tr", {}, head)), make("tbody", {}, rows)));
}

function figuresPart() {
  const title = "What came out";
  if (!SEVERAL) return section("figures", title, null, cards(RUNS[0].quality));
  return section("figures", title, "★ marks the best of a column.", sideBySide("quality", title));
}

function costPart() {
  const title = "What it cost";
  if (!SEVERAL) return section("cost", title, null, lines(RUNS[0].cost));
  const measures = RUNS.flatMap((run) => run.cost).filter((measure) => measure.note);
  const notes = new Set(measures.map((measure) => `${capital(measure.label)}: ${measure.note}.`));
  return section(
    "cost",
    title,
    "★ marks the least of a column, a bar the share of the most.",
    sideBySide("cost", title, { bars: true }),
    make("ul", { class: "notes" }, [...notes].map((said) => make("li", {}, said))),
  );
}

function settingsTable(key, caption) {
  if (!SEVERAL) {
    const pairs = Object.entries(RUNS[0][key]);
    const made = pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    return make("dl", { class: "pairs" }, made);
  }
  const head = ["setting", ...RUNS.map((run) => run.name)].map((text) => make("th", { scope: "col" }, text));
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run[key])))];
  const rows = names.map((name) => {
    const values = RUNS.map((run) => run[key][name] ?? "–");
    const differs = new Set(values).size > 1;
    const said = differs ? make("span", { class: "hidden" }, " (differs)") : null;
    const cells = values.map((value) => make("td", {}, value));
    return make("tr", { class: differs ? "differs" : "same" }, make("th", { scope: "row" }, name, said), cells);
  });
  const top = make("thead", {}, make("tr", {}, head));
  return wide(caption, make("table", { class: "settings" }, top, make("tbody", {}, rows)));
}

function settingsPart() {
  const versions = "Versions and fingerprints";
  const tables = [settingsTable("settings", "Settings"), make("h3", {}, versions), settingsTable("versions", versions)];
  const title = "Settings and versions";
  if (!SEVERAL) {
    return section("settings", title, "The run’s settings.toml, with which it can be run again.", tables);
  }
  const hide = () => part.querySelectorAll(".same").forEach((row) => { row.hidden = only.checked; });
  const only = make("input", { type: "checkbox", change: hide });
  const label = make("p", {}, make("label", {}, only, " only what differs"));
  const part = section("settings", title, "≠ marks what differs.", label, tables);
  return part;
}
