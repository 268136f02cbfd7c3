// Every client as a point: how good it is, and how much better than otherwise.

const CROWD = 300; // points that must be small

function hover(k, all) {
  const { ids, figures, samples, classes } = clients();
  const lines = [`<b>${plain(ids[k])}</b>`, `${METRIC.name} ${figure(figures[k])}`];
  if (all) lines.push(`gain over ${plain(rivalName())}: ${gain(all[k])} ${METRIC.difference}`);
  lines.push(`${whole(samples[k])} training samples`);
  if (classes) lines.push(`classes ${plain(holdings(k))}`);
  return lines.join("<br>");
}

function points(places, heights, marker) {
  const all = gains();
  return {
    x: places.map((_, at) => at + 1),
    y: heights,
    customdata: places,
    mode: "markers",
    marker,
    text: places.map((k) => hover(k, all)),
    hovertemplate: "%{text}<extra></extra>",
    showlegend: false,
  };
}

// Around the client that is chosen.
function ring(places, heights) {
  const at = places.indexOf(view.chosen);
  const marker = { symbol: "circle-open", size: 18, color: colour("ink"), line: { width: 2.5 } };
  const trace = { x: [at + 1], y: [heights[at]], mode: "markers", marker, hoverinfo: "skip", showlegend: false };
  return at < 0 ? [] : [trace];
}

const acrossClients = (title, places) =>
  axis(title, { showticklabels: false, showgrid: false, range: [0, places.length + 1] });

function pointsChart() {
  const describe = () => {
    const places = inOrder().filter((k) => clients().figures[k] !== null);
    const heights = places.map((k) => clients().figures[k]);
    const together = RUNS[view.run].curves.everyone.at(-1)?.[1];
    const size = places.length > CROWD ? 5 : 9;
    const marker = { color: colourOf(view.run), symbol: symbolOf(view.run), size, opacity: 0.85 };
    const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: together, y1: together, line: thin() };
    const words = { xref: "paper", x: 0, y: together, text: "everyone together", showarrow: false };
    const above = { xanchor: "left", yanchor: "bottom", font: { color: colour("soft") } };
    const from = `from ${figure(Math.min(...heights))} to ${figure(Math.max(...heights))}`;
    return {
      traces: [points(places, heights, marker), ...ring(places, heights)],
      layout: {
        xaxis: acrossClients("clients, in the order of the table", places),
        yaxis: axis(AXIS),
        shapes: together === undefined ? [] : [line],
        annotations: together === undefined ? [] : [{ ...words, ...above }],
      },
      label: places.length
        ? `${METRIC.name} of ${places.length} clients, ${from}. The same figures are in the table.`
        : "No client to show.",
    };
  };
  const title = `Every client’s ${METRIC.name}`;
  return chart(title, "one point per client: choose one to see more of it", describe, { click: reveal });
}

function gainsChart() {
  const describe = () => {
    const all = gains();
    const places = inOrder().filter((k) => all[k] !== null).sort((a, b) => all[b] - all[a]);
    const heights = places.map((k) => all[k]);
    const tone = { up: colour("accent"), down: colour("loss"), level: colour("soft") };
    const colours = heights.map((value) => (value > 0 ? tone.up : value < 0 ? tone.down : tone.level));
    const symbols = heights.map((value) => (value > 0 ? "triangle-up" : value < 0 ? "triangle-down" : "circle"));
    const dots = points(places, heights, { color: colours, symbol: symbols, size: places.length > CROWD ? 4 : 9 });
    const bars = { ...dots, type: "bar", mode: undefined, textposition: "none" };
    const losers = heights.filter((value) => value < 0).length;
    return {
      traces: [{ ...bars, marker: { color: colours, opacity: 0.35 } }, dots, ...ring(places, heights)],
      layout: {
        xaxis: acrossClients("clients, from those who gain most", places),
        yaxis: axis(`gain${METRIC.difference ? `, ${METRIC.difference}` : ` in ${METRIC.name}`}`, {
          zeroline: true,
          zerolinecolor: colour("ink"),
        }),
        bargap: 0.4,
      },
      label:
        `Gain of ${places.length} clients over ${rivalName()}: ${losers} do worse. ` +
        "The same figures are in the table.",
    };
  };
  const alone = view.against === "alone";
  const title = `Gain over ${alone ? "learning alone" : rivalName()}`;
  return chart(title, alone ? DATA.baseline : "client by client", describe, { click: reveal });
}

function histogramChart() {
  const describe = () => {
    const { edges, counts } = clients().histogram;
    const bars = {
      type: "bar",
      x: counts.map((_, k) => (edges[k] + edges[k + 1]) / 2),
      y: counts,
      width: counts.map((_, k) => edges[k + 1] - edges[k]),
      marker: { color: colour("accent") },
      hovertemplate: "%{y:,} clients at %{x:.4~g}<extra></extra>",
    };
    const from = `from ${figure(edges[0])} to ${figure(edges.at(-1))}`;
    return {
      traces: [bars],
      layout: { xaxis: axis(AXIS), yaxis: axis("clients") },
      label: `How ${METRIC.name} is spread over all clients: ${from}.`,
    };
  };
  return chart("All clients", `how many have which ${METRIC.name}`, describe);
}

function pictures() {
  const { figures, histogram } = clients();
  if (!figures?.some((value) => value !== null)) return [];
  const gaining = gains()?.some((value) => value !== null);
  return [pointsChart(), ...(gaining ? [gainsChart()] : []), ...(histogram ? [histogramChart()] : [])];
}
