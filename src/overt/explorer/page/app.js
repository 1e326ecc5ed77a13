"use strict";
// Puts panels into the page: one at a time in the explorer, several inside the text of an article.
// The address holds the panel and its values: #deep?dropProb=0.3&depth=2.

(() => {
  let serial = 0;

  function create(tag, attributes = {}, children = []) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "text") node.textContent = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  // Read the text of a field: {value} or {error}.
  function readField(field, text) {
    if (field.kind === "choice") {
      const known = field.options.includes(text);
      return known ? { value: text } : { error: `Choose one of ${field.options.join(", ")}.` };
    }
    if (field.kind === "matrix") return { value: text };
    if (field.kind === "numbers") {
      const values = text.trim().split(/[\s,;]+/).map(Number);
      const fine = values.length <= 40 && values.every((v) => Number.isFinite(v) && v >= 0 && v <= 1e6);
      if (!fine || !values.some((v) => v > 0)) {
        return { error: "Give 1 to 40 numbers from 0 to 1,000,000, at least one of them above 0." };
      }
      return { value: values };
    }
    const value = Number(text);
    const whole = Number.isInteger(field.step);
    const fine = text.trim() !== "" && value >= field.low && value <= field.high;
    if (!fine || (whole && !Number.isInteger(value))) {
      return { error: `Give ${whole ? "a whole number" : "a number"} from ${field.low} to ${field.high}.` };
    }
    return { value };
  }

  // A panel in the page. `texts` are the texts of its fields; `remember` is told when they change.
  function mount(host, panel, texts, remember = () => {}) {
    const prefix = `p${++serial}-`;
    const state = { texts: { ...texts }, run: null, frame: 0, visible: [] };
    for (const field of panel.fields) state.texts[field.name] ??= String(field.value);

    const controls = create("form", { class: "controls", "aria-label": `${panel.title}: settings`, novalidate: true });
    controls.addEventListener("submit", (event) => event.preventDefault());
    const inputs = Object.fromEntries(panel.fields.map((field) => [field.name, makeField(field)]));
    const verdict = create("p", { class: "verdict", role: "status" });
    const numbers = create("dl", { class: "numbers" });
    const figures = create("div", { class: "figures" });
    const code = create("code");
    const copy = create("button", {
      type: "button", text: "Copy the Python lines",
      onclick: () => navigator.clipboard.writeText(code.textContent),
    });
    const buttons = panel.start
      ? [
          create("button", { type: "button", class: "main", text: "Run", onclick: () => start() }),
          create("button", { type: "button", text: "Stop", onclick: () => stop() }),
        ]
      : [];
    controls.append(create("div", { class: "buttons" }, buttons));
    const results = create("div", { class: "results" }, [
      verdict,
      numbers,
      figures,
      create("details", { class: "python" }, [
        create("summary", { text: "The same in Python" }),
        create("pre", { tabindex: 0, "aria-label": "Python lines" }, [code]),
        copy,
      ]),
    ]);
    host.replaceChildren(create("div", { class: "panel", "data-name": panel.name }, [controls, results]));
    update();
    if (panel.autostart) start();

    function makeField(field) {
      const id = prefix + field.name;
      const error = create("p", { class: "error", id: `${id}-error`, role: "alert" });
      const shared = {
        id, "aria-describedby": `${id}-error`, autocomplete: "off", spellcheck: "false",
        oninput: (event) => change({ [field.name]: event.target.value }),
      };
      let input;
      let slider = null;
      if (field.kind === "choice") {
        const options = field.options.map((option) => create("option", { value: option, text: option }));
        input = create("select", shared, options);
      } else if (field.kind === "matrix") {
        input = create("textarea", { ...shared, rows: 5 });
      } else {
        input = create("input", { ...shared, type: "text", inputmode: field.kind === "number" ? "decimal" : "text" });
      }
      if (field.kind === "number") {
        slider = create("input", {
          type: "range", min: field.low, max: field.high, step: field.step, "aria-label": `${field.label}, slider`,
          oninput: (event) => change({ [field.name]: event.target.value }),
        });
      }
      const parts = [create("label", { for: id, text: field.label }), input];
      if (slider) parts.push(slider);
      if (field.hint) parts.push(create("p", { class: "hint", text: field.hint }));
      const box = create("div", { class: `field ${field.kind}` }, [...parts, error]);
      controls.append(box);
      return { field, input, slider, error, box };
    }

    // The values of all fields, or null and messages beside the fields that are wrong.
    function read() {
      const values = {};
      const messages = {};
      for (const { field } of Object.values(inputs)) {
        const { value, error } = readField(field, state.texts[field.name]);
        if (error) messages[field.name] = error;
        else values[field.name] = value;
      }
      if (Object.keys(messages).length === 0 && panel.check) Object.assign(messages, panel.check(values));
      for (const { field, input, slider, error, box } of Object.values(inputs)) {
        const text = state.texts[field.name];
        if (input.value !== text) input.value = text;
        if (slider && slider.value !== text) slider.value = text;
        const relevant = !field.when || field.when(values);
        box.hidden = !relevant;
        error.textContent = messages[field.name] ?? "";
        input.setAttribute("aria-invalid", String(Boolean(messages[field.name])));
        if (!relevant) delete messages[field.name];
      }
      return Object.keys(messages).length === 0 ? values : null;
    }

    function change(texts) {
      Object.assign(state.texts, texts);
      stop();
      state.run = null;
      remember(state.texts);
      update();
      if (panel.autostart) start();
    }

    function update() {
      const values = read();
      if (!values) return;
      const view = panel.view(values, state.run);
      verdict.textContent = view.verdict;
      verdict.classList.toggle("exact", view.exact);
      numbers.replaceChildren(
        ...view.numbers.map(([name, value]) =>
          create("div", {}, [
            create("dt", { text: name }),
            create("dd", { text: typeof value === "number" ? panels.show(value) : value }),
          ]),
        ),
      );
      const hosts = view.figures.map((figure, i) => figures.children[i] ?? makeFigure(figure));
      const shown = [...figures.children];
      if (shown.length !== hosts.length || hosts.some((host, i) => host !== shown[i])) figures.replaceChildren(...hosts);
      view.figures.forEach((figure, i) => {
        hosts[i].scales = plot.draw(hosts[i], { ...figure, name: prefix + figure.name });
        hosts[i].querySelector("figcaption span").textContent = figure.caption;
      });
      code.textContent = panel.python(values).join("\n");
    }

    function makeFigure(figure) {
      const name = `overt-${panel.name}-${figure.name}`;
      const host = create("figure", { class: figure.click || figure.drag ? "live" : "" });
      const save = (format) => () => plot.save(host.querySelector("svg"), name, format);
      host.append(
        create("figcaption", {}, [
          create("span"),
          create("button", { type: "button", class: "small", text: "SVG", "aria-label": `Save ${figure.name} as SVG`, onclick: save("svg") }),
          create("button", { type: "button", class: "small", text: "PNG", "aria-label": `Save ${figure.name} as PNG`, onclick: save("png") }),
        ]),
      );
      if (figure.click) onPress(host, (event) => clicked(host, event));
      if (figure.drag) dragBars(host, figure.drag);
      return host;
    }

    // A browser sends no click where the picture was drawn anew between press and release, as a run does in every frame.
    function onPress(host, answer) {
      let pressed = null;
      host.addEventListener("pointerdown", (event) => {
        pressed = event.button === 0 ? [event.clientX, event.clientY] : null;
      });
      host.addEventListener("pointercancel", () => {
        pressed = null; // the page is scrolled by touch
      });
      host.addEventListener("pointerup", (event) => {
        if (pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 8) answer(event);
        pressed = null;
      });
    }

    function clicked(host, event) {
      if (event.target.closest("figcaption")) return;
      const values = read();
      if (!values) return;
      const next = panel.click(values, ...plot.pointed(event, host.scales));
      change(Object.fromEntries(Object.entries(next).map(([name, value]) => [name, String(value)])));
      start();
    }

    function dragBars(host, name) {
      let index = null;
      const move = (event) => {
        const values = readField({ kind: "numbers" }, state.texts[name]).value;
        if (!values) return;
        const sorted = theory.descending(values);
        const [x, y] = plot.pointed(event, host.scales);
        index ??= Math.min(Math.max(Math.round(x) - 1, 0), sorted.length - 1);
        sorted[index] = Math.max(+y.toPrecision(3), 0);
        if (sorted.some((v) => v > 0)) change({ [name]: sorted.join(" ") });
      };
      host.addEventListener("pointerdown", (event) => {
        if (event.target.closest("figcaption")) return;
        index = null;
        host.setPointerCapture(event.pointerId);
        move(event);
      });
      host.addEventListener("pointermove", (event) => {
        if (event.buttons && index !== null) move(event);
      });
    }

    function start() {
      const values = read();
      if (!values) return;
      stop();
      state.run = panel.start(values);
      const tick = () => {
        const more = panel.advance(state.run);
        update();
        if (more) state.frame = requestAnimationFrame(tick);
      };
      state.frame = requestAnimationFrame(tick);
    }

    function stop() {
      cancelAnimationFrame(state.frame);
    }

    return { update, stop, texts: state.texts };
  }

  // ---- The explorer's page -------------------------------------------------------------------

  function readAddress() {
    const [name, query = ""] = location.hash.slice(1).split("?");
    const panel = panels.all.find((p) => p.name === name) ?? panels.all[0];
    return { panel, texts: Object.fromEntries(new URLSearchParams(query)) };
  }

  const mounted = [];

  function openExplorer(main) {
    const { panel, texts } = readAddress();
    mounted.splice(0).forEach((item) => item.stop());
    document.title = `${panel.title} - overt`;
    const links = panels.all.map((p) =>
      create("a", { href: `#${p.name}`, text: p.title, "aria-current": p === panel ? "page" : false }),
    );
    document.querySelector("nav").replaceChildren(...links);
    const host = create("div");
    main.replaceChildren(create("h1", { text: panel.title }), create("p", { class: "intro", text: panel.intro }), host);
    const remember = (all) => {
      const changed = panel.fields.filter((f) => all[f.name] !== String(f.value)).map((f) => [f.name, all[f.name]]);
      const query = new URLSearchParams(changed).toString();
      history.replaceState(null, "", `#${panel.name}${query ? `?${query}` : ""}`);
    };
    mounted.push(mount(host, panel, texts, remember));
  }

  document.addEventListener("DOMContentLoaded", () => {
    const main = document.querySelector("main[data-explorer]");
    if (main) {
      openExplorer(main);
      addEventListener("hashchange", () => openExplorer(main));
    }
    for (const host of document.querySelectorAll("[data-panel]")) {
      const { panel: name, ...texts } = host.dataset;
      mounted.push(mount(host, panels.all.find((p) => p.name === name), texts));
    }
    document.querySelector("#projector")?.addEventListener("click", (event) => {
      const on = document.documentElement.classList.toggle("projector");
      event.target.setAttribute("aria-pressed", String(on));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => mounted.forEach((item) => item.update()));
  });
})();
