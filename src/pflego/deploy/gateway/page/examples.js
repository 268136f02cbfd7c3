// Drawings that a visitor has labelled: pictures in a gallery, and the data of a client.

import { Tensor } from "./client/arrays.js";
import { Data } from "./client/data.js";
import { picture } from "./pad.js";

const EVERY = 3; // of a class's drawings, one is for the test

/** The side of the square picture that a kit's samples are; null: they are no pictures to draw. */
export function sideOf({ shape, stored }) {
  const side = Math.sqrt(shape.reduce((total, size) => total * size, 1));
  const flat = shape.length === 1 || shape.at(-1) === shape.at(-2);
  return [8, 28].includes(side) && flat && ["float32", "uint8"].includes(stored) ? side : null;
}

/** Tells for every example whether it is for the test: every third of its class. */
export function forTest(examples) {
  const seen = {};
  return examples.map(({ label }) => (seen[label] = (seen[label] ?? 0) + 1) % EVERY === 0);
}

/** The data of a client, from examples of {label, numbers}. */
export function dataOf(id, examples, { shape, stored }) {
  const test = forTest(examples);
  const part = (wanted) => {
    const chosen = examples.filter((_, i) => test[i] === wanted);
    const [width, Kind] = [shape.reduce((total, size) => total * size, 1), stored === "uint8" ? Uint8Array : Float32Array];
    const x = new Kind(chosen.length * width);
    chosen.forEach(({ numbers }, i) => x.set(sampleOf(numbers, stored), i * width));
    const y = Float64Array.from(chosen, ({ label }) => label);
    return [new Tensor(x, [chosen.length, ...shape]), new Tensor(y, [chosen.length])];
  };
  const [[xTrain, yTrain], [xTest, yTest]] = [part(false), part(true)];
  return new Data(id, { xTrain, yTrain, xTest, yTest });
}

/** Numbers from 0 to 1 as they are stored. */
export function sampleOf(numbers, stored) {
  return stored === "uint8" ? Uint8Array.from(numbers, (value) => Math.round(255 * value)) : Float32Array.from(numbers);
}

/** Shows examples by their classes. removed: called with an example's place; null: they stay. */
export function show(gallery, examples, side, removed) {
  const test = forTest(examples);
  const classes = [...new Set(examples.map(({ label }) => label))].sort((a, b) => a - b);
  gallery.replaceChildren(
    ...classes.map((label) => {
      const row = document.createElement("div");
      row.className = "class";
      const name = document.createElement("b");
      name.textContent = label;
      row.append(name);
      examples.forEach((one, place) => {
        if (one.label !== label) return;
        const button = document.createElement("button");
        button.type = "button";
        button.className = test[place] ? "test" : "";
        button.title = `${test[place] ? "for the test" : "to learn from"}${removed ? "; click to remove" : ""}`;
        button.disabled = removed === null;
        const small = document.createElement("canvas");
        picture(small, one.numbers, side);
        button.append(small);
        button.addEventListener("click", () => removed?.(place));
        row.append(button);
      });
      return row;
    }),
  );
}
