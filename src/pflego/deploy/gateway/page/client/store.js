// What this browser keeps between two visits, in IndexedDB: states, shared weights, answers, and the visitor's own data.
//
// All that belongs together is written in one transaction: a reload, a killed tab or a power cut finds all of it or nothing.

import { StorageError } from "./errors.js";

const TABLES = ["states", "shared", "answers", "data"];
const VERSION = 1;

/** Tables of IndexedDB. `answers` are numbered in order, all others have keys. */
export class Store {
  static open(name = "pflego") {
    return new Promise((resolve, reject) => {
      const asked = indexedDB.open(name, VERSION);
      asked.onupgradeneeded = () => {
        for (const table of TABLES) asked.result.createObjectStore(table, { autoIncrement: table === "answers" });
      };
      asked.onsuccess = () => resolve(new Store(asked.result));
      asked.onerror = () => reject(new StorageError(`this browser keeps nothing here: ${asked.error?.message}`));
    });
  }

  constructor(database) {
    this.database = database;
  }

  get(table, key) {
    return result(this.database.transaction(table).objectStore(table).get(key));
  }

  async answers(client) {
    const all = await result(this.database.transaction("answers").objectStore("answers").getAll());
    return all.filter((one) => one.client === client);
  }

  /** Writes entries, [table, value, key], all of them or none. When this returns they are on disk. */
  write(entries) {
    return new Promise((resolve, reject) => {
      const written = this.database.transaction(TABLES, "readwrite", { durability: "strict" });
      written.oncomplete = () => resolve();
      written.onabort = written.onerror = () => reject(new StorageError(`this browser cannot keep it: ${written.error?.message}`));
      for (const [table, value, key] of entries) written.objectStore(table).put(value, key);
    });
  }

  /** Forgets all about a client. */
  async forget(client) {
    const whole = this.database.transaction(TABLES, "readwrite", { durability: "strict" });
    for (const table of TABLES) {
      const walk = whole.objectStore(table).openCursor();
      walk.onsuccess = () => {
        const at = walk.result;
        if (!at) return;
        if (isOf(client, table, at)) at.delete();
        at.continue();
      };
    }
    await new Promise((resolve, reject) => {
      whole.oncomplete = resolve;
      whole.onabort = () => reject(new StorageError(`this browser cannot forget it: ${whole.error?.message}`));
    });
  }
}

/** Tells whether an entry is a client's. Keys of states and shared weights are RUN.CLIENT; a run's name has no dot. */
export function isOf(client, table, { key, value }) {
  if (table === "answers") return value.client === client;
  return client === (table === "data" ? key : key.slice(key.indexOf(".") + 1));
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new StorageError(`this browser cannot read what it kept: ${request.error?.message}`));
  });
}
