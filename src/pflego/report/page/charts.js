// Charts: one look for all of them, in the colours of the page, drawn again when these change.

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x"];
const TOUCH = window.matchMedia("(pointer: coarse)").matches;
const PAPER = 680; // pixels across a page
const drawn = [];
const probe = document.body.appendChild(make("span", { hidden: true }));

function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// A run has its own colour, and for those who do not see it, its own dashes and marks.
const colourOf = (run) => colour(`run-${run % SYMBOLS.length}`);
const symbolOf = (run) => SYMBOLS[run % SYMBOLS.length];
const dashOf = (run) => (SEVERAL ? DASHES[run % DASHES.length] : "solid");
const lineOf = (run, width = 2) => ({ color: colourOf(run), dash: dashOf(run), width });
const thin = () => ({ color: colour("soft"), dash: "dot", width: 1.5 });

function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8, font: { size: 13 } },
    gridcolor: colour("line"),
    linecolor: colour("line"),
    zeroline: false,
    automargin: true,
    fixedrange: TOUCH,
    ...more,
  };
}

// describe() gives {traces, layout, label} and is asked again for every drawing; label says the picture in words.
// click is told the customdata of the point that was clicked.
function chart(title, explanation, describe, { low = false, click = null } = {}) {
  const place = make("div", { class: low ? "chart low" : "chart", role: "img" });
  const said = explanation ? make("small", {}, explanation) : null;
  const caption = make("figcaption", {}, title, said);
  const element = make("figure", { class: click ? "clickable" : null }, caption, place);
  const item = { place, describe, click, ready: false };
  drawn.push(item);
  element.redraw = () => draw(item);
  return element;
}

function draw(item, { printed = false } = {}) {
  const { traces, layout, label } = item.describe();
  item.place.setAttribute("aria-label", label);
  const look = {
    font: { family: "system-ui, sans-serif", size: 13, color: colour("soft") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 52, r: 12, t: 12, b: 44 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colour("ink") } },
    hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("ink") } },
    hovermode: "closest",
    dragmode: TOUCH ? false : "zoom",
    autosize: !printed,
    ...(printed ? { width: printedWidth(item.place) } : {}),
    ...layout,
  };
  Plotly.react(item.place, traces, look, { displayModeBar: false });
  if (item.click && !item.ready) {
    item.place.on("plotly_click", (event) => item.click(event.points[0].customdata));
  }
  item.ready = true;
}

function printedWidth(place) {
  const beside = place.closest(".charts")?.children.length ?? 1;
  return beside > 1 ? PAPER / 2 - 20 : PAPER - 40;
}

const redrawAll = (how) => drawn.filter((item) => item.place.isConnected).forEach((item) => draw(item, how));

// Of charts that leave the page.
function forget(element) {
  for (const place of element.querySelectorAll(".chart")) {
    Plotly.purge(place);
    drawn.splice(drawn.findIndex((item) => item.place === place), 1);
  }
}
