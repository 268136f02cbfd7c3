// A client's own samples: arrays, or a .npz file of them (npz.js).

import { Tensor } from "./arrays.js";
import { SettingError } from "./errors.js";

const NAMES = { Float32Array: "float32", Float64Array: "float64", Uint8Array: "uint8", BigInt64Array: "int64", Int32Array: "int32" };

/** Whole labels are classes, by their ids in the whole federation; fractional ones are regression targets. */
export class Data {
  /** x: (samples, ...); y: (samples,) of classes or (samples, targets). regression: what y stands for. */
  constructor(id, { xTrain, yTrain, xTest, yTest, regression = false }) {
    Object.assign(this, { id, xTrain, yTrain, xTest, yTest, regression });
    this.type = NAMES[xTrain.data.constructor.name];
    for (const [part, x, y] of [["training", xTrain, yTrain], ["test", xTest, yTest]]) {
      if (x.shape[0] !== y.shape[0]) throw new SettingError(`${part} inputs and labels are not equally many`);
      for (const [what, { data }] of [["an input", x], ["a label", y]]) {
        if (/^Float/.test(data.constructor.name) && !data.every(Number.isFinite)) {
          throw new SettingError(`${what} of the ${part} data is not finite`);
        }
      }
      if (!regression && (y.shape.length !== 1 || y.data.some((one) => !Number.isSafeInteger(one) || one < 0))) {
        throw new SettingError("classes are one whole number from 0 per sample");
      }
    }
    if (!xTrain.shape[0]) throw new SettingError("there are no training data");
    if (String(xTest.shape.slice(1)) !== String(xTrain.shape.slice(1))) {
      throw new SettingError("test data are not like training data");
    }
    this.samples = xTrain.shape[0];
    this.tests = xTest.shape[0];
    this.task = regression ? "regression" : "classification";
    this.classes = regression ? [] : [...new Set(yTrain.data)].sort((a, b) => a - b);
    this.outputs = this.classes.length || yTrain.data.length / this.samples;
  }

  /** What a client says of itself when it is asked who it is. */
  facts() {
    return {
      client: this.id,
      samples: this.samples,
      tests: this.tests,
      task: this.task,
      classes: this.classes,
      outputs: this.outputs,
      shape: this.xTrain.shape.slice(1),
      dtype: this.type,
      schema: "",
      unit: 1,
    };
  }

  /** One row per sample: one-hot by the classes of its outputs, or the targets of a regression. */
  static targets(y, { regression, classes, outputs }) {
    if (regression) return new Tensor(Float32Array.from(y.data), [y.shape[0], outputs]);
    const found = Tensor.zeros(y.shape[0], outputs);
    y.data.forEach((label, i) => {
      const place = classes.indexOf(label);
      if (place >= 0) found.data[i * outputs + place] = 1;
    });
    return found;
  }
}
