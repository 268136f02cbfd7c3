// The client's modules by themselves, against numbers that were worked out elsewhere.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Tensor, square } from "../../src/pflego/deploy/gateway/page/client/arrays.js";
import { Blake2b, blake2b } from "../../src/pflego/deploy/gateway/page/client/blake2b.js";
import { decode, encode, sortedJson } from "../../src/pflego/deploy/gateway/page/client/codec.js";
import { MessageError, SettingError } from "../../src/pflego/deploy/gateway/page/client/errors.js";
import { Gateway, isSafe } from "../../src/pflego/deploy/gateway/page/client/gateway.js";
import { Descent, Sight } from "../../src/pflego/deploy/gateway/page/client/head.js";
import { Generator } from "../../src/pflego/deploy/gateway/page/client/randomness.js";
import { solveHead } from "../../src/pflego/deploy/gateway/page/client/solve.js";
import { isOf } from "../../src/pflego/deploy/gateway/page/client/store.js";

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const tensor = (shape, value) => new Tensor(Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => value(i)), shape);

test("blake2b digests as Python's hashlib does", () => {
  assert.equal(hex(blake2b("")), "cae66941d9efbd404e4d88758ea67670");
  assert.equal(hex(blake2b("abc")), "cf4ab791c62b8d2b2109c90275287816");
  assert.equal(hex(blake2b("a".repeat(128))), "1271d28e731afb57bdfba6bdaf3501be"); // a block, and none more
  const parts = ["a".repeat(100), "a".repeat(29)].map((part) => new TextEncoder().encode(part));
  assert.equal(hex(new Blake2b().update(parts[0]).update(parts[1]).digest()), "68b7bafbad5055c4ebe6eb170a0f8524");
});

test("what is encoded is read again, to the bit", () => {
  const tensors = { "b.weight": tensor([2, 3], (i) => i / 3), a: tensor([4], (i) => -i), scalar: tensor([], () => 7) };
  const read = decode(encode(tensors, { z: 1, a: { y: [1, 2], b: "ü" } }));
  assert.deepEqual(read.holdTo({ a: [4], "b.weight": [2, 3], scalar: [] })["b.weight"].data, tensors["b.weight"].data);
  assert.equal(read.facts.inner("a").text("b"), "ü");
});

test("facts are written with sorted keys", () => {
  assert.equal(sortedJson({ b: 1, a: [{ d: 1, c: 2 }] }), '{"a":[{"c":2,"d":1}],"b":1}');
});

test("bytes that were changed anywhere are refused", () => {
  const whole = encode({ w: tensor([3], (i) => i + 1) }, { round: 1 });
  for (let place = 0; place < whole.length; place++) {
    const changed = whole.slice();
    changed[place] ^= 1;
    assert.throws(() => {
      const read = decode(changed);
      // a space after the header may be another: nothing of what is read has changed
      assert.deepEqual([...read.tensors.w.data], [1, 2, 3]);
      throw new MessageError("the same");
    }, MessageError);
  }
  assert.throws(() => decode(whole.slice(0, -1)), MessageError);
  assert.throws(() => decode(new Uint8Array(4)), MessageError);
  for (const header of ["{}", '{"__metadata__":null}', "null", "[]", "7"]) {
    const bytes = new TextEncoder().encode(header);
    assert.throws(() => decode(Uint8Array.from([bytes.length, 0, 0, 0, 0, 0, 0, 0, ...bytes])), MessageError, header);
  }
});

test("one client is forgotten, and no other whose name ends alike", () => {
  for (const [client, key] of [["3", "3"], ["ward.3", "ward.3"]]) {
    const own = [["data", { key }], ["states", { key: `run.${key}` }], ["shared", { key: `run.${key}` }], ["answers", { key: 1, value: { client } }]];
    for (const [table, entry] of own) {
      assert.equal(isOf(client, table, entry), true);
      for (const other of ["3", "ward.3", "run.3"].filter((name) => name !== client)) assert.equal(isOf(other, table, entry), false);
    }
  }
});

test("a token does not travel in the clear", () => {
  for (const address of ["https://example.org/visit/", "http://127.0.0.1:8001/", "http://localhost:8001/", "http://[::1]:8001/"]) {
    assert.equal(isSafe(address), true, address);
    assert.equal(new Gateway(address, "secret").token, "secret");
  }
  for (const address of ["http://example.org/", "http://192.168.0.7:8001/", "http://127.0.0.1.example.org/", "http://127.0.0.1@example.org/"]) {
    assert.equal(isSafe(address), false, address);
    assert.throws(() => new Gateway(address, "secret"), SettingError, address);
  }
});

test("weights of another name, shape or that are not finite are refused", () => {
  const read = (w) => decode(encode({ w }, {}));
  assert.throws(() => read(tensor([3], () => 1)).holdTo({ v: [3] }), MessageError);
  assert.throws(() => read(tensor([3], () => 1)).holdTo({ w: [1, 3] }), MessageError);
  assert.throws(() => read(tensor([3], () => NaN)).holdTo({ w: [3] }), MessageError);
  assert.throws(() => read(tensor([3], () => Infinity)).holdTo({ w: [3] }), MessageError);
});

for (const softmax of [true, false]) {
  const [samples, width, outputs] = [7, 4, 3];
  const generator = new Generator(0, "test");
  const features = tensor([samples, width], () => 2 * generator.uniform() - 1);
  const targets = tensor([samples, outputs], (i) => (softmax ? Number(i % outputs === Math.floor(i / outputs) % outputs) : generator.uniform()));
  const head = tensor([outputs, width + 1], () => 2 * generator.uniform() - 1);
  const name = softmax ? "softmax" : "squared error";

  test(`gradients of the ${name} are differences of losses`, () => {
    const at = new Sight(features, targets, softmax).gradient(head);
    const near = (array, gradient, loss) => {
      for (let i = 0; i < array.data.length; i++) {
        const [up, down] = [array.copy(), array.copy()];
        up.data[i] += 2 ** -8;
        down.data[i] -= 2 ** -8;
        assert.ok(Math.abs((loss(up) - loss(down)) / 2 ** -7 - gradient.data[i]) < 1e-4);
      }
    };
    near(head, at.head, (one) => new Sight(features, targets, softmax).loss(one));
    near(features, at.features, (one) => new Sight(one, targets, softmax).loss(head));
  });

  test(`a head that is solved for is where the ${name} and its decay are flat`, () => {
    const sight = new Sight(features, targets, softmax);
    const solved = solveHead(sight, 0.1, head);
    const slope = new Descent(0, { decay: 0.1, anchor: head }).slope(sight, solved);
    assert.ok(Math.sqrt(square(slope)) < 1e-6);
  });

  test(`steps at 1/L never raise the ${name}`, () => {
    const sight = new Sight(features, targets, softmax);
    const rate = 1 / sight.smoothness(Array(width + 1).fill(1), 100);
    let [now, loss] = [head, sight.loss(head)];
    for (let step = 0; step < 50; step++) {
      now = new Descent(rate).steps(sight, now, 1);
      assert.ok(sight.loss(now) <= loss + 1e-7);
      loss = sight.loss(now);
    }
  });
}

test("smoothness is the largest eigenvalue", () => {
  const features = new Tensor(Float32Array.of(2, 0, 0, 1), [2, 2]);
  const sight = new Sight(features, Tensor.zeros(2, 1), false);
  // Phi^T Phi / 2 of the rows (2, 0, 1) and (0, 1, 1): its largest eigenvalue is (7 + sqrt(13)) / 4
  assert.ok(Math.abs(sight.smoothness([1, 1, 1], 200) - (7 + Math.sqrt(13)) / 4) < 1e-5);
});
