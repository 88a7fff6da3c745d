// Points that move, drawn by Plotly. `interactive_page.py` says what a scene holds.

const find = (id) => document.getElementById(id);
const plot = find("plot");
const PAUSE = 120; // milliseconds between two steps that are played

async function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (x) => x.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate")));
}

async function unpack(array) {
  const numbers = new DataView(await (await inflate(array.deflated)).arrayBuffer());
  const [, points, width = 1] = array.shape;
  return (step, point, coordinate = 0) => {
    const at = (step * points + point) * width + coordinate;
    return numbers.getFloat32(4 * at, true);
  };
}

async function loadLibrary() {
  const script = document.createElement("script");
  script.textContent = await (await inflate(find("library").textContent)).text();
  document.head.append(script);
}

function hasWebGL() {
  try {
    return Boolean(document.createElement("canvas").getContext("webgl"));
  } catch {
    return false;
  }
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The unit sphere as circles, with gaps between them; of two dimensions the circle.
function outline(dimensions) {
  const lines = dimensions.map(() => []);
  const add = (of) => {
    for (let i = 0; i <= 72; i++) {
      const point = of((i * Math.PI) / 36);
      lines.forEach((line, k) => line.push(point[k]));
    }
    lines.forEach((line) => line.push(null));
  };
  add((a) => [Math.cos(a), Math.sin(a), 0]);
  if (dimensions.length < 3) return lines;
  for (const height of [-0.5, 0.5]) {
    const radius = Math.sqrt(1 - height * height);
    add((a) => [radius * Math.cos(a), radius * Math.sin(a), height]);
  }
  for (let k = 0; k < 6; k++) {
    const [c, s] = [Math.cos((k * Math.PI) / 6), Math.sin((k * Math.PI) / 6)];
    add((a) => [c * Math.cos(a), s * Math.cos(a), Math.sin(a)]);
  }
  return lines;
}

// The number of a cluster has all its digits.
function written(value) {
  return Number.isInteger(value) ? String(value) : number(value);
}

class Shown {
  constructor(scene, positions, values, flat) {
    Object.assign(this, { scene, positions, values });
    this.dimensions = ["x", "y", "z"].slice(0, flat ? 2 : scene.axes.length);
    this.points = scene.names.map((_, i) => i);
    this.type = this.dimensions.length === 3 ? "scatter3d" : "scatter";
    this.name = this.dimensions.length === 3 ? breakText : escapeText;
    const { from, to } = scene.positions;
    const margin = 0.06 * (to - from || 1);
    this.range = scene.sphere ? [-1.08, 1.08] : [from - margin, to + margin];
  }

  coordinates(lists) {
    return Object.fromEntries(this.dimensions.map((name, k) => [name, lists[k]]));
  }

  trace(lists, more) {
    return { type: this.type, showlegend: false, ...this.coordinates(lists), ...more };
  }

  // A point's name, its values and where it is.
  facts(step, point) {
    const values = Object.entries(this.values).map(
      ([name, value]) => `${name}: ${written(value(step, point))}`,
    );
    const place = this.dimensions.map((_, k) => number(this.positions(step, point, k)));
    return [this.scene.names[point], ...values, `(${place.join(", ")})`];
  }

  text(step, point) {
    const [name, ...others] = this.facts(step, point);
    return [`<b>${escapeText(name)}</b>`, ...others].join("<br>");
  }

  traces(step, withPaths, withNames) {
    const soft = colour("--rule");
    const found = [];
    const lines = { mode: "lines", hoverinfo: "skip" };
    if (this.scene.sphere)
      found.push(this.trace(outline(this.dimensions), { ...lines, line: { color: soft, width: 1 } }));
    if (withPaths) {
      const paths = this.dimensions.map((_, k) =>
        this.points.flatMap((point) => {
          const path = [];
          for (let s = 0; s <= step; s++) path.push(this.positions(s, point, k));
          return [...path, null];
        }),
      );
      const line = { color: colour("--soft"), width: 1 };
      found.push(this.trace(paths, { ...lines, line, opacity: 0.5 }));
    }
    const places = this.dimensions.map((_, k) => this.points.map((p) => this.positions(step, p, k)));
    found.push(
      this.trace(places, {
        mode: withNames ? "markers+text" : "markers",
        marker: { color: this.scene.colours, size: this.dimensions.length === 3 ? 5 : 9 },
        text: withNames ? this.scene.names.map(this.name) : undefined,
        textposition: "top center",
        textfont: { color: colour("--text"), size: 11 },
        hovertext: this.points.map((point) => this.text(step, point)),
        hoverinfo: "text",
      }),
    );
    return found;
  }

  layout(turn) {
    const grid = { showspikes: false, gridcolor: colour("--rule"), zerolinecolor: colour("--rule") };
    const axis = (k) => ({ ...grid, title: { text: this.scene.axes[k] }, range: this.range });
    const common = {
      margin: { l: 0, r: 0, t: 0, b: 0 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: "system-ui, sans-serif" },
      uirevision: String(turn), // a turn by hand lasts until the slider turns
    };
    if (this.dimensions.length < 3)
      return {
        ...common,
        margin: { l: 50, r: 10, t: 10, b: 45 },
        xaxis: axis(0),
        yaxis: { ...axis(1), scaleanchor: "x" },
      };
    const angle = (turn * Math.PI) / 180;
    const eye = { x: 2.1 * Math.cos(angle), y: 2.1 * Math.sin(angle), z: 0.9 };
    const nearer = plot.clientWidth < 600 ? 1.4 : 1; // narrow windows cut the sides off
    const camera = {
      eye: { x: eye.x * nearer, y: eye.y * nearer, z: eye.z },
      center: { x: 0, y: 0, z: -0.15 }, // the lower axes have their numbers below
    };
    const scene = { xaxis: axis(0), yaxis: axis(1), zaxis: axis(2), aspectmode: "cube", camera };
    return { ...common, scene };
  }
}

// Plotly reads a few elements in texts, and tokens may look like some. In WebGL it reads no
// entities, but a space of no width makes an element none.
const escapeText = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const breakText = (text) => text.replaceAll("<", "<\u200b");

const scenes = JSON.parse(find("scenes").textContent);
const flat = !hasWebGL() && scenes.some((scene) => scene.axes.length > 2);
find("flat").hidden = !flat;
let shown;
let asked = 0; // how often a scene was
let playing = null; // what stands for the run of Play that goes on

async function draw() {
  const step = Number(find("step").value);
  const last = shown.scene.steps.length - 1;
  find("now").textContent = `${shown.scene.steps[step]} (${step} of ${last})`;
  find("step").setAttribute("aria-valuetext", find("now").textContent);
  const traces = shown.traces(step, find("paths").checked, find("names").checked);
  const config = { responsive: true, displayModeBar: false };
  await window.Plotly.react(plot, traces, shown.layout(Number(find("turn").value)), config);
  plot.setAttribute("aria-label", `${find("which").textContent}: ${shown.scene.steps[step]}`);
  const point = Number(find("point").value) - 1;
  const isThere = shown.points.includes(point);
  find("values").textContent = isThere ? shown.facts(step, point).join("; ") : "";
  plot.dataset.step = step;
}

async function choose() {
  const own = ++asked;
  const scene = scenes[Number(find("choice").value)];
  const names = Object.keys(scene.values);
  const values = await Promise.all(names.map((name) => unpack(scene.values[name])));
  const positions = await unpack(scene.positions);
  if (own !== asked) return; // another was chosen meanwhile
  // Where scenes differ in them; otherwise what the reader chose stays.
  for (const [id, flag] of [["paths", "paths"], ["names", "labelled"]])
    if (scene[flag] !== shown?.scene[flag]) find(id).checked = scene[flag];
  const pairs = names.map((name, i) => [name, values[i]]);
  shown = new Shown(scene, positions, Object.fromEntries(pairs), flat);
  if (Number(find("step").value) > scene.steps.length - 1) find("step").value = 0;
  find("step").max = scene.steps.length - 1;
  find("point").max = scene.names.length;
  const turns = shown.dimensions.length === 3;
  find("turn").closest("label").hidden = find("turning").hidden = !turns;
  find("which").textContent = [scene.group, scene.title].filter(Boolean).join(", ");
  await draw();
}

function stop() {
  playing = null;
  find("play").textContent = "Play";
  find("values").setAttribute("aria-live", "polite");
}

async function play() {
  if (playing) return stop();
  const slider = find("step");
  if (slider.value === slider.max) slider.value = 0;
  find("play").textContent = "Stop";
  find("values").setAttribute("aria-live", "off"); // nobody can listen as fast
  const slow = shown.scene.steps.length < 40 ? 5 : 1; // layers are few
  const own = (playing = {});
  while (slider.value !== slider.max) {
    await new Promise((done) => setTimeout(done, PAUSE * slow));
    if (playing !== own) return; // it was stopped
    slider.value = Number(slider.value) + 1;
    await draw();
  }
  if (playing === own) stop();
}

async function start() {
  await loadLibrary();
  await choose();
  for (const id of ["step", "turn", "paths", "names", "point"])
    find(id).addEventListener("input", draw);
  find("choice").addEventListener("input", choose);
  find("play").addEventListener("click", play);
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

if ("DecompressionStream" in window) await start();
else find("values").textContent = "This browser is too old to unpack this page.";
