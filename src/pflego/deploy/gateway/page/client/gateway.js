// The conversation with a federation's server, through its gateway: questions are fetched, answers are brought.

import { ClientError, SettingError } from "./errors.js";

const BEAT = 10_000; // milliseconds between two signs of life while at work
const PAUSES = [1, 2, 5, 10]; // seconds until the next try, where the server cannot be reached

/** Somebody else speaks for this client, or nobody may: nothing to try again. */
export class Refused extends ClientError {}

/** Whether a token may go to this address: over https, or on this machine alone. */
export function isSafe(address) {
  const { protocol, hostname } = new URL(address);
  return protocol === "https:" || (protocol === "http:" && ["127.0.0.1", "localhost", "[::1]"].includes(hostname));
}

export class Gateway {
  #session = "";
  #stopped = new AbortController();

  /** address: of the gateway. told: is given words on what goes on. */
  constructor(address, token, { told = () => {} } = {}) {
    if (!isSafe(address)) throw new SettingError("others could read along here, so your token was not sent: open this page by https");
    Object.assign(this, { address, token, told, config: {} });
  }

  /** A file of the kit. */
  async file(name) {
    const answer = await this.#fetch(`kit/${encodeURIComponent(name)}`, { method: "GET" });
    return new Uint8Array(await answer.arrayBuffer());
  }

  /** Whom this token is for, and what the run asks of its clients. */
  async who() {
    const { client, config } = await (await this.#fetch("v1/gateway/who")).json();
    this.config = config;
    return client;
  }

  /** Takes part until the run is finished, `stop` is called, or another tab has taken this one's place. */
  async takePart(desk) {
    const { signal } = this.#stopped;
    for (let failures = 0; !signal.aborted; ) {
      try {
        if (!this.#session) await this.#enter();
        const taken = await this.#fetch("v1/gateway/take");
        failures = 0;
        if (taken.status === 200) await this.#answer(desk, taken);
        else if (taken.headers.get("Pflego-Run") === "finished") return "finished";
      } catch (error) {
        if (signal.aborted) break;
        if (error instanceof ClientError) throw error;
        const pause = PAUSES[Math.min(failures++, PAUSES.length - 1)];
        this.told(`the server cannot be reached; next try in ${pause} s`);
        await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
      }
    }
    return "stopped";
  }

  /** Says goodbye: the server need not wait for this tab. */
  stop() {
    const leaving = this.#session;
    this.#stopped.abort();
    if (leaving) fetch(`${this.address}v1/gateway/leave`, { ...this.#request(), keepalive: true }).catch(() => {});
  }

  async #enter() {
    this.#session = (await (await this.#fetch("v1/gateway/enter")).json()).session;
    this.told("here, and waiting for the server's next question");
  }

  async #answer(desk, taken) {
    const [id, kind] = ["Pflego-Message", "Pflego-Kind"].map((name) => taken.headers.get(name));
    const question = new Uint8Array(await taken.arrayBuffer());
    const beat = setInterval(() => this.#fetch("v1/gateway/here").catch(() => {}), BEAT);
    let [body, type] = [null, "application/octet-stream"];
    try {
      body = await desk.answer(kind, this.config, question);
    } catch (error) {
      const why = error instanceof ClientError ? error.message : error.name; // what else went wrong could tell of the data
      console.error(error);
      this.told(`no answer: ${why}`);
      [body, type] = [why, "text/plain; charset=utf-8"];
    } finally {
      clearInterval(beat);
    }
    await this.#fetch(`v1/gateway/give/${id}`, { body, headers: { "Content-Type": type } });
  }

  #request({ headers = {}, ...more } = {}) {
    const own = { Authorization: `Bearer ${this.token}`, "Pflego-Session": this.#session };
    return { method: "POST", cache: "no-store", credentials: "omit", redirect: "error", ...more, headers: { ...own, ...headers } };
  }

  async #fetch(path, more) {
    const session = this.#session;
    const answer = await fetch(this.address + path, { ...this.#request(more), signal: this.#stopped.signal });
    if (answer.ok) return answer;
    const why = (await answer.text()).trim() || `status ${answer.status}`;
    if (answer.status === 410) {
      // the server was started again, or has given this tab up: enter anew, unless that was done meanwhile
      if (this.#session === session) this.#session = "";
      throw new Error(why);
    }
    if (answer.status === 404 && path.includes("/give/")) return answer; // nobody waits for this answer any more
    if (answer.status >= 500 || answer.status === 429) throw new Error(why);
    throw new Refused(why);
  }
}
