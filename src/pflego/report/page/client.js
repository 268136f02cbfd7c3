// One client: its own curve, what it holds, and where its model is wrong.

const BESIDE = { l: 48, r: 8, t: 8, b: 40 }; // margins of a small chart

// From client to client, in the order of the table.
function showWalk() {
  const places = inOrder();
  const at = places.indexOf(view.chosen);
  const select = make("select", { "aria-label": "Client", change: () => choose(Number(select.value)) });
  for (const k of at < 0 ? [view.chosen, ...places] : places) {
    select.append(make("option", { value: k, selected: k === view.chosen }, clients().ids[k]));
  }
  const step = (sign, name, to) => {
    const button = { type: "button", "aria-label": name, "data-step": name, disabled: places[to] === undefined };
    return make("button", { ...button, click: () => choose(places[to]) }, sign);
  };
  const within = parts.walk.contains(document.activeElement);
  const stepped = document.activeElement.dataset.step;
  parts.walk.replaceChildren(step("←", "Client before", at - 1), select, step("→", "Client after", at + 1));
  if (within) (parts.walk.querySelector(`[data-step="${stepped}"]:not(:disabled)`) ?? select).focus();
}

function factsOf(k) {
  const { figures, tests, samples, rounds, alone, classes } = clients();
  const facts = [];
  if (known(figures)) {
    const on = known(tests) ? ` on ${whole(tests[k])} test samples` : "";
    facts.push(figures[k] === null ? "no test data" : `${METRIC.name} ${figure(figures[k])}${on}`);
  }
  const better = known(alone) ? difference(figures[k], alone[k]) : null;
  if (better !== null) {
    const much = [gain(Math.abs(better)).replace("+", ""), METRIC.difference].join(" ").trim();
    const words = better === 0 ? "as good as" : `${much} ${better > 0 ? "better" : "worse"} than`;
    facts.push(`${words} alone (${figure(alone[k])})`);
  }
  const held = classes?.[k].length;
  const kinds = held === undefined ? "" : held === 1 ? " of one class" : ` of ${whole(held)} classes`;
  facts.push(`${whole(samples[k])} training samples${kinds}`);
  if (known(rounds)) {
    const all = whole(RUNS[view.run].rounds);
    facts.push(rounds[k] === 0 ? "never took part" : `took part in ${whole(rounds[k])} of ${all} rounds`);
  }
  const name = make("h3", { "aria-live": "polite" }, `Client ${clients().ids[k]}`);
  return make("div", {}, name, make("ul", {}, facts.map((fact) => make("li", {}, fact))));
}

// Its figure over the rounds, in every run that it is in.
function ownCurve(k) {
  const runs = DATA.same_clients ? RUNS.keys() : [view.run];
  const curves = [...runs].map((run) => {
    const { curve_rounds: rounds, curves: own } = RUNS[run].clients;
    return [run, rounds.map((round, at) => [round, own[k][at]]).filter(([, value]) => value !== null)];
  }).filter(([, curve]) => curve.length > 1);
  if (curves.length === 0) return null;
  const describe = () => ({
    traces: [
      curveTrace(RUNS[view.run].curves.everyone, "everyone", thin(), null),
      ...curves.map(([run, curve]) => {
        const name = SEVERAL ? RUNS[run].name : "this client";
        return curveTrace(curve, name, lineOf(run, run === view.run ? 3 : 1.5), symbolOf(run));
      }),
    ],
    layout: { xaxis: axis("round", FROM_ZERO), yaxis: axis(AXIS), margin: BESIDE },
    label:
      `${METRIC.name} of client ${clients().ids[k]} over the rounds. ` +
      `${curves.map(([run, curve]) => `${RUNS[run].name}: ${ends(curve)}`).join("; ")}.`,
  });
  return chart("Over the rounds", null, describe, { low: true });
}

function heldClasses(k) {
  const held = clients().classes?.[k];
  if (!held) return null;
  const most = Math.max(...held.map(([, samples]) => samples));
  const lines = held.flatMap(([number, samples]) => [
    make("dt", {}, className(number)),
    make("dd", { "aria-hidden": "true" }, bar(samples / most)),
    make("dd", {}, whole(samples)),
  ]);
  return make("div", {}, make("h4", {}, "Training samples of each class"), make("dl", { class: "held" }, lines));
}

function confusion(answers) {
  const last = (number) => number < 0; // an output of no class
  const said = [...new Set(answers.flatMap(([held, answer]) => [held, answer]))];
  said.sort((a, b) => last(a) - last(b) || a - b);
  const rows = said.filter((number) => answers.some(([held]) => held === number)).map((held) => {
    const own = answers.filter((cell) => cell[0] === held);
    const total = own.reduce((sum, [, , samples]) => sum + samples, 0);
    const cells = said.map((answer) => {
      const samples = own.find((cell) => cell[1] === answer)?.[2] ?? 0;
      const right = held === answer;
      const strength = Math.round((35 * samples) / total);
      const tint = `color-mix(in srgb, var(--${right ? "accent" : "loss"}) ${strength}%, transparent)`;
      const kind = right ? "right" : samples ? "wrong" : "empty";
      return make("td", { class: kind, style: samples ? `background: ${tint}` : null }, whole(samples));
    });
    return make("tr", {}, make("th", { scope: "row" }, className(held)), cells);
  });
  const head = ["class ↓ answer →", ...said.map(className)].map((text) => make("th", { scope: "col" }, text));
  const table = make("table", { class: "confusion" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows));
  return make(
    "div",
    {},
    make("h4", {}, "Answers on test data"),
    make("p", { class: "explain" }, "One row per class, one column per answer; framed where it is right."),
    wide("Confusion matrix", table),
  );
}

function predictions(pairs) {
  const [low, high] = [Math.min(...pairs.flat()), Math.max(...pairs.flat())];
  const describe = () => ({
    traces: [
      { x: [low, high], y: [low, high], mode: "lines", line: thin(), hoverinfo: "skip", showlegend: false },
      {
        x: pairs.map(([target]) => target),
        y: pairs.map(([, answer]) => answer),
        mode: "markers",
        marker: { color: colourOf(view.run), symbol: symbolOf(view.run), size: 8, opacity: 0.8 },
        hovertemplate: "predicted %{y:.4~g}, true %{x:.4~g}<extra></extra>",
        showlegend: false,
      },
    ],
    layout: { xaxis: axis("true"), yaxis: axis("predicted"), margin: BESIDE },
    label: `${pairs.length} predictions against the true targets; both lie from ${short(low)} to ${short(high)}.`,
  });
  return chart("Predicted against true", "on test data; the dotted line is where both agree", describe, { low: true });
}

function showClient() {
  const answers = clients().answers[view.chosen];
  const made = [
    factsOf(view.chosen),
    ownCurve(view.chosen),
    heldClasses(view.chosen),
    answers?.confusion ? confusion(answers.confusion) : null,
    answers?.pairs ? predictions(answers.pairs) : null,
  ];
  forget(parts.detail);
  parts.detail.replaceChildren(...made.filter((part) => part !== null));
  parts.detail.querySelectorAll("figure").forEach((element) => element.redraw());
}
