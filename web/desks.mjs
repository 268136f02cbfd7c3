// Desks of several clients in one process, for tests in Python: a line of JSON in, a line of JSON out.
//
//     {"open": client, "kit": folder, "data": file}                  ->  {}
//     {"ask": client, "kind": ..., "config": {...}, "question": base64}  ->  {"answer": base64} or {"refused": why}
//     {"state": client}                                              ->  {"states": {key: base64}, "answers": [...]}

import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

import { ClientError } from "../src/pflego/deploy/gateway/page/client/errors.js";
import { Desk } from "../src/pflego/deploy/gateway/page/client/desk.js";
import { Kit } from "../src/pflego/deploy/gateway/page/client/kit.js";
import { readData } from "../src/pflego/deploy/gateway/page/client/npz.js";

/** What a browser keeps, in memory: the same calls as Store's. */
class Memory {
  tables = { states: new Map(), shared: new Map(), data: new Map() };
  notes = [];

  async get(table, key) {
    return this.tables[table].get(key);
  }

  async answers(client) {
    return this.notes.filter((one) => one.client === client);
  }

  async write(entries) {
    for (const [table, value, key] of entries) {
      const copy = structuredClone(value); // as IndexedDB does: what cannot be copied cannot be kept
      if (table === "answers") this.notes.push(copy);
      else this.tables[table].set(key, copy);
    }
  }
}

const runtime = await import("../src/pflego/deploy/gateway/page/runtime/ort.wasm.min.mjs");
runtime.env.wasm.numThreads = 1;
const [desks, kits] = [new Map(), new Map()];

async function kitIn(folder) {
  if (!kits.has(folder)) kits.set(folder, await Kit.read(async (name) => new Uint8Array(await readFile(`${folder}/${name}`)), runtime));
  return kits.get(folder);
}

async function answer({ open, ask, state, ...more }) {
  if (open !== undefined) {
    const data = await readData(open, new Uint8Array(await readFile(more.data)));
    desks.set(open, new Desk(await kitIn(more.kit), data, new Memory()));
    return {};
  }
  if (ask !== undefined) {
    const found = await desks.get(ask).answer(more.kind, more.config, new Uint8Array(Buffer.from(more.question, "base64")));
    return { answer: Buffer.from(found).toString("base64") };
  }
  const { tables, notes } = desks.get(state).store;
  const states = [...tables.states].map(([key, bytes]) => [key, Buffer.from(bytes).toString("base64")]);
  return { states: Object.fromEntries(states), answers: notes };
}

for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try {
    said = await answer(JSON.parse(line));
  } catch (error) {
    said = error instanceof ClientError ? { refused: error.message } : { broken: error.stack };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
