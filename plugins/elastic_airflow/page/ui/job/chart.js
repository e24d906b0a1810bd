// Lines, bands and points over one axis, as SVG: pointed at, or walked through with the arrow keys, it says its figures.

import { count, el, measure, svg } from "../format.js";

const HEIGHT = 240, LEFT = 58, RIGHT = 14, TOP = 24, BOTTOM = 40;
const LOG_FROM = 100; // largest over smallest: from here on a scale of logarithms shows more
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

// `series`: `{ name, colour, points, dots, faint }`, a point being `{ x, y, low, high, hollow, said }`; `marks`: `{ x, text, said }`.
// `x`, `y`: names of the axes; `whole`: whole numbers along x; `zero`: y begins at 0; `empty`: what is said without points.
export function drawChart(root, { label, series, marks = [], x, y, whole = false, zero = false, empty }) {
  const shown = series.map((one) => ({ ...one, points: one.points.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y)) })).filter((one) => one.points.length);
  const points = shown.flatMap((one) => one.points);
  if (!points.length) {
    root.replaceChildren(el("p", { class: "empty" }, empty));
    return;
  }
  const width = Math.max(320, root.clientWidth);
  const across = scale(points.map((p) => p.x), LEFT, width - RIGHT, { least: whole ? 1 : 0, linear: true });
  const up = scale(points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), HEIGHT - BOTTOM, TOP, { zero, linear: zero });
  const chart = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${label}. Arrow keys say its figures.` });
  chart.append(...axes(across, up, width, x, y), ...marked(marks, across, width), ...shown.flatMap((one) => drawn(one, across, up)));
  const readout = el("p", { class: "readout", role: "status" });
  follow(chart, shown, across, x, readout);
  root.replaceChildren(legend(shown), chart, readout);
}

function scale(values, from, to, { zero = false, linear = false, least = 0 }) {
  let low = zero ? 0 : Math.min(...values), high = Math.max(...values);
  const logs = !linear && low > 0 && high / low >= LOG_FROM;
  if (high === low) [low, high] = [logs ? low : low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const f = logs ? Math.log10 : (value) => value;
  const place = (value) => from + ((f(value) - f(low)) / (f(high) - f(low))) * (to - from);
  return { low, high, place, ticks: logs ? powers(low, high) : nice(low, high, least), logs };
}

function nice(low, high, least) {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw));
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) ticks.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return ticks;
}

function powers(low, high) {
  const ticks = [];
  const every = Math.max(1, Math.ceil(Math.log10(high / low) / 6));
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += every) ticks.push(10 ** power);
  return ticks;
}

const short = (value) => (Math.abs(value) >= 1e4 ? compact.format(value) : measure(value));

function axes(across, up, width, x, y) {
  const floor = HEIGHT - BOTTOM, grid = svg("g", { class: "grid", "aria-hidden": "true" });
  for (const at of up.ticks) {
    grid.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: up.place(at), y2: up.place(at) }));
    grid.append(svg("text", { x: LEFT - 8, y: up.place(at) + 4, "text-anchor": "end" }, short(at)));
  }
  for (const at of across.ticks) grid.append(svg("text", { x: across.place(at), y: floor + 16, "text-anchor": "middle" }, short(at)));
  grid.append(svg("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x));
  grid.append(svg("text", { x: 4, y: 12 }, up.logs ? `${y} (logarithmic)` : y));
  return [grid];
}

// A mark's words stand where they do not run into those before.
function marked(marks, across, width) {
  const nodes = [];
  let free = LEFT;
  for (const mark of marks.filter((one) => one.x >= across.low && one.x <= across.high)) {
    const at = across.place(mark.x), room = 7 * mark.text.length + 8;
    nodes.push(svg("line", { class: "mark", x1: at, x2: at, y1: TOP - 6, y2: HEIGHT - BOTTOM }, svg("title", {}, mark.said)));
    if (at < free || at + room > width) continue;
    nodes.push(svg("text", { class: "mark-text", x: at + 4, y: TOP + 2, "aria-hidden": "true" }, mark.text));
    free = at + room;
  }
  return nodes;
}

function drawn({ points, colour, dots, faint }, across, up) {
  const kind = `series c${colour}${faint ? " faint" : ""}`;
  const path = (get) => points.map((p) => `${across.place(p.x).toFixed(1)},${up.place(get(p)).toFixed(1)}`);
  const nodes = [];
  if (points.every((p) => p.low !== undefined)) {
    nodes.push(svg("polygon", { class: `${kind} band`, points: [...path((p) => p.low), ...path((p) => p.high).reverse()].join(" ") }));
  }
  if (!dots && points.length > 1) nodes.push(svg("polyline", { class: kind, points: path((p) => p.y).join(" ") }));
  if (dots || points.length === 1) {
    nodes.push(...points.map((p) => svg("circle", { class: `${kind} dot${p.hollow ? " hollow" : ""}`, cx: across.place(p.x), cy: up.place(p.y), r: 4.5 })));
  }
  return nodes;
}

function legend(series) {
  const named = series.filter((one, i) => one.name && series.findIndex((other) => other.name === one.name) === i);
  const list = el("ul", { class: "legend" });
  for (const { name, colour, dots, faint } of named) {
    const kind = `series c${colour}${faint ? " faint" : ""}`;
    const sign = dots ? svg("circle", { class: `${kind} dot`, cx: 9, cy: 6, r: 4.5 }) : svg("line", { class: kind, x1: 0, x2: 18, y1: 6, y2: 6 });
    list.append(el("li", {}, svg("svg", { width: 18, height: 12, "aria-hidden": "true" }, sign), name));
  }
  return list;
}

function follow(chart, series, across, x, readout) {
  const places = [...new Set(series.flatMap((one) => one.points.map((p) => p.x)))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  chart.append(cursor);
  let at = null;
  const say = (index) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    const here = places[at];
    const told = series.flatMap((one) => one.points.filter((p) => p.x === here).map((p) => `${one.name ? `${one.name} ` : ""}${p.said ?? measure(p.y)}`));
    for (const [end, value] of [["x1", across.place(here)], ["x2", across.place(here)], ["visibility", "visible"]]) cursor.setAttribute(end, value);
    readout.textContent = `${x} ${count(here)}: ${told.join("; ")}`;
  };
  chart.addEventListener("pointermove", (event) => {
    const left = event.clientX - chart.getBoundingClientRect().left;
    const off = places.map((place) => Math.abs(across.place(place) - left));
    say(off.indexOf(Math.min(...off)));
  });
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    say(at === null && Number.isFinite(step) ? (step > 0 ? 0 : places.length - 1) : (at ?? 0) + step);
  });
}
