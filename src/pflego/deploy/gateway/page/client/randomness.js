// Every random draw as a function of (seed, purpose, round, client), to the same bits as torch's generator: a Mersenne
// twister, mt19937.

import { blake2b } from "./blake2b.js";

const N = 624;
const M = 397;

export class Generator {
  #words = new Uint32Array(N);
  #next = N;

  constructor(seed, purpose, { round = 0, client = "" } = {}) {
    const entropy = blake2b([seed, purpose, round, client].join("\0"));
    // the digest as one number, shifted right by one; of its upper half the lower 32 bits count
    const [high, low] = [entropy[3], new DataView(entropy.buffer).getUint32(4)];
    this.#seed(((high & 1) << 31) | (low >>> 1));
  }

  #seed(seed) {
    const words = this.#words;
    words[0] = seed;
    for (let i = 1; i < N; i++) {
      words[i] = Math.imul(1812433253, words[i - 1] ^ (words[i - 1] >>> 30)) + i;
    }
  }

  #turn() {
    const words = this.#words;
    for (let i = 0; i < N; i++) {
      const y = (words[i] & 0x80000000) | (words[(i + 1) % N] & 0x7fffffff);
      words[i] = words[(i + M) % N] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.#next = 0;
  }

  /** A whole number of 32 bits. */
  draw() {
    if (this.#next === N) this.#turn();
    let y = this.#words[this.#next++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  /** A number from [0, 1), as torch.rand draws it in float64. */
  uniform() {
    const high = this.draw();
    return ((high & 0x1fffff) * 2 ** 32 + this.draw()) / 2 ** 53;
  }

  /** An order, as torch.randperm draws it. */
  permutation(count) {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let place = 0; place < count - 1; place++) {
      const other = place + (this.draw() % (count - place));
      [order[place], order[other]] = [order[other], order[place]];
    }
    return order;
  }
}
