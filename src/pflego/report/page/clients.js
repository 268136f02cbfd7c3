// Every client: which are looked at, in which order, and against what.

const FIRST_ROWS = 50;
const MORE_ROWS = 500;
const view = {
  run: 0,
  against: null, // "alone", or the number of another run
  search: "",
  held: "", // a class
  sort: "",
  reversed: false,
  rows: FIRST_ROWS,
  chosen: null, // a client, by its place in the data
};
const parts = {}; // the elements that change

const clients = () => RUNS[view.run].clients;
const known = (column) => Array.isArray(column);

// What a run can be compared with, client by client: the other runs that have the same clients, and learning alone.
function rivals(run) {
  const own = RUNS[run].clients;
  if (!known(own.figures)) return [];
  const others = RUNS.map((other, k) => [k, other]).filter(([k, other]) => k !== run && known(other.clients.figures));
  return [
    ...(DATA.same_clients ? others.map(([k, other]) => [String(k), other.name]) : []),
    ...(known(own.alone) ? [["alone", "learning alone"]] : []),
  ];
}

const rivalName = () => (view.against === "alone" ? "alone" : RUNS[view.against].name);

function gains() {
  if (view.against === null) return null;
  const others = view.against === "alone" ? clients().alone : RUNS[view.against].clients.figures;
  return clients().figures.map((own, k) => difference(own, others[k]));
}

// By what clients can be sorted: the value, and whether the largest come first.
function orders() {
  const { ids, figures, samples, rounds } = clients();
  const all = {
    figure: { name: METRIC.name, values: figures, largest: !METRIC.higher_is_better },
    gain: { name: "gain", values: gains(), largest: false },
    samples: { name: "training samples", values: samples, largest: true },
    rounds: { name: "rounds taken part in", values: rounds, largest: true },
    client: { name: "client", values: ids.map((_, k) => k), largest: false },
  };
  return Object.fromEntries(Object.entries(all).filter(([, order]) => known(order.values)));
}

// The clients that match, in order; whose value is not known comes last.
function inOrder() {
  const { ids, classes } = clients();
  const wanted = view.search.toLowerCase();
  const holds = (k) => view.held === "" || classes[k].some(([number]) => String(number) === view.held);
  const places = ids.map((_, k) => k).filter((k) => ids[k].toLowerCase().includes(wanted) && holds(k));
  const { values, largest } = orders()[view.sort];
  const sign = largest !== view.reversed ? -1 : 1;
  return places.sort((a, b) => {
    const unknown = (values[a] === null) - (values[b] === null);
    return unknown || sign * (values[a] - values[b]) || a - b;
  });
}

function holdings(k) {
  const held = clients().classes[k].map(([number]) => className(number));
  return held.length > 6 ? `${held.slice(0, 5).join(", ")} and ${held.length - 5} more` : held.join(", ");
}

function show() {
  showTable();
  showWalk();
  parts.charts.querySelectorAll("figure").forEach((element) => element.redraw());
  parts.sort.value = view.sort;
}

function change(what) {
  Object.assign(view, what);
  show();
}

function choose(k) {
  change({ chosen: k });
  showClient();
}

// From a point or a row: on a small screen what is shown of the client is further down.
function reveal(k) {
  choose(k);
  if (window.matchMedia("(max-width: 52rem)").matches) parts.client.scrollIntoView();
}

function lookAt(run) {
  view.run = run;
  view.against = rivals(run)[0]?.[0] ?? null;
  if (!DATA.same_clients) Object.assign(view, { chosen: 0, search: "", held: "" });
  rebuild();
}

// The parts that depend on which run is looked at, and against what.
function rebuild() {
  const { notes, why_not_alone: why } = RUNS[view.run];
  if (!(view.sort in orders())) view.sort = Object.keys(orders())[0];
  view.chosen ??= inOrder()[0];
  forget(parts.charts);
  parts.charts.replaceChildren(...pictures());
  parts.notes.replaceChildren(...[...notes, why].filter((note) => note).map((note) => make("li", {}, note)));
  parts.controls.replaceChildren(...controls());
  show();
  showClient();
}

function controls() {
  const made = [];
  const options = rivals(view.run);
  if (SEVERAL) {
    made.push(chooser("Run", RUNS.map((run, k) => [k, run.name]), view.run, (value) => lookAt(Number(value))));
  }
  if (SEVERAL && options.length) {
    made.push(chooser("Against", options, view.against, (value) => { view.against = value; rebuild(); }));
  }
  const find = { type: "search", placeholder: "part of its name", value: view.search };
  const search = make("input", { ...find, input: () => change({ search: search.value }) });
  made.push(make("label", {}, "Find a client", search));
  if (known(clients().classes)) {
    const held = new Set(clients().classes.flatMap((own) => own.map(([number]) => number)));
    const named = [...held].sort((a, b) => a - b).map((number) => [number, className(number)]);
    made.push(chooser("Holding class", [["", "any"], ...named], view.held, (value) => change({ held: value })));
  }
  const keys = Object.entries(orders()).map(([key, order]) => [key, order.name]);
  const sort = chooser("Sort by", keys, view.sort, (value) => change({ sort: value, reversed: false }));
  parts.sort = sort.querySelector("select");
  const reverse = () => change({ reversed: !view.reversed });
  return [...made, sort, make("button", { type: "button", click: reverse }, "Reverse")];
}

function clientsPart() {
  parts.notes = make("ul", { class: "notes" });
  parts.controls = make("div", { class: "controls" });
  parts.status = make("p", { class: "status", role: "status" });
  parts.charts = make("div", { class: "charts" });
  parts.table = make("table", { class: "roster" });
  const more = () => { view.rows += MORE_ROWS; showTable(); };
  parts.more = make("button", { type: "button", class: "more", click: more });
  parts.walk = make("div", { class: "walk" });
  parts.detail = make("div");
  parts.client = make("aside", { class: "client", "aria-label": "The chosen client" }, parts.walk, parts.detail);
  const table = make("div", {}, wide("Table of clients", parts.table), parts.more);
  const both = make("div", { class: "clients" }, table, parts.client);
  return section(
    "clients", "Every client", null, parts.notes, parts.controls, parts.status, parts.charts, both,
  );
}
