// The pictures of all sentences: lines by layer, and distributions of the cosines.

const MARGIN = { left: 46, right: 10, top: 8, bottom: 32 };
const HALF = 16; // of the width of a line of a single layer, and the room for it
const DASHES = [null, "6 3", "2 2.5", "9 3 2 3"];
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

// Numbers of an axis, with all their digits.
function tick(value) {
  return String(Number(value.toPrecision(12))).replaceAll("-", "−");
}

// Lines without what their scale has no place for: 0 has no logarithm.
function drawable(lines, isLog) {
  const kept = (line) => (_, i) => !isLog || line.means[i] > 0;
  return lines.map((line) => ({
    ...line,
    x: line.x.filter(kept(line)),
    means: line.means.filter(kept(line)),
    sds: line.sds && line.sds.filter(kept(line)),
  })).filter((line) => line.x.length);
}

// What a picture shows, for who cannot see it.
function spoken(title, lines, isDifference) {
  const ends = lines.map(({ series, dash, label, x, means }) => {
    const [first, last] = [0, x.length - 1].map((i) => `${number(means[i])} at ${number(x[i])}`);
    return `${LABELS[series]}${dash ? ` (${label})` : ""}: ${first} to ${last}`;
  });
  const what = isDifference ? `, less ${LABELS[0]}` : "";
  return `${title}${what}. ${ends.join("; ")}. The arrow keys go through the layers.`;
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
      if (data.log && !(ours > 0 && first > 0)) return;
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
  const card = figure.closest(".card");
  if (!cards.has(card)) cards.set(card, []);
  cards.get(card).push(data);
  const box = html("div");
  const tip = html("output", { class: "tip", "aria-live": "polite" });
  figure.querySelector("svg").replaceWith(box);
  figure.append(tip);
  redraw.push(() => {
    tip.replaceChildren();
    const all = isDifference ? differences(data) : drawable(data.lines, data.log);
    const limits = isDifference ? limitsOfDifferences(card, data.log) : data.limits;
    const lines = all.filter((line) => shown.has(line.series));
    const view = { lines, limits, isDifference };
    box.replaceChildren(...drawLines(figure, data, view, data.title, tip));
  });
}

// What a figure shows of its data: `view` has the lines, the limits of their axis, and whether they
// are differences.
function drawLines(figure, data, view, title, tip) {
  const { lines, limits, isDifference } = view;
  if (!lines.length) {
    let reason = "No model is shown.";
    if (shown.size && isDifference) {
      reason = "No difference to show: the models have another number of these in a layer, or " +
        `only ${LABELS[0]} is shown.`;
    } else if (shown.size) {
      reason = `What is shown has no value ${data.log ? "above 0 " : ""}here.`;
    }
    return [html("p", { class: "nothing" }, reason)];
  }
  const width = figure.clientWidth;
  const height = Math.round(Math.min(230, Math.max(170, 0.62 * width)));
  const numbers = ticks(...limits, data.log);
  const widest = Math.max(...numbers.map((y) => widthOf(tick(y))));
  const [left, right] = [Math.max(MARGIN.left, widest + 8), width - MARGIN.right];
  const [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
  const everyX = data.lines.flatMap((line) => line.x);
  const [first, last] = [Math.min(...everyX), Math.max(...everyX)];
  const scale = data.log ? Math.log : (value) => value;
  const [low, high] = limits.map(scale);
  const toX = first === last
    ? () => (left + right) / 2
    : (x) => left + HALF + ((x - first) / (last - first)) * (right - left - 2 * HALF);
  const toY = (y) => bottom - ((scale(y) - low) / (high - low)) * (bottom - top);
  const inside = (y) => Math.min(bottom, Math.max(top, toY(y)));

  const root = picture(width, height, spoken(title, lines, isDifference));
  for (const y of numbers) {
    root.append(
      svg("line", { class: "grid", x1: left, x2: right, y1: toY(y), y2: toY(y) }),
      text(left - 5, toY(y) + 4, tick(y), { "text-anchor": "end" }));
  }
  const every = everyLayer(last - first, right - left);
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
    const colour = `var(${seriesName(line.series)})`;
    const path = widened(line.x.map((x, i) => [toX(x), i]));
    if (line.sds) {
      const edge = (sign) => path.map(([x, i]) =>
        `${x} ${inside(line.means[i] + sign * line.sds[i])}`);
      const d = `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`;
      root.append(svg("path", { d, fill: colour, opacity: 0.14 }));
    }
    const d = `M${path.map(([x, i]) => `${x} ${toY(line.means[i])}`).join("L")}`;
    const dash = DASHES[line.dash % DASHES.length];
    const stroke = { stroke: colour, "stroke-width": 2, "stroke-dasharray": dash };
    root.append(svg("path", { d, fill: "none", ...stroke }));
    const mark = { width: 9, height: 9, fill: colour, style: markStyle(line.series) };
    line.x.forEach((x, i) =>
      root.append(svg("rect", { x: toX(x) - 4.5, y: toY(line.means[i]) - 4.5, ...mark })));
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

// The points of a line. A single one gets a width, or neither dash nor band could be seen.
function widened(points) {
  if (points.length > 1) return points;
  const [[x, i]] = points;
  return [[x - HALF, i], [x + HALF, i]];
}

// Of how many layers one is numbered, where a width has so many.
function everyLayer(layers, width) {
  return Math.max(1, Math.ceil((28 * layers) / width));
}

// Lines of layers are over time where an operator stands often in each.
function where(x, of) {
  if (!Number.isInteger(x)) return `within layer ${Math.ceil(x)}`;
  if (of === "layers") return `layer ${x}`;
  return x === 0 ? "before the first layer" : `after layer ${x}`;
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

// --- distributions of the cosines ----------------------------------------------------------------

const clouds = []; // the data of all distributions, of whose differences a side's share a scale

function distributions(figure, data, base) {
  const label = figure.querySelector("svg").getAttribute("aria-label");
  clouds.push({ data, base });
  const box = html("div");
  const scale = html("p", { class: "soft" });
  const tip = html("output", { class: "tip", "aria-live": "polite" });
  figure.querySelector("svg").replaceWith(box);
  figure.append(scale, tip);
  redraw.push(() => {
    tip.replaceChildren();
    figure.hidden = !shown.has(data.series) || (isDifference && data === base);
    if (!figure.hidden) box.replaceChildren(draw());
  });

  function draw() {
    const { places, shares } = isDifference ? sharesLess(data, base) : allShares(data);
    const largest = isDifference ? largestDifference(base) : data.top;
    const ends = [isDifference ? -largest : 0, largest].map((x) => number(100 * x, isDifference));
    scale.replaceChildren(
      `${ends[0]} %`, ramp(data.series, isDifference, true), `${ends[1]} % of the pairs`);
    const [above, below] = [colour(seriesName(data.series)), colour("--soft")];
    const [width, height, bins] = [figure.clientWidth, 230, shares[0].length];
    const frame = { x: MARGIN.left, y: 8, width: width - MARGIN.left - 10, height: 190 };
    const toY = (cosine) => frame.y + ((1 - cosine) / 2) * frame.height;
    const toX = (column) => frame.x + ((column + 0.5) / places.length) * frame.width;
    const what = isDifference
      ? `Distribution of the cosines, ${LABELS[data.series]}, less that of ${LABELS[0]}.`
      : label;
    const root = picture(width, height, `${what} The arrow keys go through states and cosines.`);
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
    const every = everyLayer(data.times.at(-1), frame.width);
    places.forEach((i, column) => {
      if (data.times[i] % every) return;
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

function sharesOf(counts) {
  const total = counts.reduce((sum, x) => sum + x, 0);
  return counts.map((x) => x / total);
}

// Of each state the share of the pairs in each bin; `places` are the states to draw.
function allShares(data) {
  return { places: data.times.map((_, i) => i), shares: data.counts.map(sharesOf) };
}

// The same, less those of the first model at the states that both have.
function sharesLess(data, base) {
  const partner = data.times.map((own) => base.times.findIndex((t) => Math.abs(t - own) < 1e-4));
  const { places, shares } = allShares(data);
  const common = places.filter((i) => partner[i] >= 0);
  for (const i of common) {
    const first = sharesOf(base.counts[partner[i]]);
    shares[i] = shares[i].map((x, bin) => x - first[bin]);
  }
  return { places: common, shares };
}

function largestDifference(base) {
  const all = clouds.filter((x) => x.base === base && x.data !== base).flatMap(({ data }) => {
    const { places, shares } = sharesLess(data, base);
    return places.flatMap((i) => shares[i].map(Math.abs));
  });
  return Math.max(...all) || 1;
}
