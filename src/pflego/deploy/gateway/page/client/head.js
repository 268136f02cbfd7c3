// The linear head, in closed form.
//
// A head is one array W, (K, M + 1), the bias in its last column. On features Phi, (n, M + 1) with a last column of ones,
// targets t and residuals R = link(z) - t, both (n, K):
//
//     z = Phi W^T        d loss / d W = R^T Phi / n        d loss / d phi = R W[:, :M] / n
//
// link is the softmax, or nothing where the loss is half the squared error. With m the mean of the rows of Phi, C their
// covariance and c = 1/2 for the softmax, 1 otherwise, the Hessian of the loss in every row of a head is at most
// c lambda_max(C) I + c m m^T, and at most L = c lambda_max(Phi^T Phi / n).

import { Tensor, plus, scaled, square } from "./arrays.js";

const AGAIN = 2; // times that a head that went uphill is tried again with a tenth of the rate

/** What a head sees: features (n, M) and targets (n, K). */
export class Sight {
  constructor(features, targets, softmax) {
    const [samples, width] = features.shape;
    Object.assign(this, { samples, targets, softmax });
    this.phi = Tensor.zeros(samples, width + 1);
    for (let i = 0; i < samples; i++) {
      this.phi.data.set(features.data.subarray(i * width, (i + 1) * width), i * (width + 1));
      this.phi.data[i * (width + 1) + width] = 1;
    }
  }

  /** z, (n, K). */
  outputs(head) {
    const [[outputs, width], phi] = [head.shape, this.phi.data];
    const z = Tensor.zeros(this.samples, outputs);
    for (let i = 0; i < this.samples; i++) {
      for (let k = 0; k < outputs; k++) {
        let total = 0;
        for (let j = 0; j < width; j++) total += phi[i * width + j] * head.data[k * width + j];
        z.data[i * outputs + k] = total;
      }
    }
    return z;
  }

  loss(head) {
    return lossOf(this.outputs(head), this.targets, this.softmax);
  }

  /** d loss / d W, (K, M + 1). */
  slope(head) {
    return this.#mean(residualOf(this.outputs(head), this.targets, this.softmax));
  }

  /** Loss and joint gradient: in the head, and in the features, (n, M). */
  gradient(head) {
    const z = this.outputs(head);
    const [outputs, width] = head.shape;
    const residual = residualOf(z, this.targets, this.softmax);
    const features = Tensor.zeros(this.samples, width - 1);
    for (let i = 0; i < this.samples; i++) {
      for (let j = 0; j < width - 1; j++) {
        let total = 0;
        for (let k = 0; k < outputs; k++) total += residual.data[i * outputs + k] * head.data[k * width + j];
        features.data[i * (width - 1) + j] = total / this.samples;
      }
    }
    return { loss: lossOf(z, this.targets, this.softmax), head: this.#mean(residual), features };
  }

  /** c. */
  get curvature() {
    return this.softmax ? 0.5 : 1;
  }

  /** L, by the power method. */
  smoothness(start, iterations) {
    return this.#largest(this.phi.data, start, iterations);
  }

  /** A bound of the Hessian, the mean of the features apart; its spread is at least a share `least` of that. */
  bound({ start, iterations, least }) {
    const width = this.phi.shape[1];
    const sums = new Float64Array(width);
    this.phi.data.forEach((value, at) => (sums[at % width] += value));
    const mean = new Tensor(Float32Array.from(sums, (sum) => sum / this.samples), [width]);
    const around = this.phi.data.map((value, at) => value - mean.data[at % width]);
    const constant = this.#largest(around, start, iterations);
    return new Bound(Math.max(constant, least * this.curvature * square(mean)), mean, this.curvature);
  }

  /** c lambda_max(rows^T rows / n). */
  #largest(rows, start, iterations) {
    const width = this.phi.shape[1];
    let vector = Float32Array.from(start);
    let size = length(vector);
    for (let turn = 0; turn < iterations && size > 0; turn++) {
      const next = new Float64Array(width);
      for (let i = 0; i < this.samples; i++) {
        let along = 0;
        for (let j = 0; j < width; j++) along += (rows[i * width + j] * vector[j]) / size;
        for (let j = 0; j < width; j++) next[j] += (along * rows[i * width + j]) / this.samples;
      }
      vector = Float32Array.from(next);
      size = length(vector);
    }
    return this.curvature * size;
  }

  /** R^T Phi / n. */
  #mean(residual) {
    const [outputs, width, phi] = [residual.shape[1], this.phi.shape[1], this.phi.data];
    const total = new Float64Array(outputs * width);
    for (let i = 0; i < this.samples; i++) {
      for (let k = 0; k < outputs; k++) {
        const r = residual.data[i * outputs + k] / this.samples;
        for (let j = 0; j < width; j++) total[k * width + j] += r * phi[i * width + j];
      }
    }
    return new Tensor(Float32Array.from(total), [outputs, width]);
  }
}

/** constant I + weight mean mean^T: no Hessian is above it, in any row of a head. */
export class Bound {
  constructor(constant, mean = null, weight = 0) {
    Object.assign(this, { constant, mean, weight });
  }

  /** An upper bound of the largest eigenvalue. */
  get largest() {
    return this.constant + (this.mean === null ? 0 : this.weight * square(this.mean));
  }

  /** Steps of H^-1, a decay included. */
  descent({ decay = 0, anchor = null }) {
    const share = this.weight ? this.weight / (this.largest + decay) : 0;
    return new Descent(bestRate(this.constant + decay), { decay, anchor, mean: this.mean, share });
  }
}

/** 1/L, or none where the loss is flat. */
export function bestRate(smoothness) {
  return smoothness ? 1 / smoothness : 0;
}

function length(vector) {
  return Math.sqrt(vector.reduce((total, value) => total + value * value, 0));
}

/** link(z) - t. */
export function residualOf(z, targets, softmax) {
  const outputs = z.shape[1];
  const found = new Tensor(z.data.slice(), z.shape);
  for (let begin = 0; begin < z.data.length; begin += outputs) {
    const row = found.data.subarray(begin, begin + outputs);
    if (softmax) {
      const top = Math.max(...row);
      row.forEach((value, k) => (row[k] = Math.exp(value - top)));
      const total = row.reduce((sum, value) => sum + value, 0);
      row.forEach((value, k) => (row[k] = value / total));
    }
    for (let k = 0; k < outputs; k++) row[k] -= targets.data[begin + k];
  }
  return found;
}

/** mean(logsumexp(z) - z_y) over the samples whose class has an output, or mean(|z - t|^2) / 2. */
export function lossOf(z, targets, softmax) {
  const [samples, outputs] = z.shape;
  let [total, counted] = [0, 0];
  for (let begin = 0; begin < z.data.length; begin += outputs) {
    const row = z.data.subarray(begin, begin + outputs);
    const wanted = targets.data.subarray(begin, begin + outputs);
    if (softmax) {
      const top = Math.max(...row);
      const logarithm = top + Math.log(row.reduce((sum, value) => sum + Math.exp(value - top), 0));
      row.forEach((value, k) => (total += wanted[k] ? wanted[k] * (logarithm - value) : 0));
      counted += wanted.reduce((sum, value) => sum + value, 0);
    } else {
      row.forEach((value, k) => (total += (value - wanted[k]) ** 2 / 2));
    }
  }
  return total / (softmax ? counted : samples);
}

/**
 * How a head goes downhill. With a decay, decay/2 |W - anchor|^2 is added to the loss; no anchor: zero. With a mean, a
 * share of a slope's part along it is left out.
 */
export class Descent {
  constructor(rate, { rule = "gd", momentum = 0.9, decay = 0, anchor = null, mean = null, share = 0 } = {}) {
    Object.assign(this, { rate, rule, momentum, decay, anchor, mean, share });
  }

  /** The gradient of decay/2 |W - anchor|^2. */
  pull(head) {
    return scaled(this.anchor === null ? head : plus(head, this.anchor, -1), this.decay);
  }

  /** What the steps descend. */
  objective(sight, head) {
    return sight.loss(head) + (this.decay ? square(this.pull(head)) / (2 * this.decay) : 0);
  }

  slope(sight, head) {
    return this.#centred(this.decay ? plus(sight.slope(head), this.pull(head)) : sight.slope(head));
  }

  #centred(slope) {
    if (this.mean === null) return slope;
    const [[outputs, width], mean] = [slope.shape, this.mean.data];
    const found = slope.copy();
    for (let k = 0; k < outputs; k++) {
      const row = found.data.subarray(k * width, (k + 1) * width);
      const along = this.share * row.reduce((total, value, j) => total + value * mean[j], 0);
      row.forEach((value, j) => (row[j] = value - along * mean[j]));
    }
    return found;
  }

  steps(sight, head, count) {
    const move = this.#moves();
    for (let step = 0; step < count; step++) head = plus(head, move(this.slope(sight, head)), -1);
    return head;
  }

  /** Steps that do not end above the loss they began with, and 1 if they went uphill at first. */
  guardedSteps(sight, head, count) {
    if (this.rule === "gd") return [this.steps(sight, head, count), 0];
    const before = this.objective(sight, head);
    for (let attempt = 0; attempt <= AGAIN; attempt++) {
      const stepped = new Descent(this.rate / 10 ** attempt, this).steps(sight, head, count);
      if (this.objective(sight, stepped) <= before) return [stepped, Math.min(attempt, 1)];
    }
    return [head, 1];
  }

  /** A fresh function from gradients, one after the other, to the moves they cause. */
  #moves() {
    if (this.rule === "gd") return (gradient) => scaled(gradient, this.rate);
    return this.rule === "momentum" ? this.#momentum() : this.#adam();
  }

  #momentum() {
    let velocity = null;
    return (gradient) => {
      velocity = velocity === null ? gradient : plus(gradient, velocity, this.momentum);
      return scaled(velocity, this.rate);
    };
  }

  #adam() {
    let [first, second, count] = [null, null, 0];
    return (gradient) => {
      count += 1;
      first ??= new Float32Array(gradient.data.length);
      second ??= new Float32Array(gradient.data.length);
      const rate = this.rate / (1 - 0.9 ** count);
      const move = gradient.data.map((g, i) => {
        first[i] += 0.1 * (g - first[i]);
        second[i] += 0.001 * (g * g - second[i]);
        return (first[i] / (Math.sqrt(second[i] / (1 - 0.999 ** count)) + 1e-8)) * rate;
      });
      return new Tensor(move, gradient.shape);
    };
  }
}
