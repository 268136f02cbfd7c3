"""Steps on a softmax head as one compiled loop (numba), for float32 on the CPU.

The residuals of a sample sum to zero, so the last row of the gradient is minus the sum of the others, and outputs
matter only by their distance from the last: K - 1 rows of differences V_k = W_k - W_K do the work of K. A block of
samples goes through all of a step while it is in the innermost cache, so a step reads the features once.

Eight samples are taken at a time: a row of V is then loaded once for eight products. Where fewer than eight are
left, the last one fills up, and its residual counts as zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Matrix = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]  # one for each client
Places = npt.NDArray[np.int64]  # where each client's part begins, and the last one ends

_BLOCK = 32  # samples; with 200 features 26 kB
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz", "contract", "arcp"})
f4 = np.float32


@_compiled
def softmax_steps(
    head: Matrix,
    features: Matrix,
    labels: Matrix,
    anchor: Matrix,
    mean: Vector,
    steps: int,
    rate: float,
    decay: float,
    share: float,
) -> None:
    """Take gradient steps on a head, (K, M + 1), in place; labels are one-hot, (n, K).

    With a decay, the head is also pulled to the anchor. A share of the part of the slope along a mean, (M + 1,), is
    taken out (bound.py).
    """
    n = len(features)
    last = len(head) - 1
    slope = np.empty_like(head)
    z = np.empty((last, _BLOCK), f4)
    work = np.empty((3, _BLOCK), f4)
    for _ in range(steps):
        difference = _from_the_last(head)
        slope[:] = 0
        for start in range(0, n, _BLOCK):
            stop = min(start + _BLOCK, n)
            _project(difference, features, start, stop, z)
            _softmax_residual(z, labels, start, stop, work, False)
            _gather(z, features, start, stop, slope[:last])
        _finish(slope, n)
        for k in range(last + 1):
            _step(head[k], slope[k], anchor[k], mean, f4(rate), f4(decay), f4(share))


@_compiled
def softmax_gradient(
    head: Matrix, features: Matrix, labels: Matrix, at_features: Matrix, gradient: Matrix
) -> float:
    """Give the loss at a head; write d loss / d features, (n, M), and d loss / d head, (K, M + 1)."""
    n, m = features.shape
    last = len(head) - 1
    z = np.empty((last, _BLOCK), f4)
    work = np.empty((3, _BLOCK), f4)
    difference = _from_the_last(head)
    gradient[:] = 0
    loss = 0.0
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        _project(difference, features, start, stop, z)
        loss += _softmax_residual(z, labels, start, stop, work, True)
        for j in range(stop - start):
            row = at_features[start + j]
            for c in range(m):
                row[c] = 0
            for k in range(last):
                z[k, j] /= n
                slope = z[k, j]
                for c in range(m):
                    row[c] += slope * difference[k, c]
        _gather(z, features, start, stop, gradient[:last])
    for k in range(last):
        for c in range(m + 1):
            gradient[last, c] -= gradient[k, c]
    return float(loss / n)


@_compiled
def softmax_loss(head: Matrix, features: Matrix, labels: Matrix) -> float:
    """Give the loss at a head."""
    n = len(features)
    z = np.empty((len(head) - 1, _BLOCK), f4)
    work = np.empty((3, _BLOCK), f4)
    difference = _from_the_last(head)
    loss = 0.0
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        _project(difference, features, start, stop, z)
        loss += _softmax_residual(z, labels, start, stop, work, True)
    return float(loss / n)


@_compiled
def largest_eigenvalue(features: Matrix, mean: Vector, vector: Matrix, iterations: int) -> float:
    """Estimate that of Phi^T Phi / n, Phi being features and a column of ones, from a first vector (1, M + 1).

    A mean, (M + 1,), is taken off every row of Phi first; one of zeros leaves them as they are.
    """
    n, m = features.shape
    now = vector.copy()
    after = np.empty((1, m + 1), f4)
    z = np.empty((1, _BLOCK), f4)
    size = _norm(now)
    for _ in range(iterations):
        if size == 0:
            break
        at_mean = f4(0)
        for c in range(m + 1):
            now[0, c] /= size
            after[0, c] = 0
            at_mean += now[0, c] * mean[c]
        for start in range(0, n, _BLOCK):
            stop = min(start + _BLOCK, n)
            _project(now, features, start, stop, z)
            for j in range(stop - start):
                z[0, j] -= at_mean
            _gather(z, features, start, stop, after)
        for c in range(m + 1):
            now[0, c] = after[0, c] / n
        size = _norm(now)
    return float(size)


@_compiled
def mean_row(features: Matrix, mean: Vector) -> None:
    """Write the mean of the rows of Phi, (M + 1,), whose last entry is 1."""
    n, m = features.shape
    total = np.zeros(m)
    for i in range(n):
        for c in range(m):
            total[c] += features[i, c]
    for c in range(m):
        mean[c] = total[c] / n
    mean[m] = 1


@_compiled
def softmax_steps_of_each(
    heads: Matrix,
    rows: Places,
    features: Matrix,
    samples: Places,
    labels: Vector,
    anchors: Matrix,
    means: Matrix,
    steps: int,
    rates: Numbers,
    decays: Numbers,
    shares: Numbers,
) -> None:
    """Take steps on the heads of several clients, in place.

    Client i has the rows from rows[i] to rows[i + 1] of heads and anchors, the features from samples[i] on, and row i
    of the means.
    """
    begin = 0
    for i in range(len(rates)):
        own, phi = heads[rows[i] : rows[i + 1]], features[samples[i] : samples[i + 1]]
        end = begin + len(phi) * len(own)
        anchor = anchors[rows[i] : rows[i + 1]] if decays[i] else own
        mean = means[i] if shares[i] else own[0]
        wanted = labels[begin:end].reshape(len(phi), len(own))
        softmax_steps(own, phi, wanted, anchor, mean, steps, rates[i], decays[i], shares[i])
        begin = end


@_compiled
def softmax_gradients(
    heads: Matrix,
    rows: Places,
    features: Matrix,
    samples: Places,
    labels: Vector,
    at_features: Matrix,
    gradients: Matrix,
    losses: Numbers,
) -> None:
    """Write the losses and gradients of several clients."""
    begin = 0
    for i in range(len(losses)):
        own, phi = heads[rows[i] : rows[i + 1]], features[samples[i] : samples[i + 1]]
        end = begin + len(phi) * len(own)
        wanted = labels[begin:end].reshape(len(phi), len(own))
        slopes, gradient = at_features[samples[i] : samples[i + 1]], gradients[rows[i] : rows[i + 1]]
        losses[i] = softmax_gradient(own, phi, wanted, slopes, gradient)
        begin = end


@_compiled
def softmax_losses(
    heads: Matrix, rows: Places, features: Matrix, samples: Places, labels: Vector, losses: Numbers
) -> None:
    """Write the losses of several clients."""
    begin = 0
    for i in range(len(losses)):
        own, phi = heads[rows[i] : rows[i + 1]], features[samples[i] : samples[i + 1]]
        end = begin + len(phi) * len(own)
        losses[i] = softmax_loss(own, phi, labels[begin:end].reshape(len(phi), len(own)))
        begin = end


@_compiled
def largest_eigenvalues(
    features: Matrix, samples: Places, means: Matrix, vector: Matrix, iterations: int, found: Numbers
) -> None:
    """Write the estimates for several clients, and before that the means of their rows where there is room for them."""
    nothing = np.zeros(features.shape[1] + 1, f4)
    for i in range(len(found)):
        phi, mean = features[samples[i] : samples[i + 1]], nothing
        if len(means):
            mean = means[i]
            mean_row(phi, mean)
        found[i] = largest_eigenvalue(phi, mean, vector, iterations)


@_compiled
def _finish(slope: Matrix, n: int) -> None:
    """Turn sums over n samples into means; the last row is minus the sum of the others."""
    last = len(slope) - 1
    for k in range(last):
        for c in range(slope.shape[1]):
            slope[k, c] /= n
            slope[last, c] -= slope[k, c]


@_compiled
def _step(row: Vector, slope: Vector, anchor: Vector, mean: Vector, rate: f4, decay: f4, share: f4) -> None:
    """Move one row of a head along its slope, the pull of a decay included."""
    width = len(row)
    if decay:
        for c in range(width):
            slope[c] += decay * (row[c] - anchor[c])
    if share:
        along = f4(0)
        for c in range(width):
            along += slope[c] * mean[c]
        along *= share
        for c in range(width):
            slope[c] -= along * mean[c]
    for c in range(width):
        row[c] -= rate * slope[c]


@_compiled
def _from_the_last(head: Matrix) -> Matrix:
    """V_k = W_k - W_K."""
    last = len(head) - 1
    difference = np.empty((last, head.shape[1]), f4)
    for k in range(last):
        for c in range(head.shape[1]):
            difference[k, c] = head[k, c] - head[last, c]
    return difference


@_compiled
def _norm(vector: Matrix) -> float:
    total = 0.0
    for c in range(vector.shape[1]):
        total += vector[0, c] * vector[0, c]
    return float(np.sqrt(total))


@_compiled
def _project(rows: Matrix, features: Matrix, start: int, stop: int, z: Matrix) -> None:
    """z[k, i] = rows[k] . phi_i for a block of samples."""
    m = features.shape[1]
    end = len(features) - 1
    for i in range(start, stop, 8):
        p0, p1 = features[i], features[min(i + 1, end)]
        p2, p3 = features[min(i + 2, end)], features[min(i + 3, end)]
        p4, p5 = features[min(i + 4, end)], features[min(i + 5, end)]
        p6, p7 = features[min(i + 6, end)], features[min(i + 7, end)]
        for k in range(len(rows)):
            row = rows[k]
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = row[m]
            for c in range(m):
                w = row[c]
                a0 += w * p0[c]
                a1 += w * p1[c]
                a2 += w * p2[c]
                a3 += w * p3[c]
                a4 += w * p4[c]
                a5 += w * p5[c]
                a6 += w * p6[c]
                a7 += w * p7[c]
            j = i - start
            z[k, j], z[k, j + 1], z[k, j + 2], z[k, j + 3] = a0, a1, a2, a3
            z[k, j + 4], z[k, j + 5], z[k, j + 6], z[k, j + 7] = a4, a5, a6, a7
    for k in range(len(rows)):
        for j in range(stop - start, (stop - start + 7) // 8 * 8):
            z[k, j] = 0


@_compiled
def _gather(r: Matrix, features: Matrix, start: int, stop: int, total: Matrix) -> None:
    """total[k] += sum_i r[k, i] phi_i for a block of samples."""
    m = features.shape[1]
    end = len(features) - 1
    for i in range(start, stop, 8):
        p0, p1 = features[i], features[min(i + 1, end)]
        p2, p3 = features[min(i + 2, end)], features[min(i + 3, end)]
        p4, p5 = features[min(i + 4, end)], features[min(i + 5, end)]
        p6, p7 = features[min(i + 6, end)], features[min(i + 7, end)]
        j = i - start
        for k in range(len(total)):
            row = total[k]
            r0, r1, r2, r3 = r[k, j], r[k, j + 1], r[k, j + 2], r[k, j + 3]
            r4, r5, r6, r7 = r[k, j + 4], r[k, j + 5], r[k, j + 6], r[k, j + 7]
            for c in range(m):
                row[c] += (r0 * p0[c] + r1 * p1[c] + r2 * p2[c] + r3 * p3[c]) + (
                    r4 * p4[c] + r5 * p5[c] + r6 * p6[c] + r7 * p7[c]
                )
            row[m] += (r0 + r1 + r2 + r3) + (r4 + r5 + r6 + r7)


@_compiled
def _softmax_residual(
    z: Matrix, labels: Matrix, start: int, stop: int, work: Matrix, with_loss: bool
) -> float:
    """Turn outputs, as distances from the last one, into softmax(z) - labels, for a block of samples.

    Gives the sum of their losses, if it is wanted.
    """
    n = stop - start
    loss = 0.0
    if with_loss:
        for k in range(len(z)):
            for j in range(n):
                loss -= labels[start + j, k] * z[k, j]
    top, total, power = work[0], work[1], work[2]
    top[:n] = 0
    for k in range(len(z)):
        for j in range(n):
            if z[k, j] > top[j]:
                top[j] = z[k, j]
    total[:n] = -top[:n]
    _exponential(total, n, power)
    for k in range(len(z)):
        for j in range(n):
            z[k, j] -= top[j]
        _exponential(z[k], n, power)
        for j in range(n):
            total[j] += z[k, j]
    if with_loss:
        for j in range(n):
            loss += top[j] + np.log(total[j])
    for k in range(len(z)):
        for j in range(n):
            z[k, j] = z[k, j] / total[j] - labels[start + j, k]
    return loss


@_compiled
def _exponential(x: Vector, n: int, power: Vector) -> None:
    """exp(x) for x <= 0, to float32's last digit or two and 0 below -87, in a form that becomes vector code.

    exp(x) = 2^q exp(x - q log 2), the second factor by the polynomial of the Cephes library; what is not a number
    stays none.
    """
    bits = power.view(np.int32)
    for j in range(n):
        value = x[j]
        vanishes = value < f4(-87)
        if vanishes:
            value = f4(-87)
        q = np.floor(value * f4(1.44269504) + f4(0.5))
        bits[j] = np.int32(0) if vanishes else (np.int32(q) + np.int32(127)) << np.int32(23)
        rest = value - q * f4(0.693359375) + q * f4(2.12194440e-4)
        y = f4(1.9875691500e-4)
        y = y * rest + f4(1.3981999507e-3)
        y = y * rest + f4(8.3334519073e-3)
        y = y * rest + f4(4.1665795894e-2)
        y = y * rest + f4(1.6666665459e-1)
        y = y * rest + f4(5.0000001201e-1)
        x[j] = (y * rest * rest + rest + f4(1)) * power[j]
