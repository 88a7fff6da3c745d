// Single sentences: which tokens meet, and which attend to which.

// The maps of a model's sentence, each with its numbers, by side.
async function unpack(view) {
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
        numbers.getInt16(2 * (start + (head * rows + r) * columns + c), true) / map.scale;
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
// name, and what draws it. Returns it, and what marks the chosen one.
function chooser(label, rowTitles, columnTitles, cells, choose) {
  const pick = (r, c) => {
    choose(r, c);
    buttons[r][c].focus();
  };
  const buttons = cells.map((row, r) => row.map((cell, c) => {
    const button = html("button",
      { type: "button", role: "radio", title: cell.name, "aria-label": cell.name });
    button.append(cell.draw());
    button.addEventListener("click", () => pick(r, c));
    button.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const [dr, dc] = moves[event.key];
      if (buttons[r + dr] && buttons[r + dr][c + dc]) pick(r + dr, c + dc);
    });
    return button;
  }));
  const style = `grid-template-columns: repeat(${columnTitles.length + 1}, max-content)`;
  const heads = ["", ...columnTitles].map((x) => html("span", { class: "head" }, x));
  const rows = buttons.flatMap((row, r) => [html("span", {}, rowTitles[r]), ...row]);
  const grid = html("div", { class: "choice", role: "radiogroup", "aria-label": label, style },
    ...heads, ...rows);
  const check = (row, column) => buttons.forEach((of, r) => of.forEach((button, c) => {
    const isChosen = r === row && c === column;
    fill(button, { "aria-checked": isChosen, tabindex: isChosen ? 0 : -1 }, []);
  }));
  return { root: html("div", { class: "scroll" }, grid), check };
}

// A token, kept apart from its surroundings, as some scripts go from right to left.
function isolated(token) {
  return `\u2068${token}\u2069`;
}

function quoted(token) {
  return `“${isolated(token)}”`;
}

function sameTokens(one, other) {
  return one.join(" ") === other.join(" ");
}

// One of the two parts of a sentence: small maps to choose from, the chosen one large for each
// model, and the values of the cell that is pointed at. What is in a map, its classes below say.
class Maps {
  constructor(title, explanation) {
    this.kind = 0; // of `kinds`
    this.chosen = { row: 0, column: 0 }; // of the grid
    this.switch = html("form", { class: "controls" });
    this.grids = html("div", { class: "maps" });
    this.large = html("div", { class: "maps" });
    this.values = html("output", { class: "values", "aria-live": "polite" });
    this.card = html("section", { class: "card" }, html("h3", {}, title),
      html("p", { class: "soft" }, explanation), this.switch, this.grids, this.large, this.values);
    this.switch.addEventListener("submit", (event) => event.preventDefault());
  }

  // What there is of a sentence: a side's cosines, or one of its attentions.
  set models(models) {
    this.sides = models;
    const found = models[0].flatMap((side, i) =>
      [...new Set(side.maps.map((map) => map.kind))]
        .filter((kind) => this.has(kind) && models.every((sides) =>
          sides[i]?.maps.some((map) => map.kind === kind)))
        .map((kind) => ({ side: i, kind, title: this.title(side.side, kind) })));
    const isNew = !this.kinds || this.kinds.length !== found.length;
    this.kinds = found;
    if (isNew) {
      this.kind = 0;
      const titles = found.map((x) => x.title);
      const choose = (i) => {
        this.kind = i;
        this.chosen = { row: 0, column: 0 };
        this.draw();
      };
      this.switch.replaceChildren(radios("Show", this.switchName, titles, choose));
      this.switch.hidden = found.length < 2;
    }
    this.draw();
  }

  maps(model) {
    const { side, kind } = this.kinds[this.kind];
    return this.sides[model][side].maps.filter((map) => map.kind === kind);
  }

  draw() {
    const visible = [...LABELS.keys()].filter((i) => shown.has(i));
    this.choosers = new Map(visible.map((i) => [i, this.chooser(i)]));
    this.grids.replaceChildren(...visible.map((i) => html("figure", {},
      html("figcaption", {}, key(i), LABELS[i]), this.choosers.get(i).root)));
    this.drawChosen();
  }

  // What is chosen: its place in the grids, which stay, and its large maps.
  drawChosen() {
    this.choosers.forEach(({ check }, model) => check(...this.place(model)));
    this.drawLarge([...this.choosers.keys()]);
  }

  chooser(model) {
    const colours = [colour(seriesName(model)), colour("--soft")];
    const cell = (map, head) => ({
      name: this.name(map, head),
      draw: () => canvas(map.rows, map.columns,
        (r, c) => tint(this.strength(map.value(head, r, c)), ...colours)),
    });
    const { rowTitles, columnTitles, cells } = this.cells(model, cell);
    const choose = (row, column) => {
      this.chosen = { row, column };
      this.drawChosen();
    };
    return chooser(`${this.axes}, ${LABELS[model]}`, rowTitles, columnTitles, cells, choose);
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
      let [low, high] = this.range;
      if (isDifference) {
        if (!model) continue;
        const isSame = sameTokens(map.tokens, base.map.tokens) &&
          sameTokens(map.keys, base.map.keys) && map.layer === base.map.layer &&
          map.occurrence === base.map.occurrence;
        if (!isSame || head) {
          const reason = head
            ? "Heads of two models have no common order: choose the mean."
            : "The models read other tokens here, or one does not have this layer or attention.";
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
      const [above, below] = [colour(seriesName(model)), colour("--soft")];
      const caption = html("figcaption", {}, ...parts, html("br"), low,
        ramp(model, isDifference || this.isSigned, this.isRoot && !isDifference), high);
      figure.append(caption);
      figures.push(figure);
      marks.push({ figure, map, value, strength, above, below, model, head });
    }
    if (!figures.length) {
      const reason = visible.length
        ? `No difference to show: only ${LABELS[0]} is shown.` : "No model is shown.";
      figures.push(html("p", { class: "nothing" }, reason));
    }
    this.large.replaceChildren(...figures);
    const show = (pointed) => (c, r) => {
      marks.forEach(({ mark, map }) => r < map.rows && c < map.columns && mark(c, r));
      this.values.replaceChildren(...marks
        .filter(({ map }) => r < map.rows && c < map.columns)
        .map(({ map, value, model }) => html("div", {}, key(model),
          `${LABELS[model]}: ${this.pair(map, r, c)} ${number(value(r, c), isDifference)}`)));
      this.pointAt(pointed.map, r, c);
    };
    const hide = () => marks.forEach(({ mark }) => mark(null, 0));
    for (const x of marks) {
      const colourOf = (r, c) => tint(x.strength(x.value(r, c)), x.above, x.below);
      const label = `${LABELS[x.model]}, ${this.name(x.map, x.head)}.`;
      const drawn = tokenMap(x.map, label, x.figure.clientWidth, colourOf, show(x), hide);
      x.mark = drawn.mark;
      x.figure.append(drawn.root);
    }
    this.values.replaceChildren(marks.length ? "Point at a cell to see its value." : "");
  }

  pointAt() {} // what else follows from that
}

// The cosines of all pairs of tokens, a map for each layer.
class Cosines extends Maps {
  switchName = "side";
  axes = "Layers";
  range = ["−1", "1"];
  isSigned = true;
  isRoot = false;

  constructor(title, explanation, threshold) {
    super(title, explanation);
    const [min, max, step] = [-1, 1, 0.05];
    this.threshold = html("input", { type: "number", min, max, step, value: threshold });
    this.threshold.addEventListener("input", () => this.drawMeetings());
    this.pairFigure = html("figure", { class: "pair", hidden: "" });
    this.meetings = html("div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens that meet" });
    const label = html("label", {}, "Tokens meet where their cosine is above ", this.threshold);
    this.card.append(this.pairFigure, html("p", {}, label), this.meetings);
  }

  has(kind) {
    return kind === "cosine";
  }

  title(side) {
    return side;
  }

  // The map of a model that is chosen; the last one where it has fewer.
  current(model) {
    const maps = this.maps(model);
    return { map: maps[Math.min(this.chosen.column, maps.length - 1)], head: 0 };
  }

  name(map) {
    return map.layer ? `after layer ${map.layer}` : "before the first layer";
  }

  strength(value) {
    return value;
  }

  cells(model, cell) {
    const maps = this.maps(model);
    return { rowTitles: [""], columnTitles: maps.map((x) => String(x.layer)),
      cells: [maps.map((x) => cell(x, 0))] };
  }

  place(model) {
    return [0, this.maps(model).indexOf(this.current(model).map)];
  }

  pair(map, r, c) {
    return `${quoted(map.tokens[r])} and ${quoted(map.keys[c])}:`;
  }

  draw() {
    super.draw();
    this.pairFigure.hidden = true;
    this.drawMeetings();
  }

  // The cosine of the pair that is pointed at by the layer, of all models that read these tokens.
  pointAt(map, r, c) {
    const lines = [...LABELS.keys()].map((i) => {
      const maps = this.maps(i).filter((other) => sameTokens(other.tokens, map.tokens));
      return { series: i, dash: 0, label: "", x: maps.map((other) => other.layer),
        means: maps.map((other) => other.value(0, r, c)), sds: null };
    }).filter((line) => shown.has(line.series) && line.x.length);
    const all = lines.flatMap((line) => line.means);
    const limits = [Math.min(0, ...all) - 0.05, Math.max(1, ...all) + 0.05];
    const title = `Cosine of ${quoted(map.tokens[r])} and ${quoted(map.tokens[c])}`;
    const tip = html("output", { class: "tip" });
    const box = html("div");
    this.pairFigure.hidden = false;
    this.pairFigure.replaceChildren(html("figcaption", {}, title), box, tip);
    const data = { log: false, of: "states", lines };
    const view = { lines, limits, isDifference: false };
    box.append(...drawLines(this.pairFigure, data, view, `${title} by layer`, tip));
  }

  // Which pairs first come above the threshold after which layer.
  drawMeetings() {
    const least = this.threshold.valueAsNumber;
    if (Number.isNaN(least)) { // the field is empty
      this.meetings.replaceChildren();
      return;
    }
    const models = [...shown].sort((a, b) => a - b);
    const found = models.map((model) => {
      const maps = this.maps(model);
      const layers = maps.map(() => []);
      let nearest = { cosine: -2 };
      for (let r = 0; r < maps[0].rows; r++) {
        for (let c = r + 1; c < maps[0].columns; c++) {
          const cosines = maps.map((map) => map.value(0, r, c));
          const place = cosines.findIndex((x) => x > least);
          const pair = [r, c].map((i) => isolated(maps[0].tokens[i])).join(" – ");
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
      html("caption", {}, `Pairs of tokens whose cosine is first above ${number(least)} there`),
      html("thead", {}, html("tr", {}, html("td"), ...heads)),
      html("tbody", {}, ...rows, nearest)));
  }
}

// The weights of attention, a map for each layer and head. Head 0 is the heads' mean.
class Attentions extends Maps {
  switchName = "attention";
  axes = "Layers and heads";
  range = ["0", "1"];
  isSigned = false;
  isRoot = true;

  has(kind) {
    return kind !== "cosine";
  }

  title(side, kind) {
    return `${side} ${kind}`;
  }

  current(model) {
    const maps = this.maps(model);
    const map = maps[Math.min(this.chosen.row, maps.length - 1)];
    return { map, head: Math.min(this.chosen.column, map.heads) };
  }

  // Some schemes have several attentions in a layer.
  layerOf(map) {
    const several = this.kinds.length && LABELS.some((_, i) =>
      this.maps(i).some((x) => x.occurrence > 1));
    return `layer ${map.layer}${several ? `, number ${map.occurrence}` : ""}`;
  }

  name(map, head) {
    return `${this.layerOf(map)}, ${head ? `head ${head}` : "mean of the heads"}`;
  }

  strength(value) {
    return Math.sqrt(value); // shows the small ones
  }

  cells(model, cell) {
    const maps = this.maps(model);
    const heads = Array.from({ length: maps[0].heads + 1 }, (_, i) => i);
    return { rowTitles: maps.map((x) => this.layerOf(x)),
      columnTitles: heads.map((i) => (i ? String(i) : "mean")),
      cells: maps.map((x) => heads.map((i) => cell(x, i))) };
  }

  place(model) {
    const { map, head } = this.current(model);
    return [this.maps(model).indexOf(map), head];
  }

  pair(map, r, c) {
    return `${quoted(map.tokens[r])} attends to ${quoted(map.keys[c])}:`;
  }
}

function singleSentences() {
  const holder = document.getElementById("sentence-view");
  if (!holder) return;
  if (!("DecompressionStream" in window)) {
    holder.append(html("p", {}, "This browser is too old to unpack this part."));
    return;
  }
  const data = read(document.getElementById("sentence-data"));
  const options = data.sentences.map(({ number: n, title }, i) =>
    html("option", { value: i, dir: "auto" }, `${n}: ${title}`));
  const select = html("select", { id: "sentence" }, ...options);
  const cosines = new Cosines("Which tokens meet",
    "The cosines of all pairs of tokens: the stronger the colour, the nearer to 1; negative ones " +
    "are grey.", data.threshold);
  const attention = new Attentions("Which tokens attend to which",
    "Rows attend to columns, and each row sums to one. A small map for each layer and head; the " +
    "colour is the square root of the weight, which shows the small ones. Heads of two models " +
    "have no common order.");
  holder.append(
    html("p", {}, html("label", { for: "sentence" }, "Sentence "), select),
    cosines.card, attention.card);
  let asked = 0;
  const choose = async () => {
    const own = ++asked;
    const { models } = data.sentences[Number(select.value)];
    const unpacked = await Promise.all(models.map((view) => unpack(view)));
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
