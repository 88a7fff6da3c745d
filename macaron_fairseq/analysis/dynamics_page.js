// The page of `macaron-fairseq dynamics`, with values to point at. Without it the pictures stand
// as matplotlib drew them. It reads the JSON that stands in the page, and nothing else.
"use strict";

(() => {
  const LABELS = read(document.getElementById("labels"));
  const shown = new Set(LABELS.keys()); // the models
  let isDifference = false; // of each model from the first
  const redraw = []; // what to call when something of this changes, or the width, or the theme

  // --- elements ----------------------------------------------------------------------------------

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

  function key(series) {
    const style = `background: var(--series-${series % 4})`;
    return html("span", { class: "key", style, "aria-hidden": "true" });
  }

  function number(value, isSigned = false) {
    const digits = String(Number(value.toPrecision(3)));
    return (isSigned && value > 0 ? "+" : "") + digits.replaceAll("-", "−");
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
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const scale = picture.viewBox.baseVal.width / box.width;
      const place = locate((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
      if (place) go(...place);
      else hide();
    });
    picture.addEventListener("pointerleave", () => {
      if (document.activeElement !== picture) hide();
    });
    picture.addEventListener("focus", () => go(column, row));
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

  // --- lines -------------------------------------------------------------------------------------

  const MARGIN = { left: 46, right: 10, top: 8, bottom: 32 };
  const DASHES = [null, "6 3", "2 2.5"];
  const cards = new Map(); // the data of a card's line charts, which share their axes

  function ticks(low, high, isLog) {
    if (isLog) {
      const found = [];
      for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
        found.push(...[1, 2, 5].map((k) => k * 10 ** e).filter((x) => x >= low && x <= high));
      }
      if (found.length > 6) return found.filter((x) => Number.isInteger(Math.log10(x)));
      if (found.length > 2) return found;
    }
    const raw = (high - low) / 4;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((x) => x >= raw);
    const first = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  // Each model's lines less the first one's, or of what has a log scale divided by them, where both
  // models have the operator as often in a layer and at the same places.
  function differences(data) {
    const of = (series) => data.lines.filter((line) => line.series === series);
    const base = of(0);
    const found = [];
    for (const line of data.lines.filter((x) => x.series > 0)) {
      const partner = base.find((x) => x.dash === line.dash);
      if (!partner || of(line.series).length !== base.length) continue;
      const result = { ...line, x: [], means: [], sds: null };
      line.x.forEach((x, i) => {
        const j = partner.x.findIndex((y) => Math.abs(x - y) < 1e-4);
        if (j < 0) return;
        const [ours, first] = [line.means[i], partner.means[j]];
        result.x.push(x);
        result.means.push(data.log ? ours / first : ours - first);
      });
      if (result.x.length) found.push(result);
    }
    return found;
  }

  function limitsOfDifferences(card, isLog) {
    const all = cards.get(card).flatMap(differences).flatMap((line) => line.means);
    if (isLog) return [Math.min(1, ...all) / 1.2, Math.max(1, ...all) * 1.2];
    const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
    const margin = 0.08 * (high - low) || 1;
    return [low - margin, high + margin];
  }

  function lineChart(figure, data) {
    const label = figure.querySelector("svg").getAttribute("aria-label");
    const card = figure.closest(".card");
    if (!cards.has(card)) cards.set(card, []);
    cards.get(card).push(data);
    const box = html("div");
    const tip = html("output", { class: "tip", "aria-live": "polite" });
    figure.querySelector("svg").replaceWith(box);
    figure.append(tip);
    redraw.push(() => {
      tip.replaceChildren();
      const all = isDifference ? differences(data) : data.lines;
      const limits = isDifference ? limitsOfDifferences(card, data.log) : data.limits;
      const lines = all.filter((line) => shown.has(line.series));
      box.replaceChildren(...drawLines(figure, data, lines, limits, label, tip));
    });
  }

  function drawLines(figure, data, lines, limits, label, tip) {
    if (!lines.length) {
      const reason = isDifference && shown.size
        ? "No difference to show: the models have another number of these in a layer, or only " +
          `${LABELS[0]} is shown.`
        : "No model is shown.";
      return [html("p", { class: "nothing" }, reason)];
    }
    const width = figure.clientWidth;
    const height = Math.round(Math.min(230, Math.max(170, 0.62 * width)));
    const [left, right] = [MARGIN.left, width - MARGIN.right];
    const [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
    const everyX = data.lines.flatMap((line) => line.x);
    const [first, last] = [Math.min(...everyX), Math.max(...everyX)];
    const scale = data.log ? Math.log : (value) => value;
    const [low, high] = limits.map(scale);
    const toX = (x) => left + 8 + ((x - first) / (last - first || 1)) * (right - left - 16);
    const toY = (y) => bottom - ((scale(y) - low) / (high - low)) * (bottom - top);
    const inside = (y) => Math.min(bottom, Math.max(top, toY(y)));

    const root = picture(width, height, `${label} The arrow keys go through the layers.`);
    for (const y of ticks(...limits, data.log)) {
      root.append(
        svg("line", { class: "grid", x1: left, x2: right, y1: toY(y), y2: toY(y) }),
        text(left - 5, toY(y) + 4, number(y), { "text-anchor": "end" }));
    }
    const every = Math.max(1, Math.ceil((28 * (last - first)) / (right - left)));
    for (let x = Math.ceil(first); x <= last; x += every) {
      root.append(text(toX(x), bottom + 14, x, { "text-anchor": "middle" }));
    }
    root.append(text((left + right) / 2, height - 4, "layer", { "text-anchor": "middle" }));
    root.append(svg("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }));
    if (isDifference) {
      const y = toY(data.log ? 1 : 0);
      root.append(svg("line", { class: "axis", x1: left, x2: right, y1: y, y2: y }));
    }
    for (const line of lines) {
      const colour = `var(--series-${line.series % 4})`;
      if (line.sds) {
        const edge = (sign) => line.x.map((x, i) =>
          `${toX(x)} ${inside(line.means[i] + sign * line.sds[i])}`);
        const d = `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`;
        root.append(svg("path", { d, fill: colour, opacity: 0.14 }));
      }
      const d = `M${line.x.map((x, i) => `${toX(x)} ${toY(line.means[i])}`).join("L")}`;
      const dash = DASHES[line.dash % DASHES.length];
      const stroke = { stroke: colour, "stroke-width": 2, "stroke-dasharray": dash };
      root.append(svg("path", { d, fill: "none", ...stroke }));
      line.x.forEach((x, i) =>
        root.append(svg("circle", { cx: toX(x), cy: toY(line.means[i]), r: 3, fill: colour })));
    }

    const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const guide = svg("line", { class: "guide", y1: top, y2: bottom, visibility: "hidden" });
    root.append(guide);
    const several = new Set(lines.map((line) => line.dash)).size > 1;
    const show = (place) => {
      const x = places[place];
      fill(guide, { x1: toX(x), x2: toX(x), visibility: "visible" }, []);
      const rows = lines.filter((line) => line.x.includes(x)).map((line) => {
        const i = line.x.indexOf(x);
        const what = LABELS[line.series] + (several ? `, ${line.label}` : "");
        const sign = isDifference && data.log ? "× " : "";
        const spread = line.sds ? ` ± ${number(line.sds[i])}` : "";
        const value = number(line.means[i], isDifference && !data.log);
        return html("div", {}, key(line.series), `${what}: ${sign}${value}${spread}`);
      });
      tip.replaceChildren(html("strong", {}, where(x, data.of)), ...rows);
      const isRight = toX(x) > width / 2;
      tip.style.left = isRight ? "auto" : `${toX(x) + 10}px`;
      tip.style.right = isRight ? `${width - toX(x) + 10}px` : "auto";
      tip.style.bottom = `${figure.clientHeight - root.parentNode.offsetTop - bottom + 4}px`;
    };
    const hide = () => {
      guide.setAttribute("visibility", "hidden");
      tip.replaceChildren();
    };
    const nearest = (x) => places.reduce(
      (best, place, i) => (Math.abs(toX(place) - x) < Math.abs(toX(places[best]) - x) ? i : best),
      0);
    cursor(root, places.length, 1, (x) => [nearest(x), 0], show, hide);
    return several ? [root, dashes(lines)] : [root];
  }

  function where(x, of) {
    if (of === "layers") return `layer ${x}`;
    if (x === 0) return "before the first layer";
    return Number.isInteger(x) ? `after layer ${x}` : `within layer ${Math.ceil(x)}`;
  }

  function dashes(lines) {
    const found = new Map(lines.map((line) => [line.dash, line.label]));
    const items = [...found].sort((a, b) => a[0] - b[0]).map(([dash, label]) => {
      const stroke = { "stroke-dasharray": DASHES[dash % DASHES.length], "stroke-width": 2 };
      const line = svg("line", { x1: 0, x2: 32, y1: 4, y2: 4, stroke: "currentColor", ...stroke });
      return html("li", {}, svg("svg", { viewBox: "0 0 32 8", "aria-hidden": "true" }, line), label);
    });
    return html("ul", { class: "legend dashes", "aria-label": "Legend of the dashes" }, ...items);
  }

  // --- maps: a colour for each row and column ----------------------------------------------------

  function colour(name) {
    const found = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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

  // --- distributions of the cosines --------------------------------------------------------------

  function distributions(figure, data, base) {
    const label = figure.querySelector("svg").getAttribute("aria-label");
    const box = html("div");
    const tip = html("output", { class: "tip", "aria-live": "polite" });
    figure.querySelector("svg").replaceWith(box);
    figure.append(tip);
    const sharesOf = (counts) => {
      const total = counts.reduce((sum, x) => sum + x, 0);
      return counts.map((x) => x / total);
    };
    redraw.push(() => {
      tip.replaceChildren();
      figure.hidden = !shown.has(data.series) || (isDifference && data === base);
      if (!figure.hidden) box.replaceChildren(draw());
    });

    function draw() {
      let places = data.times.map((_, i) => i);
      let shares = data.counts.map(sharesOf);
      if (isDifference) {
        const partner = (i) => base.times.findIndex((t) => Math.abs(t - data.times[i]) < 1e-4);
        places = places.filter((i) => partner(i) >= 0);
        shares = shares.map((own, i) =>
          partner(i) < 0 ? own : own.map((x, bin) => x - sharesOf(base.counts[partner(i)])[bin]));
      }
      const largest = isDifference
        ? Math.max(...places.flatMap((i) => shares[i].map(Math.abs))) || 1
        : data.top;
      const [above, below] = [colour(`--series-${data.series % 4}`), colour("--series-0")];
      const [width, height, bins] = [figure.clientWidth, 230, shares[0].length];
      const frame = { x: MARGIN.left, y: 8, width: width - MARGIN.left - 10, height: 190 };
      const toY = (cosine) => frame.y + ((1 - cosine) / 2) * frame.height;
      const toX = (column) => frame.x + ((column + 0.5) / places.length) * frame.width;
      const root = picture(width, height, `${label} The arrow keys go through states and cosines.`);
      const colourOf = (row, column) => {
        const share = shares[places[column]][bins - 1 - row] / largest;
        return tint(Math.sign(share) * Math.sqrt(Math.abs(share)), above, below);
      };
      const show = (column, row) => {
        mark(column, row);
        const [i, bin] = [places[column], bins - 1 - row];
        const [from, to] = [bin, bin + 1].map((x) => number(-1 + (2 * x) / bins));
        const share = 100 * shares[i][bin];
        const [low, median, high] = data.quantiles[i].map((x) => number(x));
        tip.replaceChildren(
          html("strong", {}, i ? `after ${data.names[i]}` : "before the first layer"),
          html("div", {}, `${number(share, isDifference)} % of the pairs from ${from} to ${to}`),
          html("div", {}, `median ${median}; nine of ten from ${low} to ${high}`));
        const isRight = column > places.length / 2;
        tip.style.left = isRight ? "auto" : `${toX(column) + 12}px`;
        tip.style.right = isRight ? `${width - toX(column) + 12}px` : "auto";
        tip.style.top = `${box.offsetTop + frame.y + 4}px`;
      };
      const hide = () => {
        mark(null, 0);
        tip.replaceChildren();
      };
      const mark = drawMap(root, frame, bins, places.length, colourOf, show, hide);
      for (const y of [-1, -0.5, 0, 0.5, 1]) {
        root.append(text(frame.x - 5, toY(y) + 4, number(y), { "text-anchor": "end" }));
      }
      places.forEach((i, column) => {
        if (!Number.isInteger(data.times[i])) return;
        root.append(text(toX(column), 212, data.times[i], { "text-anchor": "middle" }));
      });
      root.append(text(frame.x + frame.width / 2, 227, "layer", { "text-anchor": "middle" }));
      if (!isDifference) {
        data.quantiles[0].forEach((_, q) => {
          const points = places.map((i, column) => `${toX(column)} ${toY(data.quantiles[i][q])}`);
          const dash = { "stroke-dasharray": q === 1 ? null : "2 2", "pointer-events": "none" };
          root.append(svg("path", { class: "axis", d: `M${points.join("L")}`, ...dash }));
        });
      }
      return root;
    }
  }

  // --- single sentences --------------------------------------------------------------------------

  // The maps of a model's sentence, each with its numbers, by side.
  async function unpack(view, scale) {
    const bytes = Uint8Array.from(atob(view.packed), (x) => x.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const numbers = new DataView(await new Response(stream).arrayBuffer());
    let at = 0;
    return view.sides.map((side) => ({
      ...side,
      maps: side.maps.map((map) => {
        const [heads, rows, columns] = map.shape;
        const start = at;
        at += heads * rows * columns;
        const one = (head, r, c) =>
          numbers.getInt16(2 * (start + (head * rows + r) * columns + c), true) / scale;
        // Head 0 is the mean of all, the others are numbered from 1.
        const value = (head, r, c) => {
          if (head) return one(head - 1, r, c);
          let sum = 0;
          for (let i = 0; i < heads; i++) sum += one(i, r, c);
          return sum / heads;
        };
        return { ...map, heads, rows, columns, value, tokens: side.tokens,
          keys: map.keys || side.tokens };
      }),
    }));
  }

  // A grid of small maps, of which one is chosen, as of radio buttons. `cells[row][column]` has a
  // name, and what draws it.
  function chooser(label, rowTitles, columnTitles, cells, chosen, choose) {
    const buttons = cells.map((row, r) => row.map((cell, c) => {
      const isChosen = r === chosen[0] && c === chosen[1];
      const button = html("button", { type: "button", role: "radio", title: cell.name,
        "aria-label": cell.name, "aria-checked": isChosen, tabindex: isChosen ? 0 : -1 });
      button.append(cell.draw());
      button.addEventListener("click", () => choose(r, c));
      button.addEventListener("keydown", (event) => {
        const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
        if (!(event.key in moves)) return;
        event.preventDefault();
        const [dr, dc] = moves[event.key];
        if (buttons[r + dr] && buttons[r + dr][c + dc]) choose(r + dr, c + dc, true);
      });
      return button;
    }));
    const style = `grid-template-columns: repeat(${columnTitles.length + 1}, max-content)`;
    const heads = ["", ...columnTitles].map((x) => html("span", { class: "head" }, x));
    const rows = buttons.flatMap((row, r) => [html("span", {}, rowTitles[r]), ...row]);
    const grid = html("div", { class: "choice", role: "radiogroup", "aria-label": label, style },
      ...heads, ...rows);
    return html("div", { class: "scroll" }, grid);
  }

  // A large map with the tokens on its axes.
  function tokenMap(map, label, width, colourOf, show, hide) {
    const room = (tokens) => Math.min(96, 12 + 6.3 * Math.max(...tokens.map((x) => x.length)));
    const short = (token) => (token.length > 14 ? `${token.slice(0, 13)}…` : token);
    const [left, top] = [room(map.tokens), room(map.keys)];
    const cell = Math.min(26, (width - left - 4) / map.columns, 520 / map.rows);
    const frame = { x: left, y: top, width: cell * map.columns, height: cell * map.rows };
    const root = picture(left + frame.width + 4, top + frame.height + 4,
      `${label} The arrow keys go through the tokens.`);
    const mark = drawMap(root, frame, map.rows, map.columns, colourOf, show, hide);
    if (cell >= 9) {
      map.tokens.forEach((token, i) => root.append(
        text(left - 5, top + (i + 0.5) * cell + 4, short(token), { "text-anchor": "end" })));
      map.keys.forEach((token, i) => {
        const x = left + (i + 0.5) * cell + 4;
        root.append(text(x, top - 5, short(token), { transform: `rotate(-90 ${x} ${top - 5})` }));
      });
    }
    return { root, mark };
  }

  function ramp(series, isSigned) {
    const own = `var(--series-${series % 4})`;
    const from = isDifference ? "var(--series-0), transparent" : "var(--soft), transparent";
    const style = `background: linear-gradient(to right, ${isSigned ? from : "transparent"}, ${own})`;
    return html("span", { class: "ramp", style, "aria-hidden": "true" });
  }

  function sameTokens(one, other) {
    return one.join(" ") === other.join(" ");
  }

  // One of the two parts of a sentence: small maps to choose from, the chosen one large for each
  // model, and the values of the cell that is pointed at.
  class Maps {
    constructor(title, explanation, isAttention) {
      this.isAttention = isAttention;
      this.kind = 0; // of `kinds`
      this.chosen = { row: 0, column: 0 }; // of the grid
      this.switch = html("form", { class: "controls" });
      this.grids = html("div", { class: "maps" });
      this.large = html("div", { class: "maps" });
      this.values = html("output", { class: "values", "aria-live": "polite" });
      this.more = html("div"); // below
      this.card = html("section", { class: "card" }, html("h4", {}, title),
        html("p", { class: "soft" }, explanation), this.switch, this.grids, this.large, this.values,
        this.more);
      this.switch.addEventListener("submit", (event) => event.preventDefault());
    }

    // What there is of a sentence: a side's cosines, or one of its attentions.
    set models(models) {
      this.sides = models;
      const found = models[0].flatMap((side, i) =>
        [...new Set(side.maps.map((map) => map.kind))]
          .filter((kind) => (kind !== "cosine") === this.isAttention)
          .map((kind) => ({ side: i, kind,
            title: this.isAttention ? `${side.side} ${kind}` : side.side })));
      const isNew = !this.kinds || this.kinds.length !== found.length;
      this.kinds = found;
      if (isNew) {
        this.kind = 0;
        const titles = found.map((x) => x.title);
        const name = this.isAttention ? "attention" : "side";
        const choose = (i) => {
          this.kind = i;
          this.chosen = { row: 0, column: 0 };
          this.draw();
        };
        this.switch.replaceChildren(radios("Show", name, titles, choose));
        this.switch.hidden = found.length < 2;
      }
      this.draw();
    }

    maps(model) {
      const { side, kind } = this.kinds[this.kind];
      return this.sides[model][side].maps.filter((map) => map.kind === kind);
    }

    // The map of a model that is chosen, and its head; the last one where it has fewer.
    current(model) {
      const maps = this.maps(model);
      const { row, column } = this.chosen;
      const map = maps[Math.min(this.isAttention ? row : column, maps.length - 1)];
      return { map, head: this.isAttention ? Math.min(column, map.heads) : 0 };
    }

    name(map, head) {
      if (!this.isAttention) return map.layer ? `after layer ${map.layer}` : "before the first layer";
      const several = this.maps(0).some((x) => x.occurrence > 1);
      const which = several ? `, number ${map.occurrence}` : "";
      return `layer ${map.layer}${which}, ${head ? `head ${head}` : "mean of the heads"}`;
    }

    // Of a model's values at a place the colour, between -1 and 1.
    strength(value) {
      return this.isAttention ? Math.sqrt(value) : value;
    }

    draw() {
      const visible = [...LABELS.keys()].filter((i) => shown.has(i));
      this.grids.replaceChildren(...visible.map((i) => this.grid(i)));
      this.drawLarge(visible);
      this.drawMore();
    }

    grid(model) {
      const maps = this.maps(model);
      const colours = [colour(`--series-${model % 4}`), colour("--soft")];
      const cell = (map, head) => ({
        name: this.name(map, head),
        draw: () => canvas(map.rows, map.columns,
          (r, c) => tint(this.strength(map.value(head, r, c)), ...colours)),
      });
      const { map, head } = this.current(model);
      let [rowTitles, columnTitles, cells] = [[""], maps.map((x) => String(x.layer)),
        [maps.map((x) => cell(x, 0))]];
      let place = [0, maps.indexOf(map)];
      if (this.isAttention) {
        const heads = Array.from({ length: maps[0].heads + 1 }, (_, i) => i);
        columnTitles = heads.map((i) => (i ? String(i) : "mean"));
        rowTitles = maps.map((x) => `layer ${x.layer}`);
        cells = maps.map((x) => heads.map((i) => cell(x, i)));
        place = [maps.indexOf(map), head];
      }
      const choose = (row, column, hasFocus) => {
        this.chosen = { row, column };
        this.draw();
        const grid = this.grids.children[[...shown].sort().indexOf(model)];
        if (hasFocus) grid.querySelector("[aria-checked=true]").focus();
      };
      const what = this.isAttention ? "Layers and heads" : "Layers";
      const caption = html("figcaption", {}, key(model), LABELS[model]);
      return html("figure", {}, caption,
        chooser(`${what}, ${LABELS[model]}`, rowTitles, columnTitles, cells, place, choose));
    }

    drawLarge(visible) {
      const marks = [];
      const figures = [];
      const base = this.current(0);
      for (const model of visible) {
        const { map, head } = this.current(model);
        const figure = html("figure");
        const parts = [key(model), `${LABELS[model]}, ${this.name(map, head)}`];
        let value = (r, c) => map.value(head, r, c);
        let strength = (x) => this.strength(x);
        let low = this.isAttention ? "0" : "−1";
        let high = "1";
        if (isDifference) {
          if (!model) continue;
          const isSame = sameTokens(map.tokens, base.map.tokens) &&
            sameTokens(map.keys, base.map.keys) && map.layer === base.map.layer;
          if (!isSame || head) {
            const reason = head
              ? "Heads of two models have no common order: choose the mean."
              : "The models read other tokens here, or have not this layer.";
            figures.push(html("p", { class: "nothing" }, `${LABELS[model]}: ${reason}`));
            continue;
          }
          const own = value;
          value = (r, c) => own(r, c) - base.map.value(0, r, c);
          let largest = 1e-9;
          for (let r = 0; r < map.rows; r++) {
            for (let c = 0; c < map.columns; c++) largest = Math.max(largest, Math.abs(value(r, c)));
          }
          strength = (x) => x / largest;
          [low, high] = [-largest, largest].map((x) => number(x, true));
          parts.push(`, less ${LABELS[0]}`);
        }
        const [above, below] = [colour(`--series-${model % 4}`),
          colour(isDifference ? "--series-0" : "--soft")];
        const caption = html("figcaption", {}, ...parts, html("br"), low,
          ramp(model, isDifference || !this.isAttention), high);
        figure.append(caption);
        figures.push(figure);
        marks.push({ figure, map, value, strength, above, below, model, head });
      }
      this.large.replaceChildren(...figures);
      const show = (c, r) => {
        marks.forEach(({ mark, map }) => r < map.rows && c < map.columns && mark(c, r));
        this.values.replaceChildren(...marks
          .filter(({ map }) => r < map.rows && c < map.columns)
          .map(({ map, value, model }) => html("div", {}, key(model),
            `${LABELS[model]}: ${this.pair(map, r, c)} ${number(value(r, c), isDifference)}`)));
        this.pointed = [r, c];
        if (!this.isAttention) this.drawPair();
      };
      const hide = () => marks.forEach(({ mark }) => mark(null, 0));
      for (const x of marks) {
        const colourOf = (r, c) => tint(x.strength(x.value(r, c)), x.above, x.below);
        const label = `${LABELS[x.model]}, ${this.name(x.map, x.head)}.`;
        const drawn = tokenMap(x.map, label, x.figure.clientWidth, colourOf, show, hide);
        x.mark = drawn.mark;
        x.figure.append(drawn.root);
      }
      this.values.replaceChildren(marks.length ? "Point at a cell to see its value." : "");
    }

    pair(map, r, c) {
      const [one, other] = [`“${map.tokens[r]}”`, `“${map.keys[c]}”`];
      return this.isAttention ? `${one} attends to ${other}:` : `${one} and ${other}:`;
    }

    drawMore() {
      if (this.isAttention) return;
      if (!this.threshold) {
        const [min, max, step] = [-1, 1, 0.05];
        this.threshold = html("input", { type: "number", min, max, step, value: THRESHOLD });
        this.threshold.addEventListener("input", () => this.drawMeetings());
        this.pairFigure = html("figure", { class: "pair", hidden: "" });
        this.meetings = html("div", { class: "scroll" });
        const label = html("label", {}, "Tokens meet where their cosine reaches ", this.threshold);
        this.more.append(this.pairFigure, html("p", {}, label), this.meetings);
      }
      this.pairFigure.hidden = true;
      this.drawMeetings();
    }

    // The cosine of the pair that is pointed at by the layer.
    drawPair() {
      const [r, c] = this.pointed;
      const lines = [...LABELS.keys()].map((i) => {
        const maps = this.maps(i).filter((map) => r < map.rows && c < map.columns);
        return { series: i, dash: 0, label: "", x: maps.map((map) => map.layer),
          means: maps.map((map) => map.value(0, r, c)), sds: null };
      }).filter((line) => shown.has(line.series) && line.x.length);
      const [map] = this.maps(0);
      const all = lines.flatMap((line) => line.means);
      const limits = [Math.min(0, ...all) - 0.05, Math.max(1, ...all) + 0.05];
      const title = `Cosine of “${map.tokens[r]}” and “${map.tokens[c]}”`;
      const tip = html("output", { class: "tip" });
      const box = html("div");
      this.pairFigure.hidden = false;
      this.pairFigure.replaceChildren(html("figcaption", {}, title), box, tip);
      const was = isDifference;
      isDifference = false; // the lines are the models' own
      box.append(...drawLines(this.pairFigure, { log: false, of: "states", lines }, lines, limits,
        `${title} by layer.`, tip));
      isDifference = was;
    }

    // Which pairs first come above the threshold after which layer.
    drawMeetings() {
      const least = Number(this.threshold.value);
      const models = [...shown].sort();
      const found = models.map((model) => {
        const maps = this.maps(model);
        const layers = maps.map(() => []);
        let nearest = { cosine: -2 };
        for (let r = 0; r < maps[0].rows; r++) {
          for (let c = r + 1; c < maps[0].columns; c++) {
            const cosines = maps.map((map) => map.value(0, r, c));
            const place = cosines.findIndex((x) => x >= least);
            const pair = `${maps[0].tokens[r]} – ${maps[0].tokens[c]}`;
            if (place >= 0) layers[place].push({ pair, cosine: cosines[place] });
            const cosine = Math.max(...cosines);
            if (cosine > nearest.cosine) {
              nearest = { cosine, pair, layer: this.name(maps[cosines.indexOf(cosine)], 0) };
            }
          }
        }
        return { layers, nearest };
      });
      const cell = (pairs) => {
        pairs.sort((a, b) => b.cosine - a.cosine);
        const more = pairs.length > 8 ? `, and ${pairs.length - 8} more` : "";
        const named = pairs.slice(0, 8).map((x) => `${x.pair} ${number(x.cosine)}`);
        return html("td", {}, named.join(", ") + more || "none");
      };
      const depth = Math.max(...found.map((x) => x.layers.length));
      const rows = Array.from({ length: depth }, (_, i) => html("tr", {},
        html("th", { scope: "row" }, i ? `after layer ${i}` : "before the first layer"),
        ...found.map((x) => cell(x.layers[i] || []))));
      const nearest = html("tr", {}, html("th", { scope: "row" }, "nearest of all"),
        ...found.map(({ nearest: x }) => html("td", {},
          x.pair ? `${x.pair} ${number(x.cosine)}, ${x.layer}` : "none")));
      const heads = models.map((i) => html("th", { scope: "col" }, key(i), LABELS[i]));
      this.meetings.replaceChildren(html("table", {},
        html("caption", {}, `Pairs of tokens whose cosine first reaches ${number(least)} there`),
        html("thead", {}, html("tr", {}, html("td"), ...heads)),
        html("tbody", {}, ...rows, nearest)));
    }
  }

  let THRESHOLD = 0.9;

  function singleSentences() {
    const holder = document.getElementById("sentence-view");
    if (!holder) return;
    const data = read(document.getElementById("sentence-data"));
    THRESHOLD = data.threshold;
    const titles = data.sentences.map(({ number: n, models }) => {
      const words = models[0].sides[0].tokens.join(" ").replaceAll("@@ ", "").replace("</s>", "");
      return `${n}: ${words.length > 80 ? `${words.slice(0, 79)}…` : words}`;
    });
    const options = titles.map((title, i) => html("option", { value: i }, title));
    const select = html("select", { id: "sentence" }, ...options);
    const cosines = new Maps("Which tokens meet",
      "The cosines of all pairs of tokens: the stronger the colour, the nearer to 1; negative ones " +
      "are grey.", false);
    const attention = new Maps("Which tokens attend to which",
      "Rows attend to columns, and each row sums to one. A small map for each layer and head; the " +
      "colour is the square root of the weight, which shows the small ones. Heads of two models " +
      "have no common order.", true);
    holder.append(
      html("p", {}, html("label", { for: "sentence" }, "Sentence "), select),
      cosines.card, attention.card);
    let asked = 0;
    const choose = async () => {
      const own = ++asked;
      const { models } = data.sentences[Number(select.value)];
      const unpacked = await Promise.all(models.map((view) => unpack(view, data.scale)));
      if (own !== asked) return; // another was chosen meanwhile
      cosines.models = unpacked;
      attention.models = unpacked;
      holder.dataset.shown = select.value;
    };
    select.addEventListener("change", choose);
    redraw.push(() => {
      if (!cosines.sides) return;
      cosines.draw();
      attention.draw();
    });
    choose();
  }

  // --- the page ----------------------------------------------------------------------------------

  function drawAll() {
    if (document.body.clientWidth < 100) return; // the window is closing, or hidden
    for (const draw of redraw) draw();
  }

  document.documentElement.classList.add("scripted");
  const controls = document.getElementById("controls");
  controls.hidden = false;
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("change", () => {
    for (const input of controls.elements.namedItem("model").length
      ? controls.elements.namedItem("model") : [controls.elements.namedItem("model")]) {
      if (input.checked) shown.add(Number(input.value));
      else shown.delete(Number(input.value));
    }
    const view = controls.querySelector("[name=view]:checked");
    isDifference = Boolean(view) && view.value === "difference";
    drawAll();
  });
  let base = null; // the first model's distributions, of the side at hand
  for (const script of document.querySelectorAll("figure > script")) {
    const [figure, data] = [script.parentNode, read(script)];
    if (data.kind === "lines") lineChart(figure, data);
    else {
      if (data.series === 0) base = data;
      distributions(figure, data, base);
    }
  }
  singleSentences();
  drawAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (!window.innerWidth || window.innerWidth === width) return;
    width = window.innerWidth;
    window.requestAnimationFrame(drawAll);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
