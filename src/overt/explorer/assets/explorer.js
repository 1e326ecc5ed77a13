/* The page's side: keeps form, address and server in step. One request is out at a time. */
"use strict";

(() => {
  const at = (id) => document.getElementById(id);
  const form = at("form"), panel = document.body.dataset.panel;
  const LARGEST = 2 * 2 ** 20, PATIENCE = 20000;
  let job = null, shape = null, busy = false, dirty = true, count = 0, look = null, silence = null, saving = null;
  const commands = [];

  const controls = () => [...form.elements].filter((e) => e.name);

  /* --- asking and being answered --- */

  function send(command) {
    if (command) commands.push(command);
    if (command && !["look", "rest"].includes(command)) form.dataset.settled = "no";
    if (busy || !(commands.length || dirty)) return;
    busy = true;
    dirty = false;
    const fields = Object.fromEntries(controls().map((e) => [e.name, e.value]));
    const ask = { n: ++count, panel, fields, job, shape, command: commands.shift() || "" };
    window.dash_clientside.set_props("ask", { data: ask });
    silence = setTimeout(() => {
      busy = false;
      at("status").textContent = "The server does not answer. Is overt explore still running?";
    }, PATIENCE);
  }

  function answered(answer) {
    clearTimeout(silence);
    busy = false;
    if (answer) {
      job = answer.job;
      if (answer.rest) askRest();
      shape = answer.shape ?? shape;
      for (const [name, figure] of Object.entries(answer.figures || {})) {
        window.dash_clientside.set_props(name, { figure });
      }
      showStatus(answer.status);
      showMessages(answer.messages);
    }
    send();
    if (!busy) form.dataset.settled = "yes";
  }

  function askRest() { // what is slow to draw, once the other plots are seen
    const seen = document.querySelector("#plots .main-svg");
    setTimeout(() => (seen ? send("rest") : askRest()), 150);
  }

  function showMessages(messages) {
    for (const e of controls()) {
      const text = messages[e.name] || "", place = at(e.name + "-error");
      if (place.textContent !== text) place.textContent = text;
      e.toggleAttribute("aria-invalid", Boolean(text));
      if (text) e.setAttribute("aria-invalid", "true");
    }
    if (messages[""]) at("status").textContent = messages[""];
  }

  function showStatus(status) {
    const state = status ? status.state : "idle", going = ["waiting", "running", "paused"].includes(state);
    const text = status ? status.text : at("run") ? "Press Run to start." : "";
    if (at("status").textContent !== text) at("status").textContent = text;
    form.dataset.state = state;
    if (!at("run")) return;
    at("progress").value = status ? status.done : 0;
    const pause = at("pause"), focused = document.activeElement;
    pause.textContent = state === "paused" ? "Resume" : "Pause";
    pause.disabled = at("stop").disabled = !going;
    if (focused && focused.disabled) at("run").focus();
    clearTimeout(look);
    if (going) look = setTimeout(() => send("look"), state === "paused" ? 500 : 200);
  }

  /* --- the form --- */

  function changed() {
    dirty = true;
    form.dataset.settled = "no";
    for (const e of form.querySelectorAll("[data-when]")) {
      const [name, value] = e.dataset.when.split("=");
      e.hidden = Boolean(name) && at(name).value !== value;
    }
    for (const e of form.querySelectorAll("input[type=range]")) e.value = at(e.dataset.for).value;
    clearTimeout(saving);
    saving = setTimeout(save, 300);
    if (at("draw")) draw();
    send();
  }

  function save() {
    const query = new URLSearchParams();
    for (const e of controls()) if (e.value !== e.dataset.default) query.set(e.name, e.value);
    const search = String(query) && "?" + query;
    history.replaceState(null, "", location.pathname + search);
    remember(panel, search);
  }

  function remember(name, search) {
    try {
      sessionStorage.setItem("overt " + name, search);
    } catch { /* the tab keeps nothing: links lead to the defaults */ }
  }

  function set(id, value) {
    at(id).value = value;
    changed();
  }

  async function upload(input) {
    const into = input.dataset.into, file = input.files[0], note = at("note");
    const place = at(into + "-error");
    if (!file) return;
    place.textContent = note.textContent = "";
    if (file.size > LARGEST) {
      place.textContent = `the file must have at most 2 MB, got ${(file.size / 2 ** 20).toFixed(1)} MB`;
      return;
    }
    try {
      const response = await fetch("/upload/" + into, { method: "POST", body: file });
      const answer = await response.json();
      if (answer.error) place.textContent = answer.error;
      else {
        note.textContent = `${file.name}: ${answer.note}`;
        set(into, answer.value);
      }
    } catch {
      place.textContent = "the file could not be sent";
    }
    input.value = "";
  }

  async function copy(text, button) {
    const said = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed here: select the text and copy it";
    }
    setTimeout(() => { button.textContent = said; }, 1500);
  }

  /* --- drawing a spectrum --- */

  let chosen = 0, scale = 1, drawing = false;
  const numbers = () => at("values").value.split(/[\s,;]+/).map(Number).filter((v) => v >= 0 && v < Infinity);

  function draw() {
    const svg = at("draw"), values = numbers(), n = values.length;
    if (!drawing) scale = 1.15 * (Math.max(...values, 0) || 1);
    chosen = Math.max(0, Math.min(chosen, n - 1));
    svg.setAttribute("viewBox", `0 0 ${Math.max(n, 1)} 1`);
    while (svg.childElementCount > n) svg.lastElementChild.remove();
    while (svg.childElementCount < n) {
      svg.append(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
    }
    values.forEach((v, i) => {
      const h = Math.min(v / scale, 1), bar = svg.children[i];
      const place = { x: i + 0.1, y: 1 - h, width: 0.8, height: h };
      for (const [key, value] of Object.entries(place)) bar.setAttribute(key, value);
      bar.classList.toggle("chosen", i === chosen);
    });
    const value = n ? values[chosen] : 0;
    svg.setAttribute("aria-valuenow", value);
    svg.setAttribute("aria-valuemax", Math.max(scale, value));
    svg.setAttribute("aria-valuetext", n ? `value ${chosen + 1} of ${n}: ${value}` : "no values");
  }

  function put(values) {
    set("values", values.map((v) => Number(v.toPrecision(3))).join(" "));
  }

  function point(event) {
    const box = at("draw").getBoundingClientRect(), values = numbers();
    if (!values.length) return;
    const share = (event.clientX - box.left) / box.width;
    chosen = Math.max(0, Math.min(values.length - 1, Math.floor(share * values.length)));
    values[chosen] = Math.max(0, Math.min(1, (box.bottom - event.clientY) / box.height)) * scale;
    put(values);
  }

  function key(event) {
    const values = numbers(), step = scale / 50;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -values.length, End: values.length };
    const changes = { ArrowUp: step, ArrowDown: -step, PageUp: 5 * step, PageDown: -5 * step };
    if (event.key in moves) chosen += moves[event.key];
    else if (event.key in changes) values[chosen] = Math.max(0, values[chosen] + changes[event.key]);
    else if (event.key === "Insert") values.splice(chosen + 1, 0, values[chosen] ?? 1);
    else if (event.key === "Delete" && values.length > 1) values.splice(chosen, 1);
    else return;
    event.preventDefault();
    if (event.key in moves) draw();
    else put(values);
  }

  if (at("draw")) {
    const svg = at("draw");
    svg.addEventListener("pointerdown", (e) => {
      drawing = true;
      svg.setPointerCapture(e.pointerId);
      point(e);
    });
    svg.addEventListener("pointermove", (e) => drawing && point(e));
    svg.addEventListener("lostpointercapture", () => { drawing = false; draw(); });
    svg.addEventListener("keydown", key);
  }

  /* --- events --- */

  form.addEventListener("input", (event) => {
    const e = event.target;
    if (e.type === "file") return;
    if (e.type === "range") at(e.dataset.for).value = e.value;
    changed();
  });
  form.addEventListener("change", (event) => event.target.type === "file" && upload(event.target));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (at("run")) send("run");
  });
  document.addEventListener("click", (event) => {
    const id = event.target.id;
    if (id === "pause") send(form.dataset.state === "paused" ? "go" : "pause");
    else if (id === "step" || id === "stop") send(id);
    else if (id === "sample") set(event.target.dataset.for, "sample");
    else if (id === "copy") copy(at("code").textContent, event.target);
    else if (id === "link") {
      save();
      copy(location.href, event.target);
    }
  });
  window.addEventListener("pagehide", save);

  /* Plotly reports the nearest marker, which may be a saddle; what counts is where the pointer was. */
  let pointer = null;
  document.addEventListener("pointerdown", (event) => { pointer = event; }, true);

  function placeOnMap() {
    const plot = document.querySelector("#map .js-plotly-plot") || at("map");
    const box = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout;
    return [
      xaxis.p2d(pointer.clientX - box.left - xaxis._offset),
      yaxis.p2d(pointer.clientY - box.top - yaxis._offset),
    ];
  }

  for (const link of document.querySelectorAll("nav a")) {
    const name = new URL(link.href).pathname.slice(1);
    let search = null;
    try {
      search = sessionStorage.getItem("overt " + name);
    } catch { /* as above */ }
    if (search && name !== panel) link.href += search;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    explorer: {
      answered(answer) {
        if (answer) answered(answer);
        else {
          if (!at("run")) at("numbers").setAttribute("aria-live", "polite");
          changed();
        }
        return window.dash_clientside.no_update;
      },
      clicked(click) {
        if (click && pointer) {
          const place = placeOnMap().map((v) => Number(v.toFixed(3))).join(" ");
          set("starts", [at("starts").value.trim(), place].filter(Boolean).join("\n"));
          send("run");
        }
        return window.dash_clientside.no_update;
      },
    },
  });
})();
