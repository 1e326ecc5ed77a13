"use strict";
// The panels. A panel has fields, a `view(values)` that returns numbers, figures and a verdict,
// and `python(values)`, a few lines that compute the same with the library. Panels with a `start`
// also run: `start(values)` returns a state, `advance(state)` moves it on for one frame.

const panels = (() => {
  const show = (v) => (Number.isFinite(v) ? String(+v.toPrecision(6)) : "none");
  const python = (values) => `[${values.map((v) => +v.toPrecision(12)).join(", ")}]`;
  const indices = (values) => values.map((_, i) => i + 1);
  const range = (from, to, count) =>
    Array.from({ length: count }, (_, i) => from + ((to - from) * i) / (count - 1));

  const number = (name, label, value, low, high, step) => ({
    name, label, kind: "number", value, low, high, step,
  });
  const spectrumField = (value) => ({
    name: "spectrum",
    label: "Singular values of the target",
    kind: "numbers",
    value,
    hint: "Type up to 40 numbers, or drag the bars.",
  });

  const EXACT = "Exact: a network of this width attains the objective, and none is below it.";
  const BOUND = "A lower bound: no network is below this objective. It is not known here whether one attains it.";

  // Bars of the target with those of the optimum; dragging a bar changes the field `spectrum`.
  function spectrumFigure(values, s, map, name) {
    const top = 1.08 * Math.max(...s);
    return {
      name: "spectrum",
      caption: `Singular values of the target and of the ${name}.`,
      drag: "spectrum",
      x: { label: "index", range: [0.4, s.length + 0.6], ticks: s.length <= 20 ? indices(s) : undefined },
      y: { label: "singular value", range: [0, top] },
      marks: [
        { kind: "bars", x: indices(s), y: s, color: "pale", name: "target" },
        { kind: "bars", x: indices(s), y: map, color: "blue", name, half: 0.24 },
      ],
    };
  }

  // ---- Shrinkage -----------------------------------------------------------------------------

  const noiseOf = (v, dropProb = v.dropProb) => ({
    kind: v.noise, dropProb, blockSize: v.blockSize, keep: v.keep,
  });
  const shrinkage = {
    name: "shrinkage",
    title: "Shrinkage",
    intro:
      "Noise on the hidden units of a linear network acts as a penalty on the singular values of " +
      "its map. All of them shrink and the small ones vanish: dropout chooses a rank.",
    docs: "theory/optima.html",
    fields: [
      spectrumField("5 4 3 2.5 2 1.5 1 0.5"),
      {
        name: "noise", label: "Noise", kind: "choice", value: "Dropout",
        options: ["Dropout", "DropConnect", "DropBlock", "KeepExactly"],
      },
      { ...number("dropProb", "Drop probability", 0.5, 0, 0.99, 0.01), when: (v) => v.noise !== "KeepExactly" },
      number("width", "Width (hidden units)", 8, 1, 64, 1),
      { ...number("blockSize", "Block size", 2, 1, 32, 1), when: (v) => v.noise === "DropBlock" },
      { ...number("keep", "Units that survive", 4, 1, 64, 1), when: (v) => v.noise === "KeepExactly" },
    ],
    check(v) {
      if (v.noise === "DropBlock" && v.width % v.blockSize) {
        return { blockSize: `The block size must divide the width, ${v.width}.` };
      }
      if (v.noise === "KeepExactly" && v.keep > v.width) {
        return { keep: `At most ${v.width} units can survive.` };
      }
      return {};
    },
    view(v) {
      const s = theory.descending(v.spectrum);
      const here = theory.shallow(s, noiseOf(v), v.width);
      const result = {
        verdict: here.exact ? EXACT : BOUND,
        exact: here.exact,
        numbers: [
          [here.exact ? "Rank of the optimum" : "Rank of the bound's spectrum", here.rank],
          ["Objective", here.objective],
          ["Loss", here.loss],
          ["Penalty", here.penalty],
        ],
        figures: [spectrumFigure(v, s, here.map, here.exact ? "optimum" : "bound")],
      };
      if (v.noise === "KeepExactly") return result;
      const probs = range(0, 0.975, 79);
      const found = probs.map((p) => theory.shallow(s, noiseOf(v, p), v.width));
      const paths = s.map((_, p) => ({
        kind: "line", x: probs, y: found.map((f) => f.map[p]), color: "blue", width: 1.3,
        name: p ? undefined : "singular values",
      }));
      const marks = [...paths, { kind: "vertical", at: v.dropProb, name: "here", color: "ink" }];
      result.figures.push({
        name: "path",
        caption: "Each singular value against the drop probability. Where a line reaches zero, the rank falls by one.",
        x: { label: "drop probability", range: [0, 1] },
        y: { label: "singular value", range: [0, 1.05 * s[0]] },
        marks,
      });
      const losses = found.map((f) => f.loss);
      const objectives = found.map((f) => f.objective);
      result.figures.push({
        name: "split",
        caption: "The least objective at each drop probability, and the part of it that is loss. The rest is the penalty.",
        x: { label: "drop probability", range: [0, 1] },
        y: { label: "objective", range: [0, 1.05 * Math.max(...objectives, 1e-9)] },
        marks: [
          { kind: "line", x: probs, y: objectives, color: "orange", name: "objective" },
          { kind: "line", x: probs, y: losses, color: "green", name: "loss", dash: "6 3" },
          { kind: "vertical", at: v.dropProb, name: "here", color: "ink" },
        ],
      });
      return result;
    },
    python(v) {
      const noise = {
        Dropout: `overt.Dropout(${v.dropProb})`,
        DropConnect: `overt.DropConnect(${v.dropProb})`,
        DropBlock: `overt.DropBlock(${v.dropProb}, ${v.blockSize})`,
        KeepExactly: `overt.KeepExactly(${v.keep})`,
      }[v.noise];
      return [
        "import numpy as np",
        "import overt",
        `target = np.diag(${python(theory.descending(v.spectrum))})`,
        `best = overt.LinearNetwork(target, width=${v.width}, noise=${noise}).solve()`,
        "print(best.status, best.rank, best.objective, best.certificate.lower_bound)",
      ];
    },
  };

  // ---- Landscape -----------------------------------------------------------------------------

  const FRAMES = 400;
  const landscape = {
    name: "landscape",
    title: "Landscape",
    intro:
      "With one input and two tied hidden units the objective is f(u) = (m − u₁² − u₂²)² + λ (u₁⁴ + u₂⁴). " +
      "Dropout leaves minima only where both units do the same work. Click the map to start a run of " +
      "sampled dropout at that point.",
    docs: "theory/landscape.html",
    fields: [
      number("target", "Target m", 2, 0.1, 10, 0.1),
      number("dropProb", "Drop probability", 0.5, 0, 0.95, 0.01),
      number("rate", "Learning rate", 0.004, 0.0001, 0.05, 0.0001),
      number("u1", "Start u₁", 0.2, -4, 4, 0.01),
      number("u2", "Start u₂", 1.5, -4, 4, 0.01),
      number("seed", "Seed", 0, 0, 999999, 1),
    ],
    autostart: true,
    click: (v, x, y) => ({ ...v, u1: +x.toFixed(3), u2: +y.toFixed(3) }),
    start: (v) => ({ values: v, rng: theory.random(v.seed), trail: [[v.u1, v.u2]], frame: 0 }),
    advance(state) {
      const v = state.values;
      let u = state.trail.at(-1);
      for (let i = 0; i < 10; i++) {
        u = theory.landscapeStep(v.target, v.dropProb, u, v.rate * (1 - state.frame / FRAMES), state.rng.uniform);
      }
      state.frame += 1;
      state.trail.push(u);
      return state.frame < FRAMES && u.every(Number.isFinite);
    },
    view(v, state) {
      const lam = v.dropProb / (1 - v.dropProb);
      const extent = 1.35 * Math.sqrt(v.target);
      const axis = range(-extent, extent, 121);
      const height = axis.map((y) => axis.map((x) => Math.sqrt(theory.landscape(v.target, lam, [x, y]))));
      const bottom = Math.sqrt(theory.criticalPoints(v.target, lam)[0].objective);
      const top = bottom + 1.3 * (v.target - bottom); // the origin has height m
      const marks = [{
        kind: "image", href: plot.heatmap(height, bottom, top), extent: [-extent, extent, -extent, extent],
      }];
      const points = theory.criticalPoints(v.target, lam);
      const signs = [[1, 1], [1, -1], [-1, 1], [-1, -1]];
      const around = ({ u }) => signs.flatMap(([a, b]) => [[a * u[0], b * u[1]], [a * u[1], b * u[0]]]);
      for (const point of points) {
        const places = around(point);
        const minimum = point.kind === "minimum";
        marks.push({
          kind: "points", x: places.map((p) => p[0]), y: places.map((p) => p[1]),
          color: minimum ? "#ffffff" : "#1c2733", size: minimum ? 7 : 5,
        });
      }
      const trail = state ? state.trail : [[v.u1, v.u2]];
      marks.push({ kind: "line", x: trail.map((p) => p[0]), y: trail.map((p) => p[1]), color: "#ff8a5c", width: 1.6 });
      const end = trail.at(-1);
      marks.push({ kind: "points", x: [end[0]], y: [end[1]], color: "#ff5a1f", size: 8 });
      const balanced = points[0];
      return {
        verdict: saddleRemark(v) || landscapeRemark(lam),
        exact: true,
        numbers: [
          ["Least objective", balanced.objective],
          ["At |u₁| = |u₂| =", balanced.u[0]],
          ["Noise strength λ", lam],
          ["Objective of the run", theory.landscape(v.target, lam, end)],
        ],
        figures: [{
          name: "map",
          caption: "The square root of the objective over both weights: white dots are minima, dark ones saddles; the line is the run.",
          height: 642, click: true,
          x: { label: "u₁", range: [-extent, extent] },
          y: { label: "u₂", range: [-extent, extent] },
          marks,
        }],
      };
    },
    python: (v) => [
      "import numpy as np",
      "import overt",
      `net = overt.TiedAutoencoder(np.array([[${v.target}]]), width=2, noise=overt.Dropout(${v.dropProb}))`,
      "print([(p.kind, p.objective, p.U) for p in net.landscape().points])",
      `run = net.train(4000, ${v.rate}, [${v.seed}], init=np.array([[${v.u1}, ${v.u2}]]))`,
    ],
  };

  const landscapeRemark = (lam) =>
    lam > 0
      ? "Exact: the minimum is known in closed form; every other critical point is a strict saddle."
      : "Exact: without noise every point of the circle |u|² = m is a minimum.";

  // Sampled dropout multiplies a weight of 0 by something: it stays 0 for ever.
  function saddleRemark(v) {
    if (v.u1 !== 0 && v.u2 !== 0) return "";
    return (
      "This start has a weight of exactly 0. Every sampled gradient is a multiple of the weight itself, " +
      "so it stays 0 and the run can only reach a saddle. Start anywhere else and it leaves."
    );
  }

  // ---- Deep networks -------------------------------------------------------------------------

  const deep = {
    name: "deep",
    title: "Deep networks",
    intro:
      "With dropout on two or more hidden layers the optimal rank does not shrink smoothly, it jumps: " +
      "rank one and rank two are both local minima, and the better one changes at a ratio s₂/s₁ that is known in closed form.",
    docs: "theory/index.html",
    fields: [
      spectrumField("1 0.7 0.4"),
      number("width", "Width of each hidden layer", 4, 1, 64, 1),
      number("depth", "Hidden layers", 2, 1, 6, 1),
      number("dropProb", "Drop probability", 0.4, 0, 0.9, 0.01),
    ],
    view(v) {
      const s = theory.descending(v.spectrum);
      const lam = v.dropProb / (1 - v.dropProb);
      const layers = Array.from({ length: v.depth }, () => lam);
      const widths = layers.map(() => v.width);
      const best = theory.deep(s, layers, widths);
      const gap = best.objective - best.bound;
      const exact = gap <= 1e-9 * best.objective || best.objective < 1e-12;
      const jump = theory.rankJump(lam / v.width, v.depth);
      const ratios = range(0.005, 1, 200);
      const curve = ratios.map((ratio) => theory.deep([1, ratio], layers, widths));
      const figures = [
        spectrumFigure(v, s, best.map, "optimum"),
        {
          name: "jump",
          caption: "The target diag(1, s₂/s₁): the second singular value of the optimum, zero until the jump.",
          x: { label: "s₂ / s₁ of the target", range: [0, 1] },
          y: { label: "second singular value of the optimum", range: [0, 1] },
          marks: [
            { kind: "line", x: ratios, y: curve.map((c) => (c.rank > 1 ? c.map[1] : 0)), color: "blue", name: "optimum" },
            { kind: "line", x: [0, 1], y: [0, 1], color: "quiet", dash: "2 4", width: 1, name: "no noise" },
            ...(jump !== null && v.width > 1
              ? [{ kind: "vertical", at: jump, name: "jump", color: "orange" }]
              : []),
          ],
        },
        phaseDiagram(v),
      ];
      return {
        verdict: exact
          ? "Exact: shares and weights are explicit, and a dual bound shows that no network of these widths is better."
          : `Best value found; no network is below ${show(best.bound)}.`,
        exact,
        numbers: [
          ["Rank of the optimum", best.rank],
          ["Objective", best.objective],
          ["Lower bound", best.bound],
          ["Rank 1 to 2 at s₂/s₁", v.width < 2 || jump === null ? "never" : jump],
          ...best.byRank.slice(0, 4).map((value, q) => [`Best with rank at most ${q + 1}`, value]),
        ],
        figures,
      };
    },
    python: (v) => [
      "import numpy as np",
      "import overt",
      `target = np.diag(${python(theory.descending(v.spectrum))})`,
      `net = overt.DeepLinearNetwork(target, widths=(${`${v.width}, `.repeat(v.depth)}), drop_prob=${v.dropProb})`,
      "best = net.solve()  # .rank .objective .shares .weights .certificate",
    ],
  };

  // Where the jump lies as the drop probability grows, for one to six hidden layers.
  function phaseDiagram(v) {
    const probs = range(0.005, 0.98, 196);
    const colors = ["green", "blue", "orange", "quiet", "ink", "pale"];
    const depths = [1, 2, 3, 4, 5, 6];
    return {
      name: "phase",
      caption: "Below its line the optimum has rank one, above it rank two or more. Deeper networks jump later; a line that ends means rank one for every target.",
      x: { label: "drop probability", range: [0, 1] },
      y: { label: "s₂ / s₁ at the jump", range: [0, 1] },
      marks: [
        ...depths.map((k) => ({
          kind: "line", color: colors[k - 1], width: k === v.depth ? 3.5 : 1.5,
          name: k === 1 ? "1 layer" : String(k),
          x: probs, y: probs.map((p) => theory.rankJump(p / (1 - p) / v.width, k) ?? NaN),
        })),
        { kind: "vertical", at: v.dropProb, name: "here", color: "ink" },
      ],
    };
  }

  // ---- Own noise -----------------------------------------------------------------------------

  function parseMatrix(text) {
    const rows = text.trim().split(/[;\n]+/).map((row) => row.trim().split(/[\s,]+/).map(Number));
    const size = rows.length;
    if (rows.some((row) => row.length !== size || row.some((v) => !Number.isFinite(v)))) {
      return { error: `Give ${size} rows of ${size} numbers: a square matrix.` };
    }
    if (size > 16) return { error: "At most 16 units." };
    if (rows.some((row, i) => row.some((v, j) => Math.abs(v - rows[j][i]) > 1e-9))) {
      return { error: "A covariance is symmetric; this matrix is not." };
    }
    if (theory.eigenvalues(rows)[0] < -1e-9) {
      return { error: `A covariance has no negative eigenvalue; this one has ${show(theory.eigenvalues(rows)[0])}.` };
    }
    return { matrix: rows };
  }

  const own = {
    name: "own",
    title: "Own noise",
    intro:
      "Any noise on the hidden units enters only through the covariance of its masks (mean one). " +
      "Paste one: where it has a closed form you see the optimum, otherwise a network and a bound that encloses every network.",
    docs: "howto/own_noise.html",
    fields: [
      spectrumField("3 2 1"),
      {
        name: "covariance", label: "Covariance of the masks", kind: "matrix",
        value: "1 0.2 0.2 0.2\n0.2 0.5 0.2 0.2\n0.2 0.2 2 0.2\n0.2 0.2 0.2 0.8",
        hint: "One row per line, at most 16 units.",
      },
    ],
    check: (v) => {
      const { error } = parseMatrix(v.covariance);
      return error ? { covariance: error } : {};
    },
    view(v) {
      const Gamma = parseMatrix(v.covariance).matrix;
      const s = theory.descending(v.spectrum);
      const found = theory.ownNoise(s, Gamma);
      return {
        verdict: found.exact
          ? EXACT
          : "Not known exactly here: the network shown was found by search, and the bound holds for every network. " +
            "The Python library has a tighter bound.",
        exact: found.exact,
        numbers: [
          [found.exact ? "Objective of the optimum" : "Objective of the network", found.objective],
          ["No network is below", found.bound],
          ["Gap", found.objective - found.bound],
        ],
        figures: [spectrumFigure(v, s, found.map, found.exact ? "optimum" : "network")],
      };
    },
    python(v) {
      const rows = parseMatrix(v.covariance).matrix.map(python).join(", ");
      const d = parseMatrix(v.covariance).matrix.length;
      return [
        "import numpy as np",
        "import overt",
        `noise = overt.CovarianceNoise(np.ones(${d}), np.array([${rows}]))`,
        `net = overt.LinearNetwork(np.diag(${python(theory.descending(v.spectrum))}), width=${d}, noise=noise)`,
        "print(net.solve())",
      ];
    },
  };

  // ---- Training ------------------------------------------------------------------------------

  const TRAINING_FRAMES = 150;
  const training = {
    name: "training",
    title: "Training",
    intro:
      "SGD with sampled dropout on a two-layer network, beside the optimum that theory knows in advance: " +
      "the objective comes down on the exact line, and the singular values settle where the closed form says.",
    docs: "tutorials/index.html",
    fields: [
      spectrumField("3 2 1.2 0.6"),
      number("width", "Width (hidden units)", 8, 1, 32, 1),
      number("dropProb", "Drop probability", 0.5, 0, 0.9, 0.01),
      number("rate", "Learning rate", 0.005, 0.0001, 0.1, 0.0001),
      number("steps", "Steps", 15000, 150, 300000, 150),
      number("seed", "Seed", 0, 0, 999999, 1),
    ],
    autostart: true,
    start(v) {
      const s = theory.descending(v.spectrum);
      const rng = theory.random(v.seed);
      const weights = () => s.map(() => Array.from({ length: v.width }, () => 0.3 * rng.normal()));
      const lam = v.dropProb / (1 - v.dropProb);
      const Gamma = Array.from({ length: v.width }, (_, i) =>
        Array.from({ length: v.width }, (__, j) => (i === j ? lam : 0)),
      );
      const state = { s, Gamma, values: v, rng, U: weights(), V: weights(), step: 0, history: [] };
      record(state);
      return state;
    },
    advance(state) {
      const { dropProb, rate, steps } = state.values;
      const count = Math.ceil(steps / TRAINING_FRAMES);
      for (let i = 0; i < count && state.step < steps; i++) {
        // The rate falls as 1 / (1 + t), so that the noise of the steps dies out.
        const now = rate / (1 + (9 * state.step) / steps);
        theory.trainingStep(state.s, state.U, state.V, dropProb, now, state.rng.uniform);
        state.step += 1;
      }
      record(state);
      return state.step < steps && Number.isFinite(state.history.at(-1).objective);
    },
    view(v, state) {
      const s = theory.descending(v.spectrum);
      const best = theory.shallow(s, { kind: "Dropout", dropProb: v.dropProb }, v.width);
      const history = state ? state.history : [];
      const last = history.at(-1);
      const finite = history.filter((h) => Number.isFinite(h.objective));
      const steps = finite.map((h) => Math.max(h.step, 1));
      const highest = Math.max(best.objective * 1.5, ...finite.map((h) => h.objective), 1e-6);
      const lowest = Math.max(Math.min(best.objective, ...finite.map((h) => h.objective)), 1e-6 * highest);
      const x = { label: "step", range: [v.steps / TRAINING_FRAMES, v.steps], log: true };
      const diverged = last && !Number.isFinite(last.objective);
      return {
        verdict: diverged
          ? "The run diverged: choose a smaller learning rate."
          : "The dashed lines are exact: they were computed before the first step.",
        exact: !diverged,
        numbers: [
          ["Optimum", best.objective],
          ["Objective of the run", last ? last.objective : NaN],
          ["Relative gap", last ? last.objective / best.objective - 1 : NaN],
          ["Rank of the optimum", best.rank],
        ],
        figures: [
          {
            name: "objective",
            caption: "The expected objective of the run, and the exact optimum.",
            x,
            y: { label: "objective", range: [0.8 * lowest, 1.2 * highest], log: true },
            marks: [
              { kind: "line", x: steps, y: finite.map((h) => h.objective), color: "blue", name: "SGD with dropout" },
              { kind: "horizontal", at: best.objective, name: "exact optimum", color: "orange" },
            ],
          },
          {
            name: "spectra",
            caption: "Singular values of the network's map over training time; dashed: those of the optimum.",
            x,
            y: { label: "singular value", range: [0, 1.1 * s[0]] },
            marks: [
              ...s.map((_, p) => ({
                kind: "line", x: steps, y: finite.map((h) => h.spectrum[p]), color: "blue", width: 1.4,
                name: p ? undefined : "network",
              })),
              ...best.map.map((a, p) => ({
                kind: "horizontal", at: a, name: p === 0 ? "optimum" : "", color: "orange",
              })),
            ],
          },
        ],
      };
    },
    python: (v) => [
      "import numpy as np",
      "import overt",
      `net = overt.LinearNetwork(np.diag(${python(theory.descending(v.spectrum))}), ${v.width}, overt.Dropout(${v.dropProb}))`,
      `run = net.train(steps=${v.steps}, learning_rate=${v.rate}, seeds=5)`,
      "print(net.solve().objective, run.objective[:, -1])",
    ],
  };

  function record(state) {
    state.history.push({
      step: state.step,
      objective: theory.objective(state.s, state.U, state.V, state.Gamma),
      spectrum: theory.singularValues(theory.multiply(state.U, theory.transpose(state.V))),
    });
  }

  // ---- Rank jumps ----------------------------------------------------------------------------

  const JUMP_FRAMES = 120;
  const jumps = {
    name: "jumps",
    title: "Rank jumps",
    intro:
      "A deep linear network with weight decay fits three entries of [[1, ?], [ε, 1]] by SGD on one random entry at a time. " +
      "Its noise makes the second singular value collapse, and it does not come back.",
    docs: "howto/rank_jumps.html",
    fields: [
      number("epsilon", "ε", 0.25, 0.02, 1, 0.01),
      number("depth", "Layers", 3, 3, 5, 1),
      number("width", "Width (hidden units)", 20, 2, 60, 1),
      number("rate", "Learning rate η", 0.4, 0.001, 1, 0.001),
      number("decay", "Weight decay λ", 0.025, 0, 0.1, 0.0005),
      number("steps", "Steps", 6000, 120, 200000, 120),
      number("seed", "Seed", 0, 0, 999999, 1),
    ],
    autostart: true,
    start(v) {
      const rng = theory.random(v.seed);
      const sizes = [2, ...Array(v.depth - 1).fill(v.width), 2];
      const weights = sizes.slice(1).map((rows, l) =>
        Array.from({ length: rows }, () =>
          Float64Array.from({ length: sizes[l] }, () => rng.normal() / Math.sqrt(v.width)),
        ),
      );
      const state = { values: v, rng, weights, step: 0, history: [] };
      state.history.push({ step: 0, spectrum: productSpectrum(weights) });
      return state;
    },
    advance(state) {
      const { epsilon, rate, decay, steps } = state.values;
      const entries = [[0, 0, 1], [1, 0, epsilon], [1, 1, 1]];
      const count = Math.ceil(steps / JUMP_FRAMES);
      for (let i = 0; i < count && state.step < steps; i++) {
        const entry = entries[Math.floor(3 * state.rng.uniform())];
        decayStep(state.weights, entry, rate, decay);
        state.step += 1;
      }
      const spectrum = productSpectrum(state.weights);
      state.history.push({ step: state.step, spectrum });
      return state.step < steps && Number.isFinite(spectrum[0]);
    },
    view(v, state) {
      const history = (state ? state.history : []).filter((h) => Number.isFinite(h.spectrum[0]));
      const steps = history.map((h) => h.step);
      const last = history.at(-1);
      const ended = Boolean(state) && state.step >= v.steps;
      return {
        verdict: "A simulation of one run. `overt jumps` measures the share of runs that jump, with intervals.",
        exact: false,
        numbers: [
          ["Largest singular value", last ? last.spectrum[0] : NaN],
          ["Second singular value", last ? last.spectrum[1] : NaN],
          ["Rank at the end", ended ? (last.spectrum[1] > 0.1 * last.spectrum[0] ? 2 : last.spectrum[0] > 0.05 ? 1 : 0) : NaN],
          ["The same in PyTorch: lr", v.rate / 2],
          ["The same in PyTorch: weight_decay", 4 * v.decay],
        ],
        figures: [{
          name: "singular",
          caption: "Both singular values of the learned matrix over the steps of SGD.",
          x: { label: "step", range: [0, v.steps] },
          y: { label: "singular value", range: [0, 2] },
          marks: [
            { kind: "line", x: steps, y: history.map((h) => h.spectrum[0]), color: "blue", name: "largest" },
            { kind: "line", x: steps, y: history.map((h) => h.spectrum[1]), color: "orange", name: "second", dash: "6 3" },
          ],
        }],
      };
    },
    python: (v) => [
      "from overt.decay import Schedule, simulate, two_by_two",
      `schedule = Schedule.constant(${v.steps}, ${v.rate}, ${v.decay})`,
      `runs = simulate(two_by_two(${v.epsilon}), depth=${v.depth}, width=${v.width}, schedule=schedule, seeds=20)`,
      "print(runs.jump_step)",
    ],
  };

  function productSpectrum(weights) {
    let product = weights[0].map((row) => Array.from(row));
    for (const W of weights.slice(1)) product = theory.multiply(W.map((row) => Array.from(row)), product);
    return theory.singularValues(product);
  }

  // theta <- (1 - 2 eta lam) theta - (eta / 2) grad (A_ij - y)^2, for one entry (i, j, y).
  function decayStep(weights, [i, j, y], rate, decay) {
    const forward = [Float64Array.from([j === 0 ? 1 : 0, j === 1 ? 1 : 0])];
    for (const W of weights) {
      const h = forward.at(-1);
      forward.push(Float64Array.from(W, (row) => row.reduce((t, w, k) => t + w * h[k], 0)));
    }
    let back = Float64Array.from([i === 0 ? 1 : 0, i === 1 ? 1 : 0]);
    const residual = forward.at(-1)[i] - y;
    for (let l = weights.length - 1; l >= 0; l--) {
      const W = weights[l];
      const h = forward[l];
      const next = new Float64Array(h.length);
      for (let a = 0; a < W.length; a++) {
        const row = W[a];
        const pull = rate * residual * back[a];
        for (let b = 0; b < row.length; b++) {
          next[b] += row[b] * back[a];
          row[b] = (1 - 2 * rate * decay) * row[b] - pull * h[b];
        }
      }
      back = next;
    }
  }

  return { all: [shrinkage, landscape, deep, own, training, jumps], show };
})();
