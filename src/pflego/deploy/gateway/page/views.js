// What the page shows of a client's answers: accuracy before and after, and what has left the tab.

const KINDS = {
  query: "who is here",
  welcome: "ready to join",
  train: "a round's work",
  evaluate: "a test result",
};

const $ = (id) => document.getElementById(id);

/** Accuracy, or the mean squared error where the task is a regression. */
export function showProgress(answers, regression) {
  const rounds = answers.filter((one) => one.kind === "train" || one.kind === "welcome");
  $("progress").hidden = !rounds.length;
  if (!rounds.length) return;
  const first = rounds[0].mine.before;
  const scores = rounds.filter((one) => one.mine.after?.samples).map((one) => ({ round: one.round, value: rate(one.mine.after) }));
  const say = (value) => (value === null ? "–" : regression ? value.toPrecision(3) : `${(100 * value).toFixed(0)} %`);
  $("before").textContent = say(first?.samples ? rate(first) : null);
  $("after").textContent = say(scores.at(-1)?.value ?? null);
  const played = new Set(rounds.filter((one) => one.kind === "train").map((one) => one.round));
  $("rounds").textContent = played.size;
  const last = rounds.findLast((one) => one.mine.seconds !== undefined);
  $("seconds").textContent = last ? `${(1000 * last.mine.seconds).toFixed(0)} ms` : "–";
  const what = regression ? "Mean squared error" : "Share of your test examples that your model gets right";
  $("curve-note").textContent = first?.samples
    ? `${what}, after each round; ${first.samples} of them. The network at the start, with your untrained layer, counts as before.`
    : "There is nothing to test on: give examples for the test, too.";
  const before = first?.samples ? [{ round: rounds[0].round - 1, value: rate(first) }] : [];
  draw($("curve"), [...before, ...scores], regression);
}

function rate({ score, samples }) {
  return score / samples;
}

/** A line over rounds, with a scale. */
function draw(svg, points, regression) {
  const [left, right, top, bottom] = [44, 630, 10, 150];
  const most = regression ? Math.max(...points.map((one) => one.value), 1e-9) : 1;
  const [begin, end] = [points[0]?.round ?? 0, Math.max(points.at(-1)?.round ?? 1, (points[0]?.round ?? 0) + 1)];
  const x = (round) => left + ((right - left) * (round - begin)) / (end - begin);
  const y = (value) => bottom - ((bottom - top) * value) / most;
  const marks = [0, 0.5, 1].map((share) => share * most);
  const lines = marks.map((value) => element("line", { x1: left, x2: right, y1: y(value), y2: y(value) }));
  const scale = marks.map((value) =>
    element("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, regression ? value.toPrecision(2) : `${100 * value} %`),
  );
  const ends = [begin, end].map((round, i) =>
    element("text", { x: x(round), y: bottom + 20, "text-anchor": i ? "end" : "start" }, round ? `round ${round}` : "before"),
  );
  const path = points.map(({ round, value }, i) => `${i ? "L" : "M"}${x(round).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const last = points.at(-1);
  const dot = last ? [element("circle", { cx: x(last.round), cy: y(last.value), r: 4 })] : [];
  svg.replaceChildren(...lines, ...scale, ...ends, element("path", { d: path }), ...dot);
}

function element(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Every byte that has left, by what it is; and what has not. */
export function showLeaving(answers, stays) {
  $("leaves").hidden = !answers.length;
  const sum = answers.reduce((total, one) => total + one.bytes, 0);
  $("total").textContent = `${sum.toLocaleString("en")} bytes so far, in ${answers.length} message${answers.length === 1 ? "" : "s"}.`;
  const kinds = Object.keys(KINDS).map((kind) => answers.findLast((one) => one.kind === kind)).filter(Boolean);
  $("messages").replaceChildren(...kinds.map(message));
  $("stays").replaceChildren(...stays.map((words) => html("li", words)));
  const rows = answers.toReversed().map((one) =>
    html("tr", "", [
      html("td", new Date(one.time).toLocaleTimeString()),
      html("td", KINDS[one.kind] + (one.round ? `, round ${one.round}` : "")),
      html("td", one.bytes.toLocaleString("en"), [], "number"),
      html("td", (one.sent ?? []).map(tensor).join("; ") || "none"),
    ]),
  );
  document.querySelector("#log tbody").replaceChildren(...rows);
}

function message(one) {
  const title = `${KINDS[one.kind]}${one.round ? `, round ${one.round}` : ""}: ${one.bytes.toLocaleString("en")} bytes`;
  const tensors = (one.sent ?? []).map((sent) => html("li", `gradient of ${tensor(sent)}`));
  const numbers = Object.entries(one.numbers ?? {}).map(([name, value]) => `${name} ${number(Array.isArray(value) && typeof value[1] === "string" ? value[0] : value)}`);
  const list = html("ul", "", [...tensors, ...(numbers.length ? [html("li", numbers.join(", "))] : [])]);
  return html("div", "", [html("strong", title), list], "message");
}

function tensor({ name, shape, bytes }) {
  return `${name}, ${shape.join(" × ")} numbers, ${bytes.toLocaleString("en")} bytes`;
}

function number(value) {
  if (Array.isArray(value)) return `[${value.join(", ")}]`;
  return typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : `${value === "" ? "none" : value}`;
}

function html(name, text, children = [], style = "") {
  const made = document.createElement(name);
  if (style) made.className = style;
  made.textContent = text;
  made.append(...children);
  return made;
}

/** How sure a model is of each class, as bars. */
export function showGuess(list, classes, outputs) {
  const top = Math.max(...outputs);
  const powers = Array.from(outputs, (value) => Math.exp(value - top));
  const total = powers.reduce((sum, value) => sum + value, 0);
  list.replaceChildren(
    ...classes.map((label, k) => {
      const bar = html("span", "", [html("i", "")], "bar");
      bar.firstChild.style.width = `${(100 * powers[k]) / total}%`;
      return html("li", "", [html("b", label), bar, html("span", `${((100 * powers[k]) / total).toFixed(0)} %`, [], "number")]);
    }),
  );
}
