"use strict";
// The closed forms that the panels show. Every function is compared with the Python library in
// tests/explorer/test_theory.py, in a real browser. A spectrum s is an array of singular values
// in decreasing order; lam = drop_prob / (1 - drop_prob) is the strength of dropout.

const theory = (() => {
  const sum = (values) => values.reduce((total, v) => total + v, 0);
  const dot = (a, b) => a.reduce((total, v, i) => total + v * b[i], 0);
  const squared = (values) => dot(values, values);
  const descending = (values) => [...values].sort((a, b) => b - a);
  const rank = (values) => values.filter((v) => v > 0).length;

  // ---- Proximal maps -------------------------------------------------------------------------

  // argmin_a |s - a|^2 + weight (sum a)^2: a soft threshold at weight * sum(a).
  function squaredNuclearProx(s, weight) {
    let head = 0;
    let left = 0; // the sum of the shrunk values
    for (let j = 0; j < s.length; j++) {
      if (!(s[j] > weight * (head - j * s[j]))) break;
      head += s[j];
      left = head / (1 + weight * (j + 1));
    }
    return s.map((v) => Math.min(Math.max(v - weight * left, 0), left));
  }

  // argmin_a |s - a|^2 + weight |a|_(k)^2: a = s t / (t + weight), t = clip(alpha s - weight, 0, 1),
  // where alpha makes the shares t sum to k.
  function kSupportProx(s, k, weight) {
    if (weight === 0) return [...s];
    const share = (alpha, v) => Math.min(Math.max(alpha * v - weight, 0), 1);
    if (rank(s) <= k) return s.map((v) => (v > 0 ? v / (1 + weight) : 0));
    const positive = s.filter((v) => v > 0);
    const breaks = positive.flatMap((v) => [weight / v, (1 + weight) / v]).sort((a, b) => a - b);
    const total = (alpha) => sum(positive.map((v) => share(alpha, v)));
    const after = breaks.findIndex((alpha) => total(alpha) >= k);
    const low = breaks[Math.max(after - 1, 0)];
    const middle = (low + breaks[after]) / 2;
    // Between two break points the sum of shares is linear in alpha.
    const saturated = positive.filter((v) => middle * v - weight >= 1);
    const active = positive.filter((v) => middle * v - weight > 0 && middle * v - weight < 1);
    const alpha = active.length
      ? (k - saturated.length + weight * active.length) / sum(active)
      : breaks[after];
    return s.map((v) => (v * share(alpha, v)) / (share(alpha, v) + weight));
  }

  // The squared k-support norm: |a|^2 up to rank k, the squared nuclear norm for k = 1.
  function kSupport(a, k) {
    const s = descending(a);
    if (rank(s) <= k) return squared(s);
    const tail = (from) => sum(s.slice(from).reverse());
    let kept = 0;
    for (let j = 1; j < k; j++) if ((k - j) * s[j - 1] >= tail(j)) kept = j;
    return squared(s.slice(0, kept)) + tail(kept) ** 2 / (k - kept);
  }

  // ---- Two-layer networks --------------------------------------------------------------------

  // Shares phi of the directions that maximize sum_p s_p^2 phi_p / (1 + c phi_p) when the units
  // have the capacities g (1 / variance): phi majorizes g. Pool adjacent violators; each block is
  // filled like water.
  function pooledShares(s, capacities, c) {
    const g = descending(capacities);
    const n = Math.min(s.length, g.length);
    if (n === 0) return [];
    const budget = g.slice(0, n);
    budget[n - 1] += sum(g.slice(n));
    const fill = (from, to) => {
      const values = s.slice(from, to);
      const total = sum(budget.slice(from, to));
      let head = 0;
      let level = Infinity; // 1 / sqrt(theta): phi = (v * level - 1) / c for active values
      for (let j = 0; j < values.length; j++) {
        const next = (c * total + j + 1) / (head + values[j]);
        if (!(values[j] * next > 1)) break;
        head += values[j];
        level = next;
      }
      const phi = values.map((v) => Math.max(v * level - 1, 0) / c);
      return { from, to, phi: head > 0 ? phi : budget.slice(from, to), theta: level ** -2 };
    };
    const blocks = [];
    for (let p = 0; p < n; p++) {
      blocks.push(fill(p, p + 1));
      while (blocks.length > 1 && blocks.at(-2).theta > blocks.at(-1).theta) {
        const last = blocks.pop();
        const merged = fill(blocks.pop().from, last.to);
        blocks.push(merged);
      }
    }
    const phi = blocks.flatMap((block) => block.phi);
    return s.map((_, p) => phi[p] ?? 0);
  }

  // Units with variances `lam` (an array) and one common covariance b > -1:
  // Gamma = diag(lam) + b 11'.
  function unequalUnits(s, lam, b) {
    const c = 1 + b;
    const phi = pooledShares(s, lam.map((v) => 1 / v), c);
    const map = s.map((v, p) => (v * phi[p]) / (1 + c * phi[p]));
    return solution(s, map, squared(s) - dot(s, map));
  }

  function solution(s, map, objective) {
    const loss = sum(s.map((v, p) => (v - map[p]) ** 2));
    return { map, objective, loss, penalty: objective - loss, rank: rank(map) };
  }

  // Orders for which a Hadamard matrix is known; 668 is the first that is open.
  const hadamard = (n) => n === 1 || n === 2 || (n % 4 === 0 && n < 668);

  // The optimal map of a two-layer network. `exact` says whether a network attains the objective.
  function shallow(values, noise, width) {
    const s = descending(values);
    const head = s.slice(0, width);
    const rest = squared(s.slice(width));
    const whole = (found) => ({
      ...found,
      map: s.map((_, p) => found.map[p] ?? 0),
      loss: found.loss + rest,
      objective: found.objective + rest,
    });
    const lam = noise.dropProb / (1 - noise.dropProb);
    if (noise.kind === "DropBlock") {
      const b = noise.blockSize;
      const weight = (lam * b) / width;
      const map = kSupportProx(head, b, weight);
      const loss = sum(head.map((v, p) => (v - map[p]) ** 2));
      const penalty = weight * kSupport(map, b);
      const blocks = width / b;
      const exact = rank(map) <= b || (hadamard(blocks) && blocks >= rank(map));
      return { ...whole({ map, loss, penalty, objective: loss + penalty, rank: rank(map) }), exact };
    }
    if (noise.kind === "KeepExactly") {
      const { variance, common } = keepExactly(noise.keep, width);
      return { ...whole(exchangeable(head, variance, common, width)), exact: true };
    }
    // Dropout, and DropConnect, which has the same objective on uncorrelated inputs.
    const weight = lam / width;
    const map = squaredNuclearProx(head, weight);
    const loss = sum(head.map((v, p) => (v - map[p]) ** 2));
    const penalty = weight * sum(map) ** 2;
    return {
      ...whole({ map, loss, penalty, objective: loss + penalty, rank: rank(map) }),
      exact: true,
    };
  }

  // Gamma = variance I + common 11' when exactly `keep` of `width` units survive.
  function keepExactly(keep, width) {
    if (width === 1) return { variance: 0, common: 0 };
    return {
      variance: (width * (width - keep)) / (keep * (width - 1)),
      common: (width * (keep - 1)) / (keep * (width - 1)) - 1,
    };
  }

  function exchangeable(s, variance, common, width) {
    const c = 1 + common;
    if (c < 1e-12) {
      const map = s.map((v, p) => (p === 0 ? (v * width) / (variance || 1) : 0));
      return solution(s, map, squared(s) - (s[0] ** 2 * width) / (variance || 1));
    }
    const map = squaredNuclearProx(s, variance / (c * width)).map((v) => v / c);
    return solution(s, map, squared(s) - dot(s, map));
  }

  // The smallest drop probability at which every optimum has at most this rank: dropout only.
  function dropProbForRank(values, width, wanted) {
    const s = descending(values);
    if (wanted >= rank(s.slice(0, width))) return 0;
    const excess = sum(s.slice(0, wanted).map((v) => v - s[wanted]));
    if (excess <= 0) return null; // tied values vanish together
    const lam = (s[wanted] / excess) * width;
    return lam / (1 + lam);
  }

  // ---- Deep networks -------------------------------------------------------------------------

  // Maximize sum_p w_p x_p / (x_p + beta) over shares x >= 0 that sum to 1.
  function waterfill(w, beta) {
    if (beta === 0) return w.map((v) => v / sum(w)); // any positive shares do
    const roots = w.map((v) => Math.sqrt(Math.max(v, 0)));
    const map = squaredNuclearProx(descending(roots), beta);
    const level = beta * sum(map);
    return roots.map((v) => (v > level ? beta * (v / level - 1) : 0));
  }

  // Gain of the shares (layers x directions): sum_p s_p^2 prod_l x_lp / (x_lp + beta_l).
  function gains(s, shares, betas) {
    return s.map((v, p) =>
      betas.reduce((g, beta, l) => {
        const x = shares[l][p];
        return x > 0 ? (g * x) / (x + beta) : 0;
      }, v * v),
    );
  }

  // Best shares on the first q directions, by exact maximization over one layer at a time.
  function alternate(s, betas, q) {
    const shares = betas.map(() => s.map((_, p) => (p < q ? 1 / q : 0)));
    let value = sum(gains(s, shares, betas));
    for (let round = 0; round < 20000; round++) {
      for (let l = 0; l < betas.length; l++) {
        const w = gains(s, shares, betas).map((g, p) => {
          const x = shares[l][p];
          return x > 0 ? (g * (x + betas[l])) / x : 0;
        });
        shares[l] = waterfill(w, betas[l]);
      }
      const next = sum(gains(s, shares, betas));
      if (next - value <= 1e-16 * next) return { shares, value: next };
      value = next;
    }
    return { shares, value };
  }

  // An upper bound on the gain with q directions, q >= 2, from multipliers mu of the layers:
  // sum mu + sum_p max over the region of concavity of s_p^2 F(x) - mu.x.
  function dualBound(s, betas, q, mu) {
    let total = sum(mu);
    for (let p = 0; p < q; p++) total += directionDual(s[p] ** 2, betas, mu);
    return total;
  }

  // max of s2 F(x) - mu.x at the upper stationary point x_l (x_l + beta_l) = w beta_l / mu_l, with
  // w = s2 F(x): the larger root of a concave function of log w, by Newton from the right.
  function directionDual(s2, betas, mu) {
    const place = (w) =>
      betas.map((beta, l) => {
        const product = (w * beta) / mu[l];
        return (2 * product) / (beta + Math.sqrt(beta * beta + 4 * product));
      });
    const value = (x) => betas.reduce((g, beta, l) => (g * x[l]) / (x[l] + beta), s2);
    let w = s2;
    for (let round = 0; round < 200; round++) {
      const x = place(w);
      const psi = Math.log(value(x) / w);
      const slope = sum(betas.map((beta, l) => beta / (beta + 2 * x[l]))) - 1;
      if (slope >= 0) return boundaryDual(s2, betas, mu);
      const step = psi / slope;
      w *= Math.exp(-step);
      if (Math.abs(step) < 1e-15) break;
    }
    const x = place(w);
    return value(x) - dot(mu, x);
  }

  // Without a stationary point the maximum over the region is on its boundary. With equal layers
  // that is where x_l = beta (k - 1) / 2; otherwise 0, the value of leaving the direction out, is
  // an upper bound.
  function boundaryDual(s2, betas, mu) {
    const k = betas.length;
    const equal = betas.every((beta, l) => beta === betas[0] && Math.abs(mu[l] / mu[0] - 1) < 1e-9);
    if (!equal) return 0;
    const x = (betas[0] * (k - 1)) / 2;
    return s2 * (x / (x + betas[0])) ** k - sum(mu) * x;
  }

  // The smallest dual bound over multiples of mu; the bound is convex in the multiple.
  function bestDualBound(s, betas, q, mu) {
    const at = (t) => dualBound(s, betas, q, mu.map((m) => m * Math.exp(t)));
    let [low, high] = [-3, 3];
    let best = at(0);
    for (let i = 0; i < 80; i++) {
      const [left, right] = [low + 0.382 * (high - low), low + 0.618 * (high - low)];
      const [a, b] = [at(left), at(right)];
      best = Math.min(best, a, b);
      if (a < b) high = right;
      else low = left;
    }
    return best;
  }

  // The optimal deep linear network with dropout of strength lam_l on hidden layer l.
  // `bound` is a lower bound on the objective of every network of these widths.
  function deep(values, lams, widths) {
    const s = descending(values);
    const r = Math.min(s.length, ...widths);
    const head = s.slice(0, r).filter((v) => v > 0);
    const betas = lams.map((lam, l) => lam / widths[l]);
    if (head.length === 0 || Math.max(...betas) === 0) {
      const map = s.map((v, p) => (p < r ? v : 0));
      const objective = squared(s.slice(r));
      return { map, objective, bound: objective, rank: rank(map), byRank: [], shares: [] };
    }
    const noisy = betas.filter((beta) => beta > 0);
    const byRank = [];
    let best = null;
    let upper = 0;
    for (let q = 1; q <= head.length; q++) {
      const found = alternate(head, noisy, q);
      byRank.push(squared(s) - found.value);
      const active = found.shares[0].filter((x) => x > 1e-12).length;
      if (best === null || found.value > best.value * (1 + 1e-14)) best = { ...found, active };
      let limit = found.value;
      if (q > 1 && noisy.length > 1) {
        const g = gains(head, found.shares, noisy);
        const mu = noisy.map((beta, l) => (g[0] * beta) / (found.shares[l][0] * (found.shares[l][0] + beta)));
        limit = bestDualBound(head, noisy, q, mu);
      }
      upper = Math.max(upper, limit);
    }
    const factor = gains(head, best.shares, noisy).map((g, p) => g / head[p] ** 2);
    const map = s.map((v, p) => (p < factor.length ? v * factor[p] : 0));
    return {
      map,
      shares: best.shares,
      objective: squared(s) - best.value,
      bound: squared(s) - Math.max(upper, best.value),
      rank: best.active,
      byRank,
    };
  }

  // s_2 / s_1 above which rank two beats rank one, with k equal noisy layers; null where never.
  function rankJump(beta, k) {
    if (k < 2) return beta / (1 + beta);
    if (beta >= (2 ** (1 / k) - 1) / (2 - 2 ** (1 / k))) return null;
    const f = (x) =>
      (k - 1) * Math.log(x) +
      Math.log(x * x + (1 - x) ** 2 + beta) +
      k * Math.log1p(beta) -
      (k + 1) * Math.log(x + beta);
    // x = 1 is a root too, of no interest: look for the change of sign to the left of it.
    const sign = Math.sign(f(1 - 1e-7));
    let high = 1 - 1e-7;
    let low = high;
    while (low > 0.5 && Math.sign(f(low)) === sign) {
      high = low;
      low = Math.max(0.5, 1 - 1.02 * (1 - low));
    }
    for (let i = 0; i < 100; i++) {
      const middle = (low + high) / 2;
      if (Math.sign(f(middle)) === sign) high = middle;
      else low = middle;
    }
    const x = (low + high) / 2;
    return (x / (1 - x)) ** ((k - 1) / 2) * ((1 - x + beta) / (x + beta)) ** ((k + 1) / 2);
  }

  // ---- Any covariance ------------------------------------------------------------------------

  const multiply = (A, B) => A.map((row) => B[0].map((_, j) => sum(row.map((v, k) => v * B[k][j]))));
  const transpose = (A) => A[0].map((_, j) => A.map((row) => row[j]));

  // Eigenvalues of a symmetric matrix, increasing, by Jacobi rotations.
  function eigenvalues(matrix) {
    const A = matrix.map((row) => [...row]);
    const n = A.length;
    for (let sweep = 0; sweep < 100; sweep++) {
      let off = 0;
      for (let i = 0; i < n; i++) for (let j = 0; j < i; j++) off += A[i][j] ** 2;
      if (off <= 1e-32 * sum(A.map(squared))) break;
      for (let i = 0; i < n; i++) {
        for (let j = i + 1; j < n; j++) {
          if (A[i][j] === 0) continue;
          const tau = (A[j][j] - A[i][i]) / (2 * A[i][j]);
          const t = (tau >= 0 ? 1 : -1) / (Math.abs(tau) + Math.hypot(tau, 1));
          const c = 1 / Math.hypot(t, 1);
          for (let k = 0; k < n; k++) {
            const [x, y] = [A[k][i], A[k][j]];
            A[k][i] = c * (x - t * y);
            A[k][j] = c * (t * x + y);
          }
          for (let k = 0; k < n; k++) {
            const [x, y] = [A[i][k], A[j][k]];
            A[i][k] = c * (x - t * y);
            A[j][k] = c * (t * x + y);
          }
        }
      }
    }
    return A.map((row, i) => row[i]).sort((a, b) => a - b);
  }

  function singularValues(A) {
    const small = A.length <= A[0].length ? multiply(A, transpose(A)) : multiply(transpose(A), A);
    return eigenvalues(small).reverse().map((v) => Math.sqrt(Math.max(v, 0)));
  }

  // Solve K X = B for a symmetric positive definite K, by Cholesky.
  function solve(K, B) {
    const n = K.length;
    const L = K.map(() => new Array(n).fill(0));
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) {
        let v = K[i][j];
        for (let k = 0; k < j; k++) v -= L[i][k] * L[j][k];
        L[i][j] = i === j ? Math.sqrt(Math.max(v, 1e-300)) : v / L[j][j];
      }
    }
    const X = B.map((row) => [...row]);
    for (let column = 0; column < B[0].length; column++) {
      for (let i = 0; i < n; i++) {
        for (let k = 0; k < i; k++) X[i][column] -= L[i][k] * X[k][column];
        X[i][column] /= L[i][i];
      }
      for (let i = n - 1; i >= 0; i--) {
        for (let k = i + 1; k < n; k++) X[i][column] -= L[k][i] * X[k][column];
        X[i][column] /= L[i][i];
      }
    }
    return X;
  }

  // A generator of numbers in [0, 1) that repeats for a seed (mulberry32).
  function random(seed) {
    let state = seed >>> 0;
    const uniform = () => {
      state = (state + 0x6d2b79f5) | 0;
      let t = Math.imul(state ^ (state >>> 15), 1 | state);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
    const normal = () =>
      Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    return { uniform, normal };
  }

  // Expected objective of (U, V): |S - U V'|^2 + sum_ij Gamma_ij (u_i.u_j) (v_i.v_j), S = diag(s).
  function objective(s, U, V, Gamma) {
    const uu = multiply(transpose(U), U);
    const vv = multiply(transpose(V), V);
    const A = multiply(U, transpose(V));
    let total = 0;
    A.forEach((row, i) => row.forEach((v, j) => (total += ((i === j ? s[i] : 0) - v) ** 2)));
    Gamma.forEach((row, i) => row.forEach((v, j) => (total += v * uu[i][j] * vv[i][j])));
    return total;
  }

  // The best network that alternation over U and V finds from a few starts: each half is a linear
  // system, because the objective is quadratic in U for fixed V.
  function searchNetwork(s, Gamma, { starts = 6, rounds = 400, seed = 0 } = {}) {
    const d = Gamma.length;
    const n = s.length;
    const half = (W, transposed) => {
      const gram = multiply(transpose(W), W);
      const K = Gamma.map((row, i) => row.map((v, j) => (v + 1) * gram[i][j]));
      const scale = sum(K.map((row, i) => row[i])) / d || 1;
      K.forEach((row, i) => (row[i] += 1e-13 * scale));
      const right = transpose(W.map((row, p) => row.map((v) => v * s[p])));
      return transpose(solve(K, right));
    };
    let best = null;
    const rng = random(seed);
    for (let start = 0; start < starts; start++) {
      let U = s.map((v) => Gamma.map(() => Math.sqrt(v / d) * rng.normal()));
      let V = half(U);
      let value = objective(s, U, V, Gamma);
      for (let round = 0; round < rounds; round++) {
        U = half(V);
        V = half(U);
        const next = objective(s, U, V, Gamma);
        if (value - next <= 1e-13 * value) break;
        value = next;
      }
      if (best === null || value < best.objective) best = { U, V, objective: value };
    }
    best.map = singularValues(multiply(best.U, transpose(best.V))).slice(0, n);
    return best;
  }

  // A lower bound for any covariance: Gamma - delta I - gamma 11' is positive semi-definite, so no
  // network is below the exact optimum for delta I + gamma 11'. gamma is searched, delta follows.
  function covarianceBound(values, Gamma) {
    const d = Gamma.length;
    const s = descending(values);
    const head = s.slice(0, d);
    const rest = squared(s.slice(d));
    const at = (gamma) => {
      const shifted = Gamma.map((row) => row.map((v) => v - gamma));
      const delta = Math.max(eigenvalues(shifted)[0], 0);
      if (eigenvalues(shifted)[0] < -1e-12) return 0;
      return exchangeable(head, delta, gamma, d).objective;
    };
    let best = Math.max(0, at(0));
    // gamma > -1 keeps E[r r'] above 0; beyond the mean covariance nothing is left for delta.
    const top = sum(Gamma.map(sum)) / d ** 2;
    for (let i = 0; i <= 60; i++) best = Math.max(best, at(-0.999 + ((top + 0.999) * i) / 60));
    return best + rest;
  }

  // What is known of a two-layer network with this covariance: exact, or a bound and a network.
  function ownNoise(values, Gamma) {
    const d = Gamma.length;
    const s = descending(values);
    const head = s.slice(0, d);
    const rest = squared(s.slice(d));
    const b = d > 1 ? Gamma[0][1] : 0;
    const flat = Gamma.every((row, i) => row.every((v, j) => i === j || Math.abs(v - b) < 1e-12));
    const lam = Gamma.map((row, i) => row[i] - b);
    if (flat && Math.min(...lam) > 1e-9 && b > -1 + 1e-9) {
      const found = unequalUnits(head, lam, b);
      const map = s.map((_, p) => found.map[p] ?? 0);
      return { exact: true, map, objective: found.objective + rest, bound: found.objective + rest };
    }
    const found = searchNetwork(head, Gamma);
    const bound = Math.min(covarianceBound(s, Gamma), found.objective + rest);
    const gap = found.objective + rest - bound;
    return {
      exact: gap <= 1e-9 * squared(s),
      map: s.map((_, p) => found.map[p] ?? 0),
      objective: found.objective + rest,
      bound,
    };
  }

  // ---- Training ------------------------------------------------------------------------------

  // One step of SGD with sampled dropout on |S - U diag(r) V'|^2, S = diag(s); changes U and V.
  function trainingStep(s, U, V, dropProb, rate, uniform) {
    const d = U[0].length;
    const r = Array.from({ length: d }, () => (uniform() < dropProb ? 0 : 1 / (1 - dropProb)));
    const n = s.length;
    const G = Array.from({ length: n }, () => new Float64Array(n));
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        let v = i === j ? -s[i] : 0;
        for (let k = 0; k < d; k++) if (r[k]) v += U[i][k] * r[k] * V[j][k];
        G[i][j] = v;
      }
    }
    for (let k = 0; k < d; k++) {
      if (!r[k]) continue;
      const u = U.map((row) => row[k]);
      for (let i = 0; i < n; i++) {
        let change = 0;
        for (let j = 0; j < n; j++) change += G[i][j] * V[j][k];
        U[i][k] -= 2 * rate * r[k] * change;
      }
      for (let j = 0; j < n; j++) {
        let change = 0;
        for (let i = 0; i < n; i++) change += G[i][j] * u[i];
        V[j][k] -= 2 * rate * r[k] * change;
      }
    }
  }

  // The landscape of two tied units with target m: f(u) = (m - |u|^2)^2 + lam sum u_i^4.
  const landscape = (m, lam, u) =>
    (m - u[0] ** 2 - u[1] ** 2) ** 2 + lam * (u[0] ** 4 + u[1] ** 4);

  function criticalPoints(m, lam) {
    const both = Math.sqrt(m / (2 + lam));
    const one = Math.sqrt(m / (1 + lam));
    const kind = lam > 0 ? "strict saddle" : "minimum";
    return [
      { u: [both, both], objective: (m * m * lam) / (2 + lam), kind: "minimum" },
      { u: [one, 0], objective: (m * m * lam) / (1 + lam), kind },
      { u: [0, 0], objective: m * m, kind: "strict saddle" },
    ];
  }

  // One step of sampled dropout on the two tied units.
  function landscapeStep(m, dropProb, u, rate, uniform) {
    const r = u.map(() => (uniform() < dropProb ? 0 : 1 / (1 - dropProb)));
    const residual = m - r[0] * u[0] ** 2 - r[1] * u[1] ** 2;
    return u.map((v, i) => v + 4 * rate * residual * r[i] * v);
  }

  return {
    alternate,
    covarianceBound,
    criticalPoints,
    deep,
    descending,
    dropProbForRank,
    eigenvalues,
    kSupport,
    kSupportProx,
    keepExactly,
    landscape,
    landscapeStep,
    multiply,
    objective,
    ownNoise,
    random,
    rankJump,
    searchNetwork,
    shallow,
    singularValues,
    squaredNuclearProx,
    trainingStep,
    transpose,
    unequalUnits,
    waterfill,
  };
})();
