// The page: its parts in their order, its colours, and what changes for paper.

const root = document.documentElement;
const themeButton = document.getElementById("theme");
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null; // by the button: what the system prefers no longer counts
let printing = false;
let width = window.innerWidth;

const wantedTheme = () => chosenTheme ?? (prefersDark.matches ? "dark" : "light");

function showTheme() {
  const other = wantedTheme() === "dark" ? "light" : "dark";
  root.dataset.theme = wantedTheme();
  themeButton.textContent = capital(other);
  themeButton.setAttribute("aria-label", `Use ${other} colours`);
  redrawAll();
}

function forPaper() {
  printing = true;
  root.dataset.theme = "light";
  redrawAll({ printed: true });
}

function forScreen() {
  printing = false;
  showTheme();
}

// A phone that hides its address bar changes the height alone.
function fit() {
  if (!printing && width !== window.innerWidth) redrawAll();
  width = window.innerWidth;
}

function start() {
  const made = [figuresPart(), roundsPart(), clientsPart(), presencePart(), costPart(), settingsPart()];
  const shown = made.filter((part) => part !== null);
  const link = (part) => make("a", { href: `#${part.id}` }, part.querySelector("h2").textContent);
  document.getElementById("facts").append(...DATA.facts.map((fact) => make("li", {}, fact)));
  document.getElementById("parts").append(make("ul", {}, shown.map((part) => make("li", {}, link(part)))));
  document.getElementById("content").append(...shown);
  lookAt(0);
  showTheme();
  themeButton.addEventListener("click", () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  window.addEventListener("resize", fit);
  window.addEventListener("beforeprint", forPaper);
  window.addEventListener("afterprint", forScreen);
}

start();
