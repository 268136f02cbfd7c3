// Reads the arrays of a .npz file: a zip of .npy files, as NumPy writes them. Numbers alone, never objects.

import { Tensor, product } from "./arrays.js";
import { Data } from "./data.js";
import { SettingError } from "./errors.js";

const TYPES = {
  "<f4": Float32Array, "<f8": Float64Array, "|u1": Uint8Array, "|b1": Uint8Array, "|i1": Int8Array,
  "<i2": Int16Array, "<u2": Uint16Array, "<i4": Int32Array, "<u4": Uint32Array, "<i8": BigInt64Array, "<u8": BigUint64Array,
};
const ARRAYS = ["x_train", "y_train", "x_test", "y_test"];

/** The data of a client, from the bytes of a .npz file; x_test and y_test may be left out. */
export async function readData(id, bytes) {
  let found;
  try {
    found = await readNpz(bytes);
  } catch (error) {
    throw new SettingError(`this cannot be read as a .npz file: ${error.message}`);
  }
  const absent = ARRAYS.slice(0, 2).filter((name) => !(name in found));
  if (absent.length) throw new SettingError(`the file has no ${absent.join(", ")}; it needs ${ARRAYS.join(", ")}`);
  const regression = /^Float/.test(found.y_train.data.constructor.name);
  const labels = (y) => (regression ? y : new Tensor(Float64Array.from(y.data, Number), y.shape));
  const [x, y] = [found.x_train, labels(found.y_train)];
  const [xTest, yTest] = [found.x_test ?? x.slice(0, 0), found.y_test ? labels(found.y_test) : y.slice(0, 0)];
  return new Data(id, { xTrain: x, yTrain: y, xTest, yTest, regression });
}

/** Arrays by their names. */
export async function readNpz(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22; // where the list of files ends: a comment may follow
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("it is no zip file");
  const found = {};
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left; left--) {
    const [method, nameSize, extra, comment] = [10, 28, 30, 32].map((place) => view.getUint16(at + place, true));
    const packed = entrySize(view, at, nameSize, extra);
    const start = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameSize)).replace(/\.npy$/, "");
    const begin = start + 30 + view.getUint16(start + 26, true) + view.getUint16(start + 28, true);
    const content = bytes.slice(begin, begin + packed);
    found[name] = readNpy(method === 8 ? await inflated(content) : content);
    at += 46 + nameSize + extra + comment;
  }
  return found;
}

/** The bytes that a file takes up in the zip; NumPy always writes sizes of 64 bits, in the extra field. */
function entrySize(view, at, nameSize, extra) {
  const packed = view.getUint32(at + 20, true);
  if (packed !== 0xffffffff) return packed;
  const whole = view.getUint32(at + 24, true) === 0xffffffff ? 8 : 0; // the size before packing comes first
  for (let place = at + 46 + nameSize, end = place + extra; place < end; place += 4 + view.getUint16(place + 2, true)) {
    if (view.getUint16(place, true) === 1) return Number(view.getBigUint64(place + 4 + whole, true));
  }
  throw new Error("a size is missing in it");
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function readNpy(bytes) {
  if (String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new Error("it holds something else than arrays");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const [size, begin] = bytes[6] === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const header = new TextDecoder().decode(bytes.subarray(begin, begin + size));
  const type = /'descr': *'([^']+)'/.exec(header)?.[1];
  const shape = (/'shape': *\(([^)]*)\)/.exec(header)?.[1] ?? "").split(",").filter((one) => one.trim()).map(Number);
  const Kind = TYPES[type];
  if (!Kind) throw new Error(`it holds values of type ${type}: give numbers`);
  if (/'fortran_order': *True/.test(header)) throw new Error("its arrays are stored by columns: np.ascontiguousarray");
  const content = bytes.slice(begin + size);
  if (content.length !== product(shape) * Kind.BYTES_PER_ELEMENT) throw new Error("it is cut off");
  return new Tensor(new Kind(content.buffer), shape);
}
