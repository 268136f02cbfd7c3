// The one data structure: named arrays. An array is its numbers, by rows, and its shape.

export const HEAD = "head";

export class Tensor {
  constructor(data, shape) {
    this.data = data; // Float32Array, or Float64Array while a head is solved for
    this.shape = shape;
  }

  static zeros(...shape) {
    return new Tensor(new Float32Array(product(shape)), shape);
  }

  copy() {
    return new Tensor(this.data.slice(), this.shape);
  }

  /** Some rows, in the order of `places`. */
  rows(places) {
    const width = product(this.shape.slice(1));
    const found = new Tensor(new this.data.constructor(places.length * width), [places.length, ...this.shape.slice(1)]);
    places.forEach((place, at) => found.data.set(this.data.subarray(place * width, (place + 1) * width), at * width));
    return found;
  }

  /** Rows from `begin` to `end`: a view. */
  slice(begin, end) {
    const width = product(this.shape.slice(1));
    const last = Math.min(end, this.shape[0]);
    return new Tensor(this.data.subarray(begin * width, last * width), [last - begin, ...this.shape.slice(1)]);
  }
}

export function product(sizes) {
  return sizes.reduce((total, size) => total * size, 1);
}

/** a + times b, of the same shape. */
export function plus(a, b, times = 1) {
  return new Tensor(a.data.map((value, i) => value + times * b.data[i]), a.shape);
}

export function scaled(a, times) {
  return new Tensor(a.data.map((value) => value * times), a.shape);
}

/** The sum of all squares. */
export function square(a) {
  let total = 0;
  for (const value of a.data) total += value * value;
  return total;
}

/** The Euclidean norm of named arrays, all together. */
export function norm(weights) {
  return Math.sqrt(Object.values(weights).reduce((total, one) => total + square(one), 0));
}

export function isFinite(weights) {
  return Object.values(weights).every((one) => one.data.every(Number.isFinite));
}

/** Puts arrays one below the other. */
export function stacked(parts) {
  if (parts.length === 1) return parts[0];
  const rows = parts.reduce((total, part) => total + part.shape[0], 0);
  const whole = Tensor.zeros(rows, ...parts[0].shape.slice(1));
  let at = 0;
  for (const part of parts) {
    whole.data.set(part.data, at);
    at += part.data.length;
  }
  return whole;
}

export function bytesOf(weights) {
  return Object.values(weights).reduce((total, one) => total + one.data.byteLength, 0);
}
