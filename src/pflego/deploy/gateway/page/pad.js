// A pad to draw on, and a drawing as the sample that the network was made for.

const INK = 18; // of 280: the width of a stroke

/** Lets a visitor draw on a canvas with mouse, pen or finger. changed: called after every stroke. */
export class Pad {
  #drawn = false;

  constructor(canvas, changed) {
    Object.assign(this, { canvas, changed, context: canvas.getContext("2d", { willReadFrequently: true }) });
    let last = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      last = place(event);
      this.#stroke(last, last);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (last === null) return;
      const next = place(event);
      this.#stroke(last, next);
      last = next;
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, () => {
        if (last !== null) changed();
        last = null;
      });
    }
    this.clear();
  }

  get empty() {
    return !this.#drawn;
  }

  clear() {
    this.context.fillStyle = "#fff";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.#drawn = false;
  }

  /** The drawing as numbers from 0 to 1, by rows: side x side of them. */
  sample(side) {
    return side === 8 ? blocks(this.#fitted(32, 32, 32), 8) : centred(this.#fitted(20, 20, side), side);
  }

  #stroke([x, y], [toX, toY]) {
    const pen = this.context;
    Object.assign(pen, { lineWidth: INK, lineCap: "round", lineJoin: "round", strokeStyle: "#111" });
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(toX + 0.01, toY);
    pen.stroke();
    this.#drawn = true;
  }

  /** Cuts the drawing out and fits it into a box in the middle of a square; darkness from 0 to 1. */
  #fitted(width, height, side) {
    const { data } = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height);
    let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
    for (let y = 0; y < this.canvas.height; y++) {
      for (let x = 0; x < this.canvas.width; x++) {
        if (data[4 * (y * this.canvas.width + x)] < 128) {
          [left, right] = [Math.min(left, x), Math.max(right, x)];
          [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
        }
      }
    }
    const found = new Float32Array(side * side);
    if (right < 0) return found;
    const [wide, high] = [right - left + 1, bottom - top + 1];
    const scale = Math.min(width / wide, height / high);
    const small = new OffscreenCanvas(side, side);
    const pen = small.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, side, side);
    pen.imageSmoothingQuality = "high";
    const [w, h] = [wide * scale, high * scale];
    pen.drawImage(this.canvas, left, top, wide, high, (side - w) / 2, (side - h) / 2, w, h);
    const pixels = pen.getImageData(0, 0, side, side).data;
    for (let i = 0; i < found.length; i++) found[i] = 1 - pixels[4 * i] / 255;
    return found;
  }
}

/** Counts dark points in blocks, as the digits of the UCI collection were made: 32 x 32 points, blocks of 4 x 4. */
function blocks(points, side) {
  const size = Math.sqrt(points.length) / side;
  const found = new Float32Array(side * side);
  points.forEach((dark, i) => {
    const [row, column] = [Math.floor(i / (size * side)), i % (size * side)];
    found[Math.floor(row / size) * side + Math.floor(column / size)] += (dark > 0.5 ? 1 : 0) / size ** 2;
  });
  return found;
}

/** Moves the centre of mass to the middle, as MNIST's digits have it. */
function centred(points, side) {
  let [total, x, y] = [0, 0, 0];
  points.forEach((dark, i) => {
    total += dark;
    x += dark * (i % side);
    y += dark * Math.floor(i / side);
  });
  const [right, down] = total ? [x, y].map((sum) => Math.round((side - 1) / 2 - sum / total)) : [0, 0];
  const found = new Float32Array(side * side);
  points.forEach((dark, i) => {
    const [column, row] = [(i % side) + right, Math.floor(i / side) + down];
    if (column >= 0 && column < side && row >= 0 && row < side) found[row * side + column] = dark;
  });
  return found;
}

/** Shows numbers from 0 to 1 as a small picture. */
export function picture(canvas, numbers, side) {
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(side, side);
  numbers.forEach((dark, i) => image.data.set([0, 1, 2].map(() => 255 * (1 - dark)).concat(255), 4 * i));
  pen.putImageData(image, 0, 0);
}
