// The page: who the visitor is, what data there are, and rounds with everybody else.

import { Tensor, bytesOf } from "./client/arrays.js";
import { Desk } from "./client/desk.js";
import { ClientError } from "./client/errors.js";
import { Gateway } from "./client/gateway.js";
import { Kit } from "./client/kit.js";
import { readData } from "./client/npz.js";
import { Store } from "./client/store.js";
import { dataOf, sampleOf, show, sideOf } from "./examples.js";
import { Pad, picture } from "./pad.js";
import { showGuess, showLeaving, showProgress } from "./views.js";

const $ = (id) => document.getElementById(id);
const DIGITS = 10;

const page = {
  gateway: null,
  client: "",
  kit: null,
  store: null,
  desk: null,
  side: null, // of the pictures that can be drawn
  mine: { examples: [], file: null, joined: false }, // the visitor's data: kept in this browser, sent nowhere
};

function say(words, state = "waiting") {
  $("status").textContent = words;
  $("status").dataset.state = state;
}

/** Runs something; what goes wrong is one line on the page. */
async function trying(work) {
  $("problem").hidden = true;
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof ClientError)) console.error(error);
    $("problem").textContent = error.message;
    $("problem").hidden = false;
    say(error.message, "wrong");
    return undefined;
  }
}

/** Holds this client's place among the tabs of this browser for as long as the tab lives. */
function alone(client) {
  return new Promise((resolve) => {
    navigator.locks.request(`pflego ${client}`, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock === null ? undefined : new Promise(() => {});
    });
  });
}

async function comeIn(token) {
  page.gateway = new Gateway(new URL(".", location.href).href, token, { told: (words) => say(words, "here") });
  page.client = await page.gateway.who();
  $("entry").hidden = true;
  if (!(await alone(page.client))) {
    throw new ClientError(`another tab of this browser is at work for ${page.client}: close it, then load this page again`);
  }
  say("Loading the network…");
  const runtime = await import("./runtime/ort.wasm.min.mjs");
  runtime.env.wasm.numThreads = 1;
  page.kit = await Kit.read((name) => page.gateway.file(name), runtime);
  page.store = await Store.open();
  page.mine = (await page.store.get("data", page.client)) ?? page.mine;
  page.side = sideOf(page.kit.spec.inputs);
  $("data").hidden = false;
  $("drawing").hidden = page.side === null;
  furnish();
  await refresh();
  say(`You are ${page.client}. ${page.mine.joined ? "Going on where you were…" : "Give some data, then take part."}`);
  if (page.mine.joined) await takePart();
}

/** The client's data as they are; null: none yet. */
async function data() {
  const { file, examples } = page.mine;
  if (file !== null) return readData(page.client, file);
  return examples.length ? dataOf(page.client, examples, page.kit.spec.inputs) : null;
}

async function keep(changes) {
  Object.assign(page.mine, changes);
  await page.store.write([["data", page.mine, page.client]]);
  await refresh();
}

async function refresh() {
  const own = await data();
  const { examples, joined, file } = page.mine;
  page.desk = own === null ? null : new Desk(page.kit, own, page.store, { told: refreshAnswers });
  if (page.side !== null) show($("gallery"), examples, page.side, joined ? null : remove);
  $("counts").textContent =
    own === null ? "" : `${own.samples} samples to learn from, ${own.tests} for the test${own.classes.length ? `; classes ${own.classes.join(", ")}` : ""}.${joined ? " They stay as they are while you take part." : ""}`;
  $("join").disabled = joined || own === null || (!own.regression && own.classes.length < 2);
  $("join").textContent = joined ? "Taking part" : "Take part";
  $("file").disabled = joined;
  for (const drawing of ["pad-box", "labels", "drawing-note"]) $(drawing).hidden = joined;
  $("drawing").hidden = page.side === null || file !== null;
  $("file-label").hidden = file !== null || examples.length > 0;
  await refreshAnswers();
}

/** Shows what has been answered so far, and what this model can do. */
async function refreshAnswers() {
  const answers = await page.store.answers(page.client);
  const own = page.desk?.data ?? null;
  showProgress(answers, own?.regression ?? false);
  const model = page.desk === null ? null : await page.desk.model();
  const stays = [];
  if (own !== null) {
    stays.push(`your ${own.samples + own.tests} samples and their labels: ${bytesOf({ a: own.xTrain, b: own.xTest }).toLocaleString("en")} bytes of inputs`);
  }
  if (model !== null && Object.keys(model.head).length) {
    const { shape } = model.head.head;
    stays.push(`your layer: ${shape.join(" × ")} numbers, ${bytesOf(model.head).toLocaleString("en")} bytes`);
  }
  stays.push("what your model says to anything you try it on");
  showLeaving(answers, stays);
  $("trial").hidden = model === null || page.side === null || own.regression;
  if (model !== null && !$("trial").hidden) await guess();
}

async function remove(place) {
  await trying(() => keep({ examples: page.mine.examples.filter((_, i) => i !== place) }));
}

async function takePart() {
  if (!page.mine.joined) {
    await navigator.storage?.persist?.(); // so that the browser does not tidy it away
    await keep({ joined: true });
  }
  const ended = await page.gateway.takePart({
    answer: async (kind, config, question) => {
      say(kind === "query" ? "saying who is here" : `at work: ${kind}`, "working");
      const answer = await page.desk.answer(kind, config, question);
      say("here, and waiting for the server's next question", "here");
      return answer;
    },
  });
  if (ended === "finished") say("The run is finished. Your model stays here, in this browser.", "finished");
}

let trial = null;

async function guess() {
  const model = await page.desk.model();
  if (trial === null || trial.empty || model === null) {
    $("guess").replaceChildren();
    return;
  }
  const { shape, stored } = page.kit.spec.inputs;
  const x = new Tensor(sampleOf(trial.sample(page.side), stored), [1, ...shape]);
  showGuess($("guess"), model.classes, (await model.outputs(x)).data);
}

function furnish() {
  if (page.side !== null && !$("labels").childElementCount) {
    const pad = new Pad($("pad"), () => picture($("seen"), pad.sample(page.side), page.side));
    const clear = () => {
      pad.clear();
      picture($("seen"), new Float32Array(page.side ** 2), page.side);
    };
    clear();
    $("clear").addEventListener("click", clear);
    for (let label = 0; label < DIGITS; label++) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () =>
        trying(async () => {
          if (pad.empty) throw new ClientError("draw something first");
          await keep({ examples: [...page.mine.examples, { label, numbers: pad.sample(page.side) }] });
          clear();
        }),
      );
      $("labels").append(button);
    }
    trial = new Pad($("trial-pad"), () => trying(guess));
    $("trial-clear").addEventListener("click", () => {
      trial.clear();
      $("guess").replaceChildren();
    });
  }
}

$("file").addEventListener("change", () =>
  trying(async () => {
    const [file] = $("file").files;
    const bytes = new Uint8Array(await file.arrayBuffer());
    const read = await readData(page.client, bytes);
    page.kit.check(read.xTrain, read.type);
    await keep({ file: bytes });
  }),
);
$("join").addEventListener("click", () => trying(takePart));
$("forget").addEventListener("click", () =>
  trying(async () => {
    page.gateway.stop();
    await page.store.forget(page.client);
    location.reload();
  }),
);
$("entry-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("token").value.trim();
  location.hash = `token=${given.slice(given.lastIndexOf("=") + 1)}`;
  trying(() => comeIn(new URLSearchParams(location.hash.slice(1)).get("token")));
});
addEventListener("pagehide", () => page.gateway?.stop());
addEventListener("pageshow", (event) => event.persisted && location.reload()); // a page that was left has said goodbye

const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) trying(() => comeIn(token));
else {
  $("entry").hidden = false;
  say("You need a token to come in.");
}
