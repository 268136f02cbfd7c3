// Over the rounds: loss and figures under both protocols.

const MOST_MARKS = 60; // points of a curve that are worth one mark each
const MOST_ROWS = 100; // rounds in the table of numbers
const ADAPTED = RUNS.some((run) => run.curves.everyone_adapted.length > 0);
const FROM_ZERO = { rangemode: "tozero" };

function ends(curve) {
  if (curve.length === 0) return "no figures";
  const [first, last] = [curve[0], curve.at(-1)];
  return `${short(first[1])} in round ${first[0]}, ${short(last[1])} in round ${last[0]}`;
}

function curveTrace(curve, name, line, symbol) {
  return {
    x: curve.map(([round]) => round),
    y: curve.map(([, value]) => value),
    name: plain(name),
    mode: symbol && curve.length <= MOST_MARKS ? "lines+markers" : "lines",
    line,
    marker: { symbol, size: 7, color: line.color },
    hovertemplate: `%{y:.4~g}, round %{x}<extra>${plain(name)}</extra>`,
  };
}

function curvesChart(title, explanation, key, unit) {
  return chart(title, explanation, () => ({
    traces: RUNS.map((run, k) => curveTrace(run.curves[key], run.name, lineOf(k), symbolOf(k))),
    layout: {
      xaxis: axis("round", FROM_ZERO),
      yaxis: axis(unit, key === "loss" ? FROM_ZERO : {}),
      showlegend: SEVERAL,
    },
    label: `${title}. ${RUNS.map((run) => `${run.name}: ${ends(run.curves[key])}`).join("; ")}.`,
  }));
}

function bothProtocols() {
  const { everyone, everyone_adapted: adapted, participants } = RUNS[0].curves;
  return chart(`Test ${METRIC.name}`, "of everyone, and of each round’s participants", () => ({
    traces: [
      curveTrace(participants, "participants", thin(), null),
      ...(adapted.length ? [curveTrace(adapted, "everyone adapted", lineOf(1, 2.5), "square")] : []),
      curveTrace(everyone, "everyone", lineOf(0, 2.5), "circle"),
    ],
    layout: { xaxis: axis("round", FROM_ZERO), yaxis: axis(AXIS) },
    label: `Test ${METRIC.name}. Everyone: ${ends(everyone)}. Participants: ${ends(participants)}.`,
  }));
}

// A run's rounds with what is known of each, the last and at most a hundred of them.
function numbersOf(run) {
  const byRound = new Map();
  for (const key of ["everyone", "everyone_adapted", "participants", "loss"]) {
    for (const [round, value] of run.curves[key]) byRound.set(round, { ...byRound.get(round), [key]: value });
  }
  const rounds = [...byRound.keys()].sort((a, b) => a - b);
  const every = Math.ceil(rounds.length / MOST_ROWS);
  const kept = rounds.filter((_, k) => k % every === 0 || k === rounds.length - 1);
  return kept.map((round) => [round, byRound.get(round)]);
}

function numbers() {
  const figures = ["everyone", ...(ADAPTED ? ["everyone_adapted"] : []), "participants"];
  const headings = ["round", ...figures.map((key) => `${METRIC.name}, ${key.replace("_", " ")}`), "loss, participants"];
  const head = headings.map((text) => make("th", { scope: "col", class: "number" }, text));
  const rows = RUNS.flatMap((run) => numbersOf(run).map(([round, known]) => {
    const texts = [whole(round), ...figures.map((key) => figure(known[key] ?? null))];
    const cells = [...texts, known.loss === undefined ? "–" : short(known.loss)];
    const name = SEVERAL ? make("th", { scope: "row" }, run.name) : null;
    return make("tr", {}, name, cells.map((cell) => make("td", { class: "number" }, cell)));
  }));
  if (SEVERAL) head.unshift(make("th", { scope: "col" }, "run"));
  const table = make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
  return wide("The numbers of the curves", table);
}

function roundsPart() {
  const tested = RUNS.some((run) => run.curves.participants.length || run.curves.everyone.length);
  const charts = [];
  if (tested && SEVERAL) {
    const everyone = [`Test ${METRIC.name}, everyone`, "all clients with the present models"];
    const adapted = [`Test ${METRIC.name}, everyone adapted`, "all clients, each after its method’s local steps"];
    const participants = [`Test ${METRIC.name}, participants`, "a round’s clients, after their own steps"];
    if (ADAPTED) charts.push(curvesChart(...adapted, "everyone_adapted", AXIS));
    charts.push(curvesChart(...everyone, "everyone", AXIS), curvesChart(...participants, "participants", AXIS));
  } else if (tested) {
    charts.push(bothProtocols());
  }
  charts.push(curvesChart("Training loss", "of each round’s participants", "loss", "loss"));
  const fill = () => folded.children.length > 1 || folded.append(numbers());
  const folded = make("details", { toggle: fill }, make("summary", {}, "The numbers"));
  const explanation = tested
    ? "Everyone: all clients, each with the present shared weights and its own, which is what a user would meet. " +
      "Participants: the clients of a round, right after their own steps and before aggregation." +
      (ADAPTED ? " Everyone adapted: all clients, each after the steps that a participant takes; fair to all methods." : "")
    : "Nobody has test data, so there is only the loss.";
  const grid = make("div", { class: SEVERAL && charts.length !== 4 ? "charts three" : "charts" }, charts);
  return section("rounds", "Over the rounds", explanation, grid, folded);
}
