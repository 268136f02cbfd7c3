// Who took part when.

const NAMED = 30; // rows that have room for a name
const LONGEST = 14; // letters of a name there

function presenceChart(run, title) {
  const { shares, clients_a_row: tall, rounds_a_column: long } = run.presence;
  const single = tall * long === 1;
  const span = (at, size) => `${whole(at * size + 1)}${size > 1 ? ` to ${whole((at + 1) * size)}` : ""}`;
  const who = (at) => (tall === 1 ? run.clients.ids[at] : `clients ${span(at, tall)}`);
  const when = (at) => `round${long > 1 ? "s" : ""} ${span(at, long)}`;
  const part = (share) => (single ? (share ? "asked" : "not asked") : `${Math.round(100 * share)} % asked`);
  const what = (share) => (share === null ? "no member" : part(share));
  const changing = shares.flat().includes(null);
  const none = single ? "a grey one: a member that was not" : "grey: none of the members";
  const gone = changing ? `; ${none}; an empty place: no member then` : "";
  const tick = (name) => plain(name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);
  const rows = shares.map((_, at) => at);
  const names = rows.length <= NAMED ? rows : [];
  const describe = () => ({
    traces: [{
      type: "heatmap",
      x: shares[0].map((_, at) => at * long + (long + 1) / 2),
      z: shares,
      zmin: 0,
      zmax: Math.max(...shares.flat(), 0.001),
      // where some places are empty, those who were not asked must not look like them
      colorscale: [[0, colour(changing ? "line" : "raised")], [1, colour("accent")]],
      showscale: !single,
      colorbar: { title: { text: "share" }, thickness: 10, outlinewidth: 0 },
      xgap: shares[0].length > 80 ? 0 : 1,
      ygap: 1,
      text: shares.map((row, at) => row.map((share, t) => `${plain(who(at))}, ${when(t)}: ${what(share)}`)),
      hovertemplate: "%{text}<extra></extra>",
    }],
    layout: {
      xaxis: axis("round", { showgrid: false }),
      yaxis: axis(names.length ? "" : "clients, in the order of the federation", {
        showgrid: false,
        autorange: "reversed",
        tickvals: names,
        ticktext: names.map((at) => tick(who(at))),
      }),
    },
    label:
      `Who took part when: ${rows.length} rows of clients, ${shares[0].length} columns of rounds. ` +
      "How many rounds each client took part in is in the table of clients.",
  });
  const cell = single
    ? "a filled cell: the client was asked to take part in the round"
    : `a cell is ${whole(tall)} clients and ${whole(long)} rounds: the stronger, the more of them were asked`;
  return chart(title, `${cell}${gone}`, describe);
}

function presencePart() {
  const pictures = new Map(); // runs that look the same are drawn once
  for (const run of RUNS.filter((one) => one.presence.shares.length)) {
    const key = JSON.stringify([run.presence, DATA.same_clients || run.name]);
    pictures.set(key, [...(pictures.get(key) ?? []), run]);
  }
  const listed = (runs) => runs.map((run) => run.name).join(", ");
  const everyone = RUNS.filter((run) => run.presence.everyone);
  if (pictures.size + everyone.length === 0) return null;
  const of = everyone.length < RUNS.length ? ` of ${listed(everyone)}` : "";
  const said = everyone.length ? `Everyone took part in every round${of}.` : null;
  const title = (runs) => (runs.length === RUNS.length ? "Rounds and clients" : listed(runs));
  const charts = [...pictures.values()].map((runs) => presenceChart(runs[0], title(runs)));
  return section("presence", "Who took part when", said, make("div", { class: "charts" }, charts));
}
