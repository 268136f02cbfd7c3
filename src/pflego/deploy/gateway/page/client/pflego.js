// PFLEGO, Algorithm 1 of the paper, on a client. Round t, head W_i:
//
//     tau - 1 times   W_i   <- W_i - beta grad_W l_i(W_i, theta)
//     once            g_i   =  grad_theta l_i(W_i, theta),  sent to the server
//                     W_i   <- W_i - rho I/r grad_W l_i(W_i, theta)
//
// theta does not move inside a round, so the features of one forward pass serve all tau steps. Beside a common head the
// outputs are (W_0 + V_i) phi, and V_i is the client's own; heads that are solved for are at their minimum, and no state
// is kept. docs/kit.md has every step.

import { HEAD, plus, scaled, Tensor } from "./arrays.js";
import { Bound, Descent, bestRate } from "./head.js";
import { solveHead } from "./solve.js";

// of a newcomer's head: steps between two looks at the loss, steps in all, and the share of the first loss that they must gain
const [STEPS, MOST, ENOUGH] = [100, 5_000, 1e-4];

export class Pflego {
  constructor(settings) {
    this.settings = settings;
    this.solves = settings.head_optimizer === "solve";
  }

  /** W_i, or V_i = 0 beside a common head; nothing where heads are solved for. */
  initState(problem, seed) {
    if (this.solves) return {};
    return { [HEAD]: problem.newHead(this.settings.common_head ? "zeros" : this.settings.head_init, seed) };
  }

  /** tau - 1 steps on the head, then the joint gradient: keep the head's part, send theta's. */
  async update(now, shared, state, whole) {
    const own = this.settings;
    const alone = whole.some(own.sample, "samples of the head");
    const problem = whole.some(own.sample, "samples of the joint step");
    const forward = await problem.forward(shared);
    const sight = problem.sight(forward.features);
    const seen = alone === problem ? sight : alone.sight(await alone.features(shared));
    const fitted = this.#fit(shared, state, problem, seen);
    const { descent } = fitted;
    const at = sight.gradient(fitted.head);
    const jointLoss = now.emphasis === null ? null : descent.objective(sight, fitted.head);
    const factor = now.emphasis === null ? 1 : now.emphasis(jointLoss);
    const contribution = await forward.backward(factor === 1 ? at.features : scaled(at.features, factor));
    if (own.common_head) contribution[HEAD] = placed(scaled(at.head, factor), problem.rows, shared[HEAD].shape);
    const rate = own.server_lr * now.scale * factor * (own.head_step === "exact" ? now.alpha : 1);
    const taken = Math.min(rate, fitted.limit);
    const head = plus(fitted.head, descent.decay ? plus(at.head, descent.pull(fitted.head)) : at.head, -taken);
    return {
      state: this.#kept(shared, head, problem),
      contribution,
      model: { ...shared, [HEAD]: head },
      metrics: { fallbacks: [fitted.fallbacks, "sum", 1], ...this.#bound(fitted, taken) },
      loss: problem.samples === problem.data.samples ? sight.loss(head) : null,
      jointLoss,
    };
  }

  /** theta and W_i, or W_0 + V_i, or the head that is solved for. */
  async personal(shared, state, problem) {
    if (!this.solves) return { ...shared, [HEAD]: this.#whole(shared, state, problem) };
    const sight = problem.sight(await problem.features(shared));
    return { ...shared, [HEAD]: this.#fit(shared, state, problem, sight).head };
  }

  /** tau - 1 steps against the present theta. */
  async adapt(shared, state, problem) {
    if (this.solves) return {};
    const fitted = this.#fit(shared, state, problem, problem.sight(await problem.features(shared)));
    return this.#kept(shared, fitted.head, problem);
  }

  /** A first head fitted to the present theta, in steps of 1/L_i: so many, or until a hundred more would hardly help. */
  async welcome(shared, state, problem, steps) {
    if (this.solves) return {};
    const [anchor, decay] = [this.#anchor(shared, problem), Number(this.settings.head_decay)];
    const sight = problem.sight(await problem.features(shared));
    const { start, iterations } = problem.kit.spec.smoothness;
    const descent = new Bound(sight.smoothness(start, iterations)).descent({ decay, anchor });
    let head = this.#whole(shared, state, problem);
    if (steps !== null) return this.#kept(shared, descent.steps(sight, head, steps), problem);
    const first = descent.objective(sight, head);
    for (let now = first, taken = 0; taken < MOST; taken += STEPS) {
      const fitted = descent.steps(sight, head, STEPS);
      const after = descent.objective(sight, fitted);
      if (!(after <= now)) break;
      head = fitted;
      if (now - after < ENOUGH * first) break;
      now = after;
    }
    return this.#kept(shared, head, problem);
  }

  #fit(shared, state, problem, sight) {
    const own = this.settings;
    const anchor = this.#anchor(shared, problem);
    const decay = Number(own.head_decay);
    if (this.solves) {
      const head = solveHead(sight, decay, anchor);
      return { head, descent: new Descent(0, { decay, anchor }), smoothness: 0, limit: 0, fallbacks: 0 };
    }
    const power = problem.kit.spec.smoothness;
    const measured = typeof own.client_lr === "string";
    const plain = () => new Bound(sight.smoothness(power.start, power.iterations));
    const bound = own.client_lr === "centred" ? sight.bound(power) : plain();
    const smoothness = bound.largest + decay;
    const descent = bound.descent({ decay, anchor });
    Object.assign(descent, { rule: own.head_optimizer, momentum: own.momentum });
    if (!measured) descent.rate = own.client_lr;
    const [head, fallbacks] = descent.guardedSteps(sight, this.#whole(shared, state, problem), own.steps - 1);
    const limit = measured && own.head_step !== "exact" ? bestRate(smoothness) : Infinity;
    return { head, descent, smoothness, limit, fallbacks };
  }

  /** Rates beside 2/L, below which every step goes downhill. */
  #bound({ smoothness }, last) {
    const own = this.settings;
    const chosen = typeof own.client_lr !== "string" && ["gd", "solve"].includes(own.head_optimizer) && own.steps > 1;
    const ratio = (Math.max(last, chosen ? own.client_lr : 0) * smoothness) / 2;
    return { above_bound: [Number(ratio >= 1), "sum", 1], rate_over_bound: [ratio, "largest", 1] };
  }

  #anchor(shared, problem) {
    return this.settings.common_head ? shared[HEAD].rows(problem.rows) : null;
  }

  #whole(shared, state, problem) {
    const anchor = this.#anchor(shared, problem);
    return anchor === null ? state[HEAD] : plus(anchor, state[HEAD]);
  }

  #kept(shared, head, problem) {
    if (this.solves) return {};
    const anchor = this.#anchor(shared, problem);
    return { [HEAD]: anchor === null ? head : plus(head, anchor, -1) };
  }
}

/** Rows of one array in their places, zeros elsewhere. */
function placed(rows, places, shape) {
  const whole = Tensor.zeros(...shape);
  places.forEach((place, at) => whole.data.set(rows.slice(at, at + 1).data, place * shape[1]));
  return whole;
}
