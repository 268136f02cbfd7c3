// blake2b with a digest of 16 bytes, as Python's hashlib has it: by @noble/hashes, which `make web` installs.

import { blake2b as hashes } from "../runtime/blake2.js";

const SIZE = 16;

/** Digests bytes that arrive piece by piece. */
export class Blake2b {
  #hash = hashes.create({ dkLen: SIZE });

  update(bytes) {
    this.#hash.update(bytes);
    return this;
  }

  /** The digest as bytes; nothing can be added afterwards. */
  digest() {
    return this.#hash.digest();
  }

  hex() {
    return [...this.digest()].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }
}

/** The digest of one piece of text. */
export function blake2b(text) {
  return new Blake2b().update(new TextEncoder().encode(text)).digest();
}
