// What charts and sentences of the page of `macaron-fairseq dynamics` are made of: elements, a cursor
// for pointer and keys, and maps, which have a colour for each row and column.

const LABELS = read(document.getElementById("labels")); // of the models
const shown = new Set(LABELS.keys()); // which models, by their place in LABELS
let isDifference = false; // whether each is shown as its difference from the first
const redraw = []; // what to call when something of this changes, or the width, or the theme

function read(script) {
  return JSON.parse(script.textContent);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function html(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function text(x, y, content, attributes = {}) {
  return svg("text", { x, y, ...attributes }, content);
}

// The style sheet's colours and marks of models; after the last one follows the first.
const [SERIES, MARKS] = ["series", "mark"].map(
  (name) => [...Array(100).keys()].map((i) => `--${name}-${i}`).filter(declared));

function seriesName(series) {
  return SERIES[series % SERIES.length];
}

function markStyle(series) {
  return `clip-path: var(${MARKS[series % MARKS.length]})`;
}

function key(series) {
  const style = `background: var(${seriesName(series)}); ${markStyle(series)}`;
  return html("span", { class: "key", style, "aria-hidden": "true" });
}

// How wide a text of a picture is; letters of some scripts are as wide as two others.
const ruler = html("canvas").getContext("2d");

function widthOf(content) {
  ruler.font = "11px system-ui, sans-serif";
  return ruler.measureText(content).width;
}

// A text with as many letters as that width has room for.
function shortened(content, width) {
  if (widthOf(content) <= width) return content;
  const letters = [...content];
  while (letters.length > 1 && widthOf(`${letters.join("")}…`) > width) letters.pop();
  return `${letters.join("")}…`;
}

// A group of radio buttons; `choose` is called with the place of what is chosen.
function radios(title, name, titles, choose) {
  const inputs = titles.map((_, i) =>
    html("input", { type: "radio", name, value: i, checked: i ? null : "" }));
  inputs.forEach((input, i) => input.addEventListener("change", () => choose(i)));
  const labels = titles.map((label, i) => html("label", {}, inputs[i], label));
  return html("fieldset", {}, html("legend", {}, title), ...labels);
}

// Let pointer and arrow keys move through the columns and rows of a picture. `locate` says where
// the pointer is, `show` is called with a column and a row, `hide` when nothing is pointed at.
function cursor(picture, columns, rows, locate, show, hide) {
  let [column, row] = [0, 0];
  const go = (x, y) => {
    column = Math.min(columns - 1, Math.max(0, x));
    row = Math.min(rows - 1, Math.max(0, y));
    show(column, row);
  };
  const point = (event) => {
    const box = picture.getBoundingClientRect();
    const scale = picture.viewBox.baseVal.width / box.width;
    const place = locate((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    if (place) go(...place);
    else hide();
  };
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => {
    if (document.activeElement !== picture) hide();
  });
  picture.addEventListener("focus", () => go(column, row));
  // After the focus that it gives: on a touch screen nothing else says where.
  picture.addEventListener("click", point);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const moves = {
      ...{ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] },
      ...{ Home: [-columns, 0], End: [columns, 0] },
    };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(column + moves[event.key][0], row + moves[event.key][1]);
  });
  return go;
}

function picture(width, height, label) {
  const attributes = { viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0 };
  const spoken = { role: "application", "aria-roledescription": "picture", "aria-label": label };
  return svg("svg", { ...attributes, ...spoken });
}

// --- maps ---------------------------------------------------------------------------------------

function declared(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function colour(name) {
  const found = declared(name);
  return [1, 3, 5].map((i) => parseInt(found.slice(i, i + 2), 16));
}

// The colour of a number from -1 to 1: its strength says how far from 0.
function tint(value, above, below) {
  return [...(value < 0 ? below : above), Math.round(255 * Math.min(1, Math.abs(value)))];
}

function canvas(rows, columns, colourOf) {
  const result = html("canvas", { width: columns, height: rows });
  const context = result.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) image.data.set(colourOf(r, c), 4 * (r * columns + c));
  }
  context.putImageData(image, 0, 0);
  return result;
}

// A map within an SVG element; returns what marks a cell.
function drawMap(root, box, rows, columns, colourOf, show, hide) {
  const href = canvas(rows, columns, colourOf).toDataURL();
  const frame = { x: box.x, y: box.y, width: box.width, height: box.height };
  root.append(svg("image", { ...frame, href, preserveAspectRatio: "none" }));
  root.append(svg("rect", { ...frame, class: "axis" }));
  const [width, height] = [box.width / columns, box.height / rows];
  const marked = svg("rect", { class: "cell", width, height, visibility: "hidden" });
  root.append(marked);
  const mark = (column, row) => {
    const at = { x: box.x + column * width, y: box.y + row * height };
    fill(marked, { ...at, visibility: column === null ? "hidden" : "visible" }, []);
  };
  const locate = (x, y) => {
    const place = [Math.floor((x - box.x) / width), Math.floor((y - box.y) / height)];
    const isInside = place[0] >= 0 && place[0] < columns && place[1] >= 0 && place[1] < rows;
    return isInside ? place : null;
  };
  cursor(root, columns, rows, locate, show, hide);
  return mark;
}

// A large map with the tokens on its axes.
function tokenMap(map, label, width, colourOf, show, hide) {
  const [tokens, keys] = [map.tokens, map.keys].map((of) => of.map((x) => shortened(x, 84)));
  const [left, top] = [tokens, keys].map((of) => 12 + Math.max(...of.map(widthOf)));
  const cell = Math.min(26, (width - left - 4) / map.columns, 520 / map.rows);
  const frame = { x: left, y: top, width: cell * map.columns, height: cell * map.rows };
  const root = picture(left + frame.width + 4, top + frame.height + 4,
    `${label} The arrow keys go through the tokens.`);
  const mark = drawMap(root, frame, map.rows, map.columns, colourOf, show, hide);
  if (cell >= 9) {
    tokens.forEach((token, i) => root.append(
      text(left - 5, top + (i + 0.5) * cell + 4, token, { "text-anchor": "end" })));
    keys.forEach((token, i) => {
      const x = left + (i + 0.5) * cell + 4;
      root.append(text(x, top - 5, token, { transform: `rotate(-90 ${x} ${top - 5})` }));
    });
  }
  return { root, mark };
}

// What colours stand for, from the least to the greatest number: as strong as the number is large,
// or as its root.
function ramp(series, isSigned, isRoot = false) {
  const own = `var(${seriesName(series)})`;
  const [least, steps] = [isSigned ? -1 : 0, 16];
  const stops = Array.from({ length: steps + 1 }, (_, i) => {
    const value = least + ((1 - least) * i) / steps;
    const strength = isRoot ? Math.sqrt(Math.abs(value)) : Math.abs(value);
    const percent = Math.round(100 * strength);
    return `color-mix(in srgb, ${value < 0 ? "var(--soft)" : own} ${percent}%, transparent)`;
  });
  const style = `background: linear-gradient(to right, ${stops.join(", ")})`;
  return html("span", { class: "ramp", style, "aria-hidden": "true" });
}
