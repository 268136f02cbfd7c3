// Named arrays and a few facts as bytes: safetensors, with facts as JSON beside the tensors and a digest over both.
//
// Nothing that is read is believed: sizes, names and shapes are compared with what is expected before a byte is taken for
// a number.

import { Tensor, product } from "./arrays.js";
import { Blake2b } from "./blake2b.js";
import { MessageError } from "./errors.js";

const FORMAT = "pflego 2";
const FACTS = 1_000_000; // characters of facts, at most
const LARGEST = Number.MAX_SAFE_INTEGER;
const text = new TextEncoder();

/** Gives named tensors, float32, and facts as bytes. */
export function encode(tensors, facts) {
  const said = sortedJson(facts);
  const header = { __metadata__: { format: FORMAT, facts: said, digest: digest(tensors, said) } };
  const names = Object.keys(tensors).sort();
  let end = 0;
  for (const name of names) {
    const { data, shape } = tensors[name];
    header[name] = { dtype: "F32", shape, data_offsets: [end, (end += data.byteLength)] };
  }
  const opening = text.encode(JSON.stringify(header));
  const size = Math.ceil(opening.length / 8) * 8;
  const whole = new Uint8Array(8 + size + end).fill(32, 8, 8 + size);
  new DataView(whole.buffer).setBigUint64(0, BigInt(size), true);
  whole.set(opening, 8);
  for (const name of names) whole.set(bytesIn(tensors[name].data), 8 + size + header[name].data_offsets[0]);
  return whole;
}

/** Reads what `encode` wrote, here or in Python. */
export function decode(bytes) {
  let tensors, metadata;
  try {
    [tensors, metadata] = opened(bytes);
  } catch (error) {
    if (error instanceof MessageError) throw error;
    throw new MessageError(`it cannot be read: ${error.message}`);
  }
  if (metadata?.format !== FORMAT) throw new MessageError("it was not written by this version of pflego");
  const said = String(metadata.facts ?? "");
  const found = digest(tensors, said);
  if (metadata.digest !== found) throw new MessageError("its content does not match its digest");
  if (said.length > FACTS) throw new MessageError(`it says ${said.length} characters beside its tensors`);
  try {
    return new Decoded(tensors, new Reader(JSON.parse(said)), found);
  } catch (error) {
    if (error instanceof MessageError) throw error;
    throw new MessageError(`what it says beside its tensors cannot be read: ${error.message}`);
  }
}

function opened(bytes) {
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0, true));
  if (size > bytes.length - 8) throw new Error("it is cut off");
  const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + size)));
  const body = bytes.slice(8 + size); // a copy begins at a place that is a multiple of four
  const { __metadata__: metadata = {}, ...entries } = header;
  const tensors = Object.create(null);
  let filled = 0;
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(entries)) {
    if (dtype !== "F32") throw new MessageError(`its ${name.slice(0, 40)} is ${String(dtype).slice(0, 8)}, not F32`);
    const whole = [begin, end, ...shape].every((value) => Number.isSafeInteger(value) && value >= 0);
    if (!whole || begin > end || end > body.length || begin % 4 || end - begin !== 4 * product(shape)) {
      throw new Error("a tensor is not where it should be");
    }
    tensors[name] = new Tensor(new Float32Array(body.buffer, begin, (end - begin) / 4), shape);
    filled += end - begin;
  }
  if (filled !== body.length) throw new Error("its tensors do not fill it");
  return [tensors, metadata];
}

/** The digest of tensors, in whatever order they are, and facts. */
export function digest(tensors, facts = "") {
  const total = new Blake2b().update(text.encode(`${facts}\0`));
  for (const name of Object.keys(tensors).sort()) {
    const { data, shape } = tensors[name];
    const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`; // as Python writes it
    total.update(text.encode(`${name} torch.float32 ${tuple}\0`)).update(bytesIn(data));
  }
  return total.hex();
}

function bytesIn(data) {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** JSON with sorted keys. */
export function sortedJson(value) {
  return JSON.stringify(value, (_, one) =>
    one && typeof one === "object" && !Array.isArray(one)
      ? Object.fromEntries(Object.keys(one).sort().map((key) => [key, one[key]]))
      : one,
  );
}

/** What bytes held. */
export class Decoded {
  constructor(tensors, facts, digest) {
    Object.assign(this, { tensors, facts, digest });
  }

  /** Refuses arrays that are not called so, have another shape, or are not finite; gives them in this order. */
  holdTo(shapes) {
    const wanted = Object.keys(shapes);
    const found = Object.keys(this.tensors);
    if (wanted.length !== found.length || wanted.some((name) => !(name in this.tensors))) {
      throw new MessageError(`its weights are called ${some(found)}, not ${some(wanted)}`);
    }
    for (const name of wanted) {
      const { data, shape } = this.tensors[name];
      if (String(shape) !== String(shapes[name])) {
        throw new MessageError(`its ${name} is of shape (${shape}), not of shape (${shapes[name]})`);
      }
      if (!data.every(Number.isFinite)) throw new MessageError(`its ${name} holds an infinity or a NaN`);
    }
    return Object.fromEntries(wanted.map((name) => [name, this.tensors[name]]));
  }
}

/** Takes values from facts that somebody else has written. */
export class Reader {
  constructor(facts) {
    if (facts === null || typeof facts !== "object" || Array.isArray(facts)) {
      throw new MessageError("a record is missing in it");
    }
    this.facts = facts;
  }

  value(name) {
    return Object.hasOwn(this.facts, name) ? this.facts[name] : undefined;
  }

  inner(name) {
    return new Reader(this.value(name) ?? null);
  }

  text(name) {
    return this.#one(name, (value) => typeof value === "string");
  }

  flag(name) {
    return this.#one(name, (value) => typeof value === "boolean");
  }

  whole(name, least) {
    return this.#one(name, (value) => Number.isSafeInteger(value) && value >= least);
  }

  finite(name, least, most) {
    return this.#one(name, (value) => Number.isFinite(value) && value >= least && value <= most);
  }

  numbers(name) {
    return this.#one(
      name,
      (values) => Array.isArray(values) && values.every((one) => Number.isSafeInteger(one) && one >= 0 && one <= LARGEST),
    );
  }

  list(name) {
    return this.#one(name, Array.isArray);
  }

  #one(name, fits) {
    const value = this.value(name);
    if (!fits(value)) throw new MessageError(`its ${name} is ${String(value).slice(0, 40)}`);
    return value;
  }
}

/** The first few of many names, in words. */
export function some(names) {
  const words = names.map((name) => String(name).slice(0, 40));
  return words.length ? words.slice(0, 4).join(", ") + (words.length > 4 ? ", ..." : "") : "nothing";
}
