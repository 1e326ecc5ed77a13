"use strict";
// A small plotting library: one SVG per figure, colors that differ for any color vision, and
// export to SVG and PNG without a server.

const plot = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const WIDTH = 640;

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return {
      paper: read("--paper"),
      ink: read("--ink"),
      quiet: read("--quiet"),
      grid: read("--grid"),
      pale: read("--pale"),
      blue: read("--blue"),
      orange: read("--orange"),
      green: read("--green"),
    };
  }

  function element(name, attributes = {}, text = null) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    return node;
  }

  // Round numbers that cover an interval, about `count` of them.
  function ticks(low, high, count = 6) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * step; v += step) {
      found.push(Math.abs(v) < 1e-9 * step ? 0 : v);
    }
    return found;
  }

  function logTicks(low, high) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const m of [1, 2, 5]) {
        const v = m * 10 ** e;
        if (v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9)) found.push(v);
      }
    }
    return found.length > 7 ? found.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9) : found;
  }

  const label = (v) => (Math.abs(v) >= 1e5 ? v.toExponential(0) : String(+v.toPrecision(4)));

  function scale(range, log, from, to) {
    const f = log ? Math.log10 : (v) => v;
    const [low, high] = range.map(f);
    const place = (v) => from + ((f(v) - low) / (high - low || 1)) * (to - from);
    const value = (place_) => {
      const v = low + ((place_ - from) / (to - from)) * (high - low);
      return log ? 10 ** v : v;
    };
    return { place, value };
  }

  // Draw a figure into `host`. spec: {caption, height, x, y: {label, range, log}, marks: [...]}.
  // A mark is {kind: "line" | "bars" | "points" | "vertical" | "horizontal" | "image", ...}.
  // Returns the scales, so that panels can react to the pointer.
  function draw(host, spec) {
    const colors = palette();
    const height = spec.height ?? 300;
    const box = { left: 62, right: WIDTH - 16, top: 34, bottom: height - 46 };
    const svg = element("svg", {
      xmlns: NS,
      viewBox: `0 0 ${WIDTH} ${height}`,
      role: "img",
      "aria-label": spec.caption,
      "font-family": "system-ui, sans-serif",
      "font-size": 13,
    });
    svg.append(element("rect", { width: WIDTH, height, fill: colors.paper }));
    const x = scale(spec.x.range, spec.x.log, box.left, box.right);
    const y = scale(spec.y.range, spec.y.log, box.bottom, box.top);
    axes(svg, spec, x, y, box, colors);
    const clip = `clip-${spec.name}`;
    const area = element("clipPath", { id: clip });
    area.append(
      element("rect", {
        x: box.left,
        y: box.top,
        width: box.right - box.left,
        height: box.bottom - box.top,
      }),
    );
    svg.append(area);
    const inside = element("g", { "clip-path": `url(#${clip})` });
    svg.append(inside);
    let legend = box.left;
    for (const mark of spec.marks) {
      const color = colors[mark.color] ?? mark.color ?? colors.blue;
      drawMark(inside, svg, mark, color, x, y, box, colors);
      if (!mark.name || mark.kind === "vertical" || mark.kind === "horizontal") continue;
      const sample = { x1: legend, x2: legend + 18, y1: 18, y2: 18, stroke: color };
      svg.append(element("line", { ...sample, "stroke-width": mark.kind === "line" ? 2 : 9, ...dash(mark) }));
      svg.append(element("text", { x: legend + 24, y: 22, fill: colors.ink }, mark.name));
      legend += 44 + 7 * mark.name.length;
    }
    host.querySelector("svg")?.remove();
    host.prepend(svg);
    return { x, y, svg };
  }

  const dash = (mark) => (mark.dash ? { "stroke-dasharray": mark.dash } : {});

  function axes(svg, spec, x, y, box, colors) {
    const xs = spec.x.ticks ?? (spec.x.log ? logTicks(...spec.x.range) : ticks(...spec.x.range));
    const ys = spec.y.log ? logTicks(...spec.y.range) : ticks(...spec.y.range, 5);
    for (const v of ys) {
      const at = y.place(v);
      svg.append(element("line", { x1: box.left, x2: box.right, y1: at, y2: at, stroke: colors.grid }));
      const text = { x: box.left - 8, y: at + 4, "text-anchor": "end", fill: colors.quiet };
      svg.append(element("text", text, label(v)));
    }
    for (const v of xs) {
      const at = x.place(v);
      svg.append(element("line", { x1: at, x2: at, y1: box.bottom, y2: box.bottom + 5, stroke: colors.quiet }));
      const text = { x: at, y: box.bottom + 19, "text-anchor": "middle", fill: colors.quiet };
      svg.append(element("text", text, label(v)));
    }
    svg.append(
      element("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, stroke: colors.quiet }),
    );
    const middle = (box.left + box.right) / 2;
    svg.append(
      element("text", { x: middle, y: box.bottom + 38, "text-anchor": "middle", fill: colors.ink }, spec.x.label),
    );
    const across = (box.top + box.bottom) / 2;
    const turned = { transform: `translate(15 ${across}) rotate(-90)`, "text-anchor": "middle", fill: colors.ink };
    svg.append(element("text", turned, spec.y.label));
  }

  function drawMark(inside, svg, mark, color, x, y, box, colors) {
    const points = (mark.x ?? []).map((v, i) => [x.place(v), y.place(mark.y[i])]);
    if (mark.kind === "image") {
      const [left, right] = [x.place(mark.extent[0]), x.place(mark.extent[1])];
      const [bottom, top] = [y.place(mark.extent[2]), y.place(mark.extent[3])];
      const place = { x: left, y: top, width: right - left, height: bottom - top };
      inside.append(element("image", { ...place, href: mark.href, preserveAspectRatio: "none" }));
    } else if (mark.kind === "line") {
      const finite = points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b));
      const d = finite.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(2)} ${b.toFixed(2)}`).join("");
      const width = mark.width ?? 2;
      inside.append(element("path", { d, fill: "none", stroke: color, "stroke-width": width, ...dash(mark) }));
    } else if (mark.kind === "bars") {
      const half = (mark.half ?? 0.36) * Math.abs(x.place(1) - x.place(0));
      points.forEach(([a, b]) => {
        const size = { x: a - half, y: b, width: 2 * half, height: Math.max(box.bottom - b, 0) };
        inside.append(element("rect", { ...size, fill: color }));
      });
    } else if (mark.kind === "points") {
      points.forEach(([a, b]) => {
        const at = { cx: a, cy: b, r: mark.size ?? 5, fill: color, stroke: colors.paper, "stroke-width": 1.5 };
        inside.append(element("circle", at));
      });
    } else if (mark.kind === "vertical") {
      const at = x.place(mark.at);
      const style = { stroke: color, "stroke-width": 1.5, "stroke-dasharray": "2 4" };
      inside.append(element("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, ...style }));
      const left = at > (box.left + box.right) / 2;
      const text = { x: at + (left ? -6 : 6), y: box.top + 14, "text-anchor": left ? "end" : "start", fill: color };
      svg.append(element("text", text, mark.name));
    } else if (mark.kind === "horizontal") {
      const at = y.place(mark.at);
      const style = { stroke: color, "stroke-width": 1.5, "stroke-dasharray": "7 4" };
      inside.append(element("line", { x1: box.left, x2: box.right, y1: at, y2: at, ...style }));
      const text = { x: box.right - 4, y: at - 6, "text-anchor": "end", fill: color };
      svg.append(element("text", text, mark.name));
    }
  }

  // The place of a pointer event in the figure's own units.
  function pointed(event, scales) {
    const rect = scales.svg.getBoundingClientRect();
    const ratio = WIDTH / rect.width;
    return [
      scales.x.value((event.clientX - rect.left) * ratio),
      scales.y.value((event.clientY - rect.top) * ratio),
    ];
  }

  // A map of colors (cividis, seven anchors) as a picture; values is rows x columns, row 0 at the
  // bottom.
  const CIVIDIS = [
    [0, 34, 78],
    [50, 61, 107],
    [92, 91, 109],
    [124, 123, 120],
    [160, 153, 110],
    [205, 190, 88],
    [254, 232, 56],
  ];
  function heatmap(values, low, high) {
    const canvas = document.createElement("canvas");
    canvas.height = values.length;
    canvas.width = values[0].length;
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    values.forEach((row, i) =>
      row.forEach((v, j) => {
        const t = Math.min(Math.max((v - low) / (high - low), 0), 1) * (CIVIDIS.length - 1);
        const k = Math.min(Math.floor(t), CIVIDIS.length - 2);
        const at = 4 * ((canvas.height - 1 - i) * canvas.width + j);
        for (let c = 0; c < 3; c++) {
          image.data[at + c] = CIVIDIS[k][c] + (t - k) * (CIVIDIS[k + 1][c] - CIVIDIS[k][c]);
        }
        image.data[at + 3] = 255;
      }),
    );
    context.putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  function download(name, href) {
    const link = document.createElement("a");
    link.download = name;
    link.href = href;
    link.click();
  }

  function save(svg, name, format) {
    const text = new XMLSerializer().serializeToString(svg);
    const href = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    if (format === "svg") {
      download(`${name}.svg`, href);
      return;
    }
    const image = new Image();
    image.onload = () => {
      const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
      const canvas = document.createElement("canvas");
      canvas.width = 3 * width; // 3 pixels per unit: sharp on paper
      canvas.height = 3 * height;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      download(`${name}.png`, canvas.toDataURL("image/png"));
    };
    image.src = href;
  }

  return { draw, heatmap, pointed, save };
})();
