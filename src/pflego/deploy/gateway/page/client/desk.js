// A client's answers, as bytes: who it is, a round's work, a test result. Whatever carries them looks inside neither way.
//
//     query      who are you?             client, samples, classes, outputs, shape, type
//     train      the shared weights       the method's contribution, and metrics
//       .welcome the shared weights       that a state is ready for them: this client joins late
//     evaluate   the shared weights       a test result

import { bytesOf, norm } from "./arrays.js";
import { Client } from "./client.js";
import { decode, encode } from "./codec.js";
import { MessageError, StorageError } from "./errors.js";
import { StateRecord } from "./keep.js";
import { readFederation, readRound } from "./round.js";
import { checkQuestion, checkRunConfig } from "./terms.js";

/** One client: its kit, its data and what its browser keeps. told: is given every answer's note when it is on disk. */
export class Desk {
  constructor(kit, data, store, { told = () => {} } = {}) {
    kit.check(data.xTrain, data.type);
    Object.assign(this, { kit, data, store, told });
  }

  /** Answers a server, if it asks for what was agreed on. */
  async answer(kind, runConfig, question) {
    checkRunConfig(this.kit, runConfig);
    if (kind === "query") return this.#introduce();
    const work = { train: this.#train, "train.welcome": this.#welcome, evaluate: this.#evaluate };
    if (!Object.hasOwn(work, kind)) throw new MessageError(`a client in a browser is not asked to ${kind.slice(0, 40)}`);
    const asked = decode(question);
    const client = new Client(this.kit, this.data, readFederation(asked.facts.inner("federation")));
    return work[kind].call(this, client, asked);
  }

  /** This client's own model as it is now: a function from samples to outputs, and its classes. null: there is none. */
  async model() {
    const run = (await this.store.answers(this.data.id)).findLast((one) => one.run)?.run;
    if (run === undefined) return null;
    const record = new StateRecord(this.store, run, this.data.id);
    const [noted, state] = [await record.shared(), await record.newest()];
    if (noted === null || state === null) return null;
    const client = new Client(this.kit, this.data, noted.federation);
    const weights = await client.personal(noted.weights, state);
    return { classes: client.problem.classes, head: state, outputs: (x) => client.problem.outputsFor(weights, x) };
  }

  async #introduce() {
    const facts = this.data.facts();
    const answer = encode({}, facts);
    await this.#note({ kind: "query", numbers: facts, bytes: answer.length });
    return answer;
  }

  /** Does a round's work, keeps the new state on disk, then gives what is sent. */
  async #train(client, asked) {
    const now = readRound(asked.facts.inner("round"));
    const { run } = client.federation;
    const question = { run, kind: "train", round: now.number, part: 0 };
    const answers = await this.store.answers(this.data.id);
    checkQuestion(question, answers);
    const shared = asked.holdTo(client.shared);
    const record = new StateRecord(this.store, run, this.data.id);
    const before = (await record.begin(now, asked.digest)) ?? first(client, answers);
    const earlier = answers.some((one) => one.run === run) ? null : await client.score(shared, before);
    const done = await client.work(now, shared, before);
    const sent = done.finite ? done.contribution : {};
    const facts = done.finite ? { finite: true, seconds: done.seconds, metrics: done.metrics } : { finite: false };
    const answer = encode(sent, facts);
    const note = { ...question, kept: done.finite, bytes: answer.length, sent: listed(sent), numbers: facts.metrics ?? {} };
    const mine = { before: earlier, after: done.score, seconds: done.seconds }; // shown here, and to nobody else
    const kept = done.finite ? [record.entry(now.number, asked.digest, before, done.state)] : [];
    await this.#note({ ...note, mine }, [...kept, record.noted(now.number - 1, shared, client.federation)]);
    return answer;
  }

  /** Makes a state ready for the shared weights as they are, keeps it, then says so. Nothing else leaves. */
  async #welcome(client, asked) {
    const arrival = asked.facts.inner("arrival");
    const round = arrival.whole("round", 2);
    const steps = (arrival.value("steps") ?? null) === null ? null : arrival.whole("steps", 1);
    const { run } = client.federation;
    const question = { run, kind: "welcome", round, part: 0 };
    checkQuestion(question, await this.store.answers(this.data.id));
    const shared = asked.holdTo(client.shared);
    const record = new StateRecord(this.store, run, this.data.id);
    await record.checkNew();
    const [first, ready] = await client.welcome(shared, steps);
    const answer = encode({}, { round });
    const mine = { before: await client.score(shared, first), after: await client.score(shared, ready) };
    const note = { ...question, kept: true, bytes: answer.length, sent: [], numbers: { round }, mine };
    const kept = record.entry(round - 1, asked.digest, first, ready, { welcome: true });
    await this.#note(note, [kept, record.noted(round - 1, shared, client.federation)]);
    return answer;
  }

  /** Tries this client's own model on its test data, as of a round; the shared part of it is kept. */
  async #evaluate(client, asked) {
    const moment = asked.facts.inner("moment");
    const [number, adapt] = [moment.whole("round", 0), moment.flag("adapt")];
    const { run } = client.federation;
    const question = { run, kind: "evaluate", round: number, part: Number(adapt) };
    const answers = await this.store.answers(this.data.id);
    checkQuestion(question, answers);
    const shared = asked.holdTo(client.shared);
    const record = new StateRecord(this.store, run, this.data.id);
    const state = (await record.asOf(number)) ?? first(client, answers);
    const score = await client.score(shared, state, adapt);
    const answer = encode({}, score);
    const note = { ...question, kept: false, bytes: answer.length, sent: [], numbers: score, mine: { after: score } };
    await this.#note(note, [record.noted(number, shared, client.federation)]);
    return answer;
  }

  /** Writes an answer down with all that belongs to it, before it leaves. */
  async #note(note, entries = []) {
    const whole = { time: new Date().toISOString(), client: this.data.id, ...note };
    await this.store.write([...entries, ["answers", whole]]);
    this.told(whole);
  }
}

/** A first state, but not where one was kept before: a lost head would go unnoticed. */
function first(client, answers) {
  if (answers.some((one) => one.run === client.federation.run && one.kept)) {
    throw new StorageError("the state of this client is gone, and its notes say that it was kept: forget all here to begin anew");
  }
  return client.first();
}

function listed(weights) {
  return Object.entries(weights).map(([name, one]) => ({
    name,
    shape: one.shape,
    bytes: bytesOf({ [name]: one }),
    norm: Number(norm({ [name]: one }).toPrecision(6)),
  }));
}
