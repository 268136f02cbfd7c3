// A client at work, in a federation of which it sees nothing but its own data and what all know.

import { HEAD, isFinite } from "./arrays.js";
import { MessageError } from "./errors.js";
import { Pflego } from "./pflego.js";
import { Problem } from "./problem.js";
import { checkFederation } from "./round.js";

/** One client, ready to work; a federation that it cannot be part of is refused. */
export class Client {
  constructor(kit, data, federation) {
    checkFederation(federation, data, kit.spec.backbone.base ?? "");
    Object.assign(this, { kit, data, federation, method: new Pflego(kit.method) });
    this.problem = new Problem(kit, data, federation);
  }

  /** Maps name to shape for what the server sends. */
  get shared() {
    const { spec, shapes, features } = this.kit;
    if (!spec.shares_head) return shapes;
    const local = spec.labels === "local" && this.federation.mostClasses;
    return { ...shapes, [HEAD]: [local || this.federation.outputs, features + 1] };
  }

  /** The state of a client that was never asked before. */
  first() {
    return this.method.initState(this.problem, this.kit.spec.seed);
  }

  /** A round's work: state, contribution and metrics. */
  async work(now, shared, state) {
    const problem = new Problem(this.kit, this.data, this.federation).at(now);
    const start = performance.now();
    const update = await this.method.update(now, shared, state, problem);
    const seconds = (performance.now() - start) / 1000;
    const metrics = {
      forward_passes: [problem.passes("forward"), "largest", 1],
      backward_passes: [problem.passes("backward"), "largest", 1],
    };
    if (update.jointLoss !== null) metrics.joint_loss = [update.jointLoss * now.alpha, "mean", now.alpha];
    const loss = update.loss ?? (await problem.loss(update.model));
    const measured = Object.values(update.metrics).every(([total]) => Number.isFinite(total));
    const finite = isFinite(update.contribution) && isFinite(update.state) && Number.isFinite(loss) && measured;
    let score = null;
    if (finite) {
      score = await problem.test(update.model);
      Object.assign(metrics, update.metrics, {
        loss: [loss * now.alpha, "mean", now.alpha],
        test: [score.score, "mean", score.samples],
      });
    }
    return { state: update.state, contribution: update.contribution, metrics, finite, seconds, loss, score };
  }

  /** The state of a client that comes when others have trained: its first one, and that one made ready. */
  async welcome(shared, steps) {
    const first = this.first();
    const ready = await this.method.welcome(shared, first, this.problem, steps);
    if (!isFinite(ready)) throw new MessageError("this client cannot join: its head did not stay finite; check its data's scale");
    return [first, ready];
  }

  /** This client's own model on its test data; adapt: its state is first made ready for these weights. */
  async score(shared, state, adapt = false) {
    const own = adapt ? await this.method.adapt(shared, state, this.problem) : state;
    return this.problem.test(await this.personal(shared, own));
  }

  /** This client's own model. */
  personal(shared, state) {
    return this.method.personal(shared, state, this.problem);
  }
}
