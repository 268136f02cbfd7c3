// A kit: the backbone's two functions as ONNX files, and what the method asks of a client.

import { Tensor } from "./arrays.js";
import { SettingError } from "./errors.js";

const FORMAT = "pflego kit 2";
const TYPES = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array };

/** What `pflego kit` wrote, checked against its digests. */
export class Kit {
  /** get: gives a file's bytes by its name. runtime: the module of onnxruntime-web. */
  static async read(get, runtime) {
    let spec;
    try {
      spec = JSON.parse(new TextDecoder().decode(await get("spec.json")));
    } catch (error) {
      throw new SettingError(`the kit cannot be read: ${error.message}`);
    }
    if (spec.format !== FORMAT) throw new SettingError("the kit is of another version: make it again with pflego kit");
    if (spec.method.name !== "pflego") {
      throw new SettingError(`a client in a browser plays pflego, and not ${spec.method.name}: take a light or a full client`);
    }
    if (!(spec.inputs.dtype in TYPES) || !(spec.inputs.stored in TYPES)) {
      throw new SettingError(`a client in a browser has no inputs of type ${spec.inputs.stored}`);
    }
    const contents = {};
    for (const [role, file] of Object.entries(spec.files)) {
      contents[role] = await get(file.name);
      if ((await sha256(contents[role])) !== file.sha256) {
        throw new SettingError(`the file ${file.name} is not the one that the kit was made with`);
      }
    }
    return new Kit(spec, new Graphs(spec, contents, runtime));
  }

  constructor(spec, graphs) {
    Object.assign(this, { spec, graphs, method: spec.method, features: spec.backbone.features });
    this.shapes = Object.fromEntries(spec.backbone.parameters.map(({ name, shape }) => [name, shape]));
  }

  /** Refuses samples that the backbone was not made for. */
  check(x, type) {
    const { shape, stored } = this.spec.inputs;
    if (String(x.shape.slice(1)) !== String(shape) || type !== stored) {
      throw new SettingError(
        `this federation's samples are ${stored} of shape (${shape}), and these are ${type} of shape (${x.shape.slice(1)})`,
      );
    }
  }

  /** Turns stored inputs into what the graphs take. */
  prepare(x) {
    const { dtype, divide_by: divisor } = this.spec.inputs;
    const Kind = TYPES[dtype];
    if (divisor !== 1) return new Tensor(Kind.from(x.data, (value) => value / divisor), x.shape);
    if (x.data instanceof Kind) return x;
    return new Tensor(Kind.from(x.data, dtype === "int64" ? BigInt : Number), x.shape);
  }
}

async function sha256(bytes) {
  const digest = await crypto.subtle.digest("SHA-256", bytes);
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The sessions that run a kit's files; each is made when it is first asked for. */
class Graphs {
  #sessions = new Map();

  constructor(spec, contents, runtime) {
    // whether the way back needs no second way forth: activations are kept, or there is no way back
    this.canKeep = "backward_kept" in contents || !("backward" in contents);
    Object.assign(this, { names: spec.names, contents, runtime, type: spec.inputs.dtype });
  }

  /** phi(x; theta), and what the way back will need. */
  async forward(theta, x, keep) {
    const given = this.#given(theta, x);
    const { [this.names.features]: phi, ...kept } = await this.#run(keep && "forward_keeping" in this.contents ? "forward_keeping" : "forward", given);
    return [new Tensor(phi.data, [...phi.dims]), { ...given, ...kept }];
  }

  /** What the way back needs where nothing was kept. */
  passed(theta, x) {
    return this.#given(theta, x);
  }

  /** slope^T d phi / d theta; nothing, where all of theta is frozen. */
  async backward(passed, slope, names, kept) {
    if (!names.length) return {};
    const given = { ...passed, [this.names.slope]: this.#value(slope, "float32") };
    const found = await this.#run(kept ? "backward_kept" : "backward", given);
    return Object.fromEntries(
      names.map((name) => [name, found[this.names.gradient + name]]).map(([name, one]) => [name, new Tensor(one.data, [...one.dims])]),
    );
  }

  #given(theta, x) {
    const own = Object.entries(theta).map(([name, one]) => [name, this.#value(one, "float32")]);
    return { ...Object.fromEntries(own), [this.names.input]: this.#value(x, this.type) };
  }

  #value(array, type) {
    return new this.runtime.Tensor(type, array.data, array.shape);
  }

  async #run(role, given) {
    if (!this.#sessions.has(role)) {
      const options = { executionProviders: ["wasm"], logSeverityLevel: 3 };
      this.#sessions.set(role, this.runtime.InferenceSession.create(this.contents[role], options));
    }
    const session = await this.#sessions.get(role);
    return session.run(Object.fromEntries(session.inputNames.map((name) => [name, given[name]])));
  }
}
