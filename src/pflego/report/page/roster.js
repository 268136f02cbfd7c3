// Every client as a row of a table.

// [what it sorts by, heading, class]
function columns() {
  const { figures, rounds, classes } = clients();
  return [
    ["client", "client", ""],
    ...(known(figures) ? [["figure", METRIC.name, "number"]] : []),
    ...(gains() ? [["gain", `gain over ${rivalName()}`, "number"]] : []),
    ["samples", "samples", "number"],
    ...(known(rounds) ? [["rounds", "rounds", "number"]] : []),
    ...(known(classes) ? [[null, "classes", "classes"]] : []),
  ];
}

function heading([key, name, kind]) {
  if (key === null) return make("th", { scope: "col", class: kind }, name);
  const active = key === view.sort;
  const down = orders()[key].largest !== (active && view.reversed);
  const sort = () => change({ sort: key, reversed: active && !view.reversed });
  const button = { type: "button", "data-sort": key, click: sort };
  return make(
    "th",
    { scope: "col", class: kind, "aria-sort": active ? (down ? "descending" : "ascending") : null },
    make("button", button, name + (active ? (down ? " ↓" : " ↑") : "")),
  );
}

function row(k, all) {
  const { ids, figures, samples, rounds, classes } = clients();
  const chosen = k === view.chosen;
  const button = { type: "button", "aria-pressed": String(chosen), "data-client": k, click: () => reveal(k) };
  const number = (text, more = "") => make("td", { class: `number ${more}` }, text);
  return make(
    "tr",
    { class: chosen ? "chosen" : null },
    make("th", { scope: "row" }, make("button", button, ids[k])),
    known(figures) ? number(figure(figures[k])) : null,
    all ? number(gain(all[k]), all[k] < 0 ? "worse" : "") : null,
    number(whole(samples[k])),
    known(rounds) ? number(whole(rounds[k])) : null,
    known(classes) ? make("td", { class: "classes" }, holdings(k)) : null,
  );
}

function showTable() {
  const places = inOrder();
  const all = gains();
  const total = clients().ids.length;
  const { sort, client } = document.activeElement.dataset;
  parts.table.replaceChildren(
    make("caption", { class: "hidden" }, "Every client"),
    make("thead", {}, make("tr", {}, columns().map(heading))),
    make("tbody", {}, places.slice(0, view.rows).map((k) => row(k, all))),
  );
  // A table that is built anew must not lose the place of whoever works with the keyboard.
  if (sort) parts.table.querySelector(`[data-sort="${sort}"]`)?.focus();
  if (client) parts.table.querySelector(`[data-client="${client}"]`)?.focus();
  parts.more.hidden = places.length <= view.rows;
  parts.more.textContent = `Show ${whole(Math.min(MORE_ROWS, places.length - view.rows))} more`;
  const some = places.length < total ? `${whole(places.length)} of ` : "";
  parts.status.textContent = `${some}${whole(total)} client${total === 1 ? "" : "s"}`;
}
