// What of a pass through the backbone fits into a budget of memory: kept until the way back, or computed again.
//
// Of B bytes, with N samples of c bytes of activations and f bytes of features each, s of them at a time,
//
//     B - 4 N f - 4 |theta| - 3/2 s c        is for activations that are kept

import { product } from "./arrays.js";

const LEAST = 4; // samples at a time, however small the budget
const NUMBER = 4; // bytes

/** How many samples go through the graphs at a time, and of how many of the first the activations are kept. */
export function plan({ memory, backbone }, samples) {
  const whole = { size: memory.slice || memory.usual_slice || samples, kept: samples };
  if (memory.limit === null) return whole;
  const theta = backbone.parameters.reduce((total, one) => total + product(one.shape), 0);
  const room = memory.limit - 4 * NUMBER * (samples * backbone.features + theta);
  if (room >= samples * memory.sample) return whole;
  const fitting = Math.max(LEAST, Math.trunc(room / (3 * memory.sample)));
  const size = Math.min(memory.slice || Math.min(memory.usual_slice || fitting, fitting), samples);
  const kept = Math.trunc(Math.max(0, room - 1.5 * size * memory.sample) / memory.sample);
  return { size, kept: Math.floor(kept / size) * size };
}
