// What a client is told of a federation and of a round, checked.

import { some } from "./codec.js";
import { MessageError } from "./errors.js";

const LARGEST = 2 ** 53;
const HUGE = 1e100;
const LONGEST = 80; // characters of a run's name: it is part of a key

/** A round: number, scale I/r, alpha, seed, and what the objective emphasises. */
export function readRound(read) {
  if (read.whole("exchange", 0)) throw new MessageError("pflego has one exchange per round");
  return {
    number: read.whole("number", 1),
    scale: read.finite("scale", 1e-9, LARGEST),
    alpha: read.finite("alpha", 0, 1),
    seed: read.whole("seed", -LARGEST),
    emphasis: (read.value("emphasis") ?? null) === null ? null : emphasis(read.inner("emphasis")),
  };
}

/** phi'(l) = times l^power where l is above a threshold, and 0 elsewhere. */
function emphasis(read) {
  const above = (read.value("above") ?? null) === null ? null : read.finite("above", -HUGE, HUGE);
  const [power, times] = [read.finite("power", 0, LARGEST), read.finite("times", 0, LARGEST)];
  return (loss) => (above !== null && loss <= above ? 0 : times * (power ? loss ** power : 1));
}

/** What everybody in a federation knows of it. */
export function readFederation(read) {
  const run = read.text("run");
  if (!/^[\p{L}\p{N}]+$/u.test(run) || run.length > LONGEST) {
    throw new MessageError(`its run is called ${run.slice(0, 40)}, not by letters and digits`);
  }
  const task = read.text("task");
  if (!["classification", "regression"].includes(task)) throw new MessageError(`its task is ${task.slice(0, 40)}`);
  return {
    run,
    clients: read.whole("clients", 1),
    samples: read.whole("samples", 1),
    task,
    classes: read.numbers("classes"),
    mostClasses: read.whole("most_classes", 0),
    outputs: read.whole("outputs", 1),
    schema: read.text("schema"),
    base: read.value("base") === undefined ? "" : read.text("base"), // a digest of the weights that are frozen, and never sent
    said: read.facts,
  };
}

/** Refuses a federation that a client cannot be part of. */
export function checkFederation(federation, data, base) {
  if (federation.base && federation.base !== base) {
    throw new MessageError("the frozen weights of this kit are not the server's: its operator has to make it again");
  }
  if (data.task !== federation.task) {
    throw new MessageError(`the federation does ${federation.task}, and these data are for ${data.task}`);
  }
  if (federation.schema) throw new MessageError("the federation reads its data by a schema, and these are numbers already");
  if (data.classes.some((one) => !federation.classes.includes(one)) || data.classes.length > federation.mostClasses) {
    throw new MessageError(`the federation's classes ${some(federation.classes)} are not those of these data`);
  }
  if (data.regression && data.outputs !== federation.outputs) {
    throw new MessageError(`the federation has ${federation.outputs} targets per sample, these data ${data.outputs}`);
  }
  if (federation.samples < data.samples) throw new MessageError("the federation has fewer samples than this client alone");
}
