// What a visitor agreed to: a server that asks for anything else, or for more, is refused.
//
// The kit is the agreement: method, model and every setting of theirs must be as it says. Every answer is noted beside the
// state, in the same transaction: when, to which run and round, and what was sent, by name, shape and norm.

import { some } from "./codec.js";
import { MessageError, SettingError } from "./errors.js";

const TITLES = { "model.name": "model", "model.seed": "model_seed", "method.name": "algorithm" };
const FULL = ["privacy", "compression", "secure"]; // what only full clients do

export const LIMITS = {
  runs: 1, // that are taken part in
  rounds: 10_000, // that a run may have
  repeats: 5, // how often the same question is answered: once, and again after a crash
};

/** Refuses a run that asks for another method, model or setting than the kit was made for. */
export function checkRunConfig(kit, config) {
  const { settings, unsaid } = kit.spec;
  const asked = { ...unsaid };
  for (const [spelled, value] of Object.entries(config)) {
    let name = spelled.replaceAll("-", "_");
    name = (TITLES[name] ?? name).replace(/^(method|model|run)\./, "");
    if (FULL.includes(name) && value) {
      throw new SettingError(`the server asks for ${name}, which takes full clients: not in a browser`);
    }
    if (name in settings) asked[name] = value;
  }
  for (const [name, agreed] of Object.entries(settings)) {
    if (JSON.stringify(asked[name] ?? null) !== JSON.stringify(agreed)) {
      throw new SettingError(`the server asks for ${name} = ${asked[name]}, and the kit was made for ${agreed}`);
    }
  }
}

/** Refuses a question that the visitor has not agreed to. answers: all that were given before. */
export function checkQuestion(question, answers, limits = LIMITS) {
  const known = [...new Set(answers.filter((one) => one.run).map((one) => one.run))];
  if (!known.includes(question.run) && known.length >= limits.runs) {
    throw new MessageError(`this client takes part in ${some(known)}, and not in another run: forget all here to begin anew`);
  }
  if (question.round > limits.rounds) throw new MessageError(`this client takes part in ${limits.rounds} rounds at most`);
  const given = answers.filter((one) => Object.entries(question).every(([name, value]) => one[name] === value)).length;
  if (given >= limits.repeats) {
    throw new MessageError(`round ${question.round} was answered ${given} times (${question.kind}), and is not answered again`);
  }
}
