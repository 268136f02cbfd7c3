// A client's state: what it keeps between rounds, and what a reload must find.
//
// One record per run and client, of the same bytes as a light client's file. It holds the state before the client's last
// round and the one after it, the round's number, and a digest of what was asked. A server that was killed before its
// checkpoint, or a tab that was closed before its answer was out, meets the same round again: the client then begins from
// the state before, and its answer is the same to the bit. No round is ever applied twice.

import { decode, encode } from "./codec.js";
import { MessageError, StorageError } from "./errors.js";
import { readFederation } from "./round.js";

const [BEFORE, AFTER] = ["0", "after"];

/** The record of one client in one run. store: with get(table, key). */
export class StateRecord {
  constructor(store, run, client) {
    Object.assign(this, { store, key: `${run}.${client}`, whose: { run, client: String(client) } });
  }

  /** The state that a round begins with. null: this client was never asked before. */
  async begin(now, question) {
    const kept = await this.#read();
    if (kept === null) return null;
    const last = kept.facts.whole("round", 1);
    if (now.number > last) return part(kept.tensors, AFTER);
    if (now.number < last) throw new MessageError(`round ${now.number} was asked for after round ${last}: this client does not go back`);
    if (String(kept.facts.list("questions")) !== question) {
      throw new MessageError(`round ${now.number} was asked for before, with other weights: this client does not repeat it`);
    }
    return part(kept.tensors, BEFORE);
  }

  /** The state as it was after a round; null: this client was never asked before. */
  async asOf(number) {
    const kept = await this.#read();
    return kept === null ? null : part(kept.tensors, kept.facts.whole("round", 1) <= number ? AFTER : BEFORE);
  }

  /** The newest state; null: there is none. */
  async newest() {
    const kept = await this.#read();
    return kept === null ? null : part(kept.tensors, AFTER);
  }

  /** Refuses to begin anew where this client has taken part: it goes on with its state. */
  async checkNew() {
    const kept = await this.#read();
    if (kept !== null && !kept.facts.value("welcome")) {
      throw new MessageError("this client has taken part already: it goes on with the state that it has");
    }
  }

  /** What is to be written for a round that was done, or, with `more`, for a state that is ready for the next. */
  entry(number, question, before, after, more = {}) {
    const tensors = {};
    for (const [name, array] of Object.entries(before)) tensors[`${BEFORE}/${name}`] = array;
    for (const [name, array] of Object.entries(after)) tensors[`${AFTER}/${name}`] = array;
    return ["states", encode(tensors, { ...this.whose, round: number, questions: [question], ...more }), this.key];
  }

  /** What is to be written of the weights that all share after a round. */
  noted(number, shared, federation) {
    return ["shared", encode(shared, { ...this.whose, round: number, federation: federation.said }), this.key];
  }

  /** The shared weights that were noted last, and the federation they are of; null: none. */
  async shared() {
    const bytes = await this.store.get("shared", this.key);
    if (bytes === undefined) return null;
    const kept = decode(bytes);
    return { weights: { ...kept.tensors }, federation: readFederation(kept.facts.inner("federation")) };
  }

  async #read() {
    const bytes = await this.store.get("states", this.key);
    if (bytes === undefined) return null;
    let kept;
    try {
      kept = decode(bytes);
    } catch (error) {
      throw new StorageError(`the state of this client is damaged and was left as it is: ${error.message}`);
    }
    for (const [name, value] of Object.entries(this.whose)) {
      if (kept.facts.value(name) !== value) throw new StorageError(`the state that is kept here is of another ${name}`);
    }
    return kept;
  }
}

function part(tensors, name) {
  const own = Object.entries(tensors).filter(([key]) => key.startsWith(`${name}/`));
  return Object.fromEntries(own.map(([key, array]) => [key.slice(name.length + 1), array]));
}
