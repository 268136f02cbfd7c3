// What one client can compute: features, losses and gradients on its own data, through a kit.

import { HEAD, Tensor, plus, stacked } from "./arrays.js";
import { Data } from "./data.js";
import { Sight, lossOf } from "./head.js";
import { plan } from "./memory.js";
import { Generator } from "./randomness.js";

/** A client's loss l_i(W, theta), and its gradients. */
export class Problem {
  constructor(kit, data, federation) {
    kit.check(data.xTrain, data.type);
    Object.assign(this, { kit, data, x: data.xTrain, samples: data.samples, softmax: !data.regression });
    const local = kit.spec.labels === "local";
    this.classes = kit.spec.labels === "global" ? federation.classes : data.classes;
    const own = this.classes.length || data.outputs;
    this.outputs = local ? Math.max(own, federation.mostClasses) : own;
    // where its outputs stand among those of the whole federation
    this.rows = this.classes.length
      ? this.classes.map((one) => federation.classes.indexOf(one))
      : Array.from({ length: this.outputs }, (_, k) => k);
    this.targets = this._targets(data.yTrain);
    this.passed = { forward: 0, backward: 0 }; // samples through the backbone, either way
    this.now = { seed: 0, number: 0 }; // decide what is drawn at random; outside of any round
  }

  /** The same problem in a round. */
  at(now) {
    return this._changed({ now });
  }

  /** The same problem on so many samples, drawn at random in every round; where there are more. */
  some(most, purpose) {
    if (most === null || most >= this.samples) return this;
    const { seed, number } = this.now;
    const order = new Generator(seed, purpose, { round: number, client: this.data.id }).permutation(this.samples);
    const chosen = order.slice(0, most).sort((a, b) => a - b);
    return this._changed({ x: this.x.rows(chosen), targets: this.targets.rows(chosen), samples: most });
  }

  _changed(changes) {
    return Object.assign(Object.create(Problem.prototype), this, changes);
  }

  passes(way) {
    return this.passed[way] / this.data.samples;
  }

  /** This client's first head, (K, M + 1), a function of the seed and its id. */
  newHead(how, seed) {
    const [rows, columns] = [this.outputs, this.kit.features + 1];
    const head = Tensor.zeros(rows, columns);
    if (how === "zeros") return head;
    const generator = new Generator(seed, "head", { client: this.data.id });
    const drawn = Float64Array.from({ length: rows * columns }, () => generator.uniform());
    for (let j = 0; j < columns; j++) {
      let mean = 0;
      for (let k = 0; k < rows; k++) mean += drawn[k * columns + j] / rows;
      for (let k = 0; k < rows; k++) {
        const u = drawn[k * columns + j];
        const started = { uniform: u, centred: u - mean, layer: (2 * u - 1) / Math.sqrt(this.kit.features) };
        head.data[k * columns + j] = started[how];
      }
    }
    return head;
  }

  sight(features) {
    return new Sight(features, this.targets, this.softmax);
  }

  /** All samples through the backbone, with no way back; (samples, M). */
  async features(weights) {
    this.passed.forward += this.samples;
    return this._phi(weights, this.x);
  }

  /** All samples through the backbone once: features, and the function that turns d loss / d phi into d loss / d theta. */
  async forward(weights) {
    const { kit } = this;
    const [theta, names] = [this._theta(weights), Object.keys(kit.shapes)];
    const { size, kept: fitting } = plan(kit.spec, this.samples);
    const most = kit.graphs.canKeep ? fitting : 0;
    const [parts, passed] = [[], []];
    for (let begin = 0; begin < this.samples; begin += size) {
      const keep = begin < most;
      const x = kit.prepare(this.x.slice(begin, begin + size));
      const [phi, found] = await kit.graphs.forward(theta, x, keep);
      parts.push(phi);
      passed.push(keep ? found : null);
    }
    this.passed.forward += this.samples;
    const backward = async (slopes) => {
      this.passed.backward += this.samples;
      this.passed.forward += this.samples - Math.min(most, this.samples);
      let total = null;
      for (let begin = 0, part = 0; begin < this.samples; begin += size, part++) {
        const kept = passed[part] !== null;
        const given = passed[part] ?? kit.graphs.passed(theta, kit.prepare(this.x.slice(begin, begin + size)));
        const found = await kit.graphs.backward(given, slopes.slice(begin, begin + size), names, kept);
        total = total === null ? found : Object.fromEntries(names.map((name) => [name, plus(total[name], found[name])]));
      }
      return total;
    };
    return { features: stacked(parts), backward };
  }

  /** The training loss. No part of a client's work, so the pass is not counted. */
  async loss(weights) {
    return this.sight(await this._phi(weights, this.x)).loss(weights[HEAD]);
  }

  /** The result on the test data: samples, loss (null: not known), and how many were right or the summed squared error. */
  async test(weights) {
    const { xTest, yTest, tests } = this.data;
    if (!tests) return { samples: 0, loss: null, score: 0 };
    const targets = this._targets(yTest);
    const z = new Sight(await this._phi(weights, xTest), targets, this.softmax).outputs(weights[HEAD]);
    const loss = lossOf(z, targets, this.softmax);
    let score = 0;
    for (let i = 0; i < tests; i++) {
      const row = z.data.subarray(i * this.outputs, (i + 1) * this.outputs);
      const wanted = targets.data.subarray(i * this.outputs, (i + 1) * this.outputs);
      if (this.softmax) score += row.some(Number.isNaN) ? 0 : wanted[row.indexOf(Math.max(...row))];
      else score += row.reduce((total, value, k) => total + (value - wanted[k]) ** 2, 0) / this.outputs;
    }
    return { samples: tests, loss: Number.isFinite(loss) ? loss : null, score };
  }

  /** Outputs for samples that nobody has labelled, (samples, K). */
  async outputsFor(weights, x) {
    const nothing = Tensor.zeros(x.shape[0], this.outputs);
    return new Sight(await this._phi(weights, x), nothing, this.softmax).outputs(weights[HEAD]);
  }

  _theta(weights) {
    return Object.fromEntries(Object.keys(this.kit.shapes).map((name) => [name, weights[name]]));
  }

  async _phi(weights, x) {
    const [theta, { size }] = [this._theta(weights), plan(this.kit.spec, this.samples)];
    const parts = [];
    for (let begin = 0; begin < x.shape[0]; begin += size) {
      parts.push((await this.kit.graphs.forward(theta, this.kit.prepare(x.slice(begin, begin + size)), false))[0]);
    }
    return stacked(parts);
  }

  _targets(y) {
    return Data.targets(y, { regression: !this.softmax, classes: this.classes, outputs: this.outputs });
  }
}
