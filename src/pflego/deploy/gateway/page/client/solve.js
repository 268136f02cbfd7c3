// A linear head at the minimum of its loss, by second derivatives and in float64.
//
//     W* = argmin_W l(W) + decay/2 |W - A|^2,    decay > 0, so there is exactly one
//
// Newton's method, its systems solved by conjugate gradients. Half the squared error is quadratic: one step is all.

import { Tensor, plus, scaled, square } from "./arrays.js";
import { lossOf, residualOf } from "./head.js";

const RESIDUAL = 1e-9; // of the gradient's norm, as a share of decay: then |W - W*| is no larger than this
const NEWTON = 100;
const HALVINGS = 50;

/** The head, (K, M + 1), that minimises the loss and decay/2 |W - anchor|^2. */
export function solveHead(sight, decay, anchor) {
  const phi = doubles(sight.phi);
  const targets = doubles(sight.targets);
  const at = anchor === null ? doubles(Tensor.zeros(targets.shape[1], phi.shape[1])) : doubles(anchor);
  const head = newton(phi, targets, at, decay, sight.softmax);
  return new Tensor(Float32Array.from(head.data), head.shape);
}

function doubles(a) {
  return new Tensor(Float64Array.from(a.data), a.shape);
}

function newton(phi, targets, anchor, decay, softmax) {
  const samples = phi.shape[0];
  const objective = (head) =>
    lossOf(times(phi, head), targets, softmax) + (decay / 2) * square(plus(head, anchor, -1));
  let head = anchor;
  let now = objective(head);
  for (let turn = 0; turn < NEWTON; turn++) {
    const residual = residualOf(times(phi, head), targets, softmax);
    const gradient = plus(scaled(across(residual, phi), 1 / samples), plus(head, anchor, -1), decay);
    const size = Math.sqrt(square(gradient));
    if (!(size > RESIDUAL * decay)) break;
    const chances = softmax ? plus(residual, targets) : null;
    const curvature = (move) => {
      const along = times(phi, move);
      return plus(scaled(across(softmax ? bent(along, chances) : along, phi), 1 / samples), move, decay);
    };
    // what is left of a quadratic's system is left of its solution
    const share = softmax ? Math.min(0.1, Math.sqrt(size)) : Math.min(1e-3, (RESIDUAL * decay) / size);
    const move = conjugateGradients(curvature, gradient, share);
    const gain = move.data.reduce((total, value, i) => total + value * gradient.data[i], 0);
    let [rate, after, tries] = [1, 0, 0];
    for (; tries < HALVINGS; tries++, rate /= 2) {
      after = objective(plus(head, move, -rate));
      if (after <= now - 1e-4 * rate * gain) break;
    }
    // the loss is flat to its last digit: the last full step is as good as any
    if (tries === HALVINGS) return plus(head, move, -1);
    [head, now] = [plus(head, move, -rate), after];
  }
  return head;
}

/** The softmax's second derivative along a move of the outputs. */
function bent(along, chances) {
  const outputs = along.shape[1];
  const found = new Tensor(along.data.map((value, i) => value * chances.data[i]), along.shape);
  for (let begin = 0; begin < found.data.length; begin += outputs) {
    const row = found.data.subarray(begin, begin + outputs);
    const total = row.reduce((sum, value) => sum + value, 0);
    for (let k = 0; k < outputs; k++) row[k] -= chances.data[begin + k] * total;
  }
  return found;
}

/** Phi W^T, (n, K). */
function times(phi, head) {
  const [[samples, width], outputs] = [phi.shape, head.shape[0]];
  const found = new Tensor(new Float64Array(samples * outputs), [samples, outputs]);
  for (let i = 0; i < samples; i++) {
    for (let k = 0; k < outputs; k++) {
      let total = 0;
      for (let j = 0; j < width; j++) total += phi.data[i * width + j] * head.data[k * width + j];
      found.data[i * outputs + k] = total;
    }
  }
  return found;
}

/** R^T Phi, (K, M + 1). */
function across(residual, phi) {
  const [samples, outputs] = residual.shape;
  const width = phi.shape[1];
  const found = new Tensor(new Float64Array(outputs * width), [outputs, width]);
  for (let i = 0; i < samples; i++) {
    for (let k = 0; k < outputs; k++) {
      const r = residual.data[i * outputs + k];
      for (let j = 0; j < width; j++) found.data[k * width + j] += r * phi.data[i * width + j];
    }
  }
  return found;
}

/** Solves apply(x) = right, until what is left is no more than a share of it. */
function conjugateGradients(apply, right, share, most = 500) {
  let x = scaled(right, 0);
  let [rest, direction, now] = [right, right, square(right)];
  const enough = share ** 2 * now;
  for (let turn = 0; turn < most && now > enough; turn++) {
    const along = apply(direction);
    const length = now / direction.data.reduce((total, value, i) => total + value * along.data[i], 0);
    x = plus(x, direction, length);
    rest = plus(rest, along, -length);
    const before = now;
    now = square(rest);
    direction = plus(rest, direction, now / before);
  }
  return x;
}
