// Who holds which slot over time: the use of the pool, then rows by node; one block for each lease.

import { clock, duration, el, plural, svg } from "./format.js";
import { clip, folds, labels, layout } from "./rows.js";
import { usage, useLine } from "./use.js";
import { walk } from "./walking.js";

const AXIS = 20, RIGHT = 14, USE = 34;
const STEPS = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400];
const MARKS = { "set aside": "M-5,-4H5L0,5Z", "taken back": "M-5,4H5L0,-5Z", lost: "M-4,-4L4,4M4,-4L-4,4" };

// Head (use of the pool, axis) and rows are drawn apart, so that many rows scroll below it and keep their place.
export function drawTimeline(root, overview, colour, tip) {
  const data = { ...overview, since: overview.past ? overview.since : shownSince(overview) };
  const rows = layout(data.nodes);
  if (!rows.list.length && !rows.folds) {
    root.replaceChildren(el("p", { class: "empty" }, "The cluster has no slots yet: `elastic up` tells the ledger of this machine's."));
    return;
  }
  const [head, body] = parts(root, rows.folds);
  const width = Math.max(360, body.clientWidth - 2), span = data.now - data.since, used = usage(data);
  const x = (at) => rows.gutter + ((Math.min(Math.max(at, data.since), data.now) - data.since) / span) * (width - rows.gutter - RIGHT);
  const line = { gutter: rows.gutter, width: width - rows.gutter - RIGHT, top: 2, height: USE, tip };
  const upper = chartOf(width, USE + AXIS, "Slots in use over time");
  upper.append(...useLine(data, used, x, line), grid(data, x, width, USE + 2, true));
  head.replaceChildren(upper);

  const redraw = () => drawTimeline(root, overview, colour, tip);
  const chart = chartOf(width, rows.height, "Slots over time, by node. Arrow keys go from one to the next."), held = [];
  chart.append(grid(data, x, width, rows.height, false), ...(rows.folds ? folds(data, used, rows, x, width, redraw) : labels(data.nodes, rows)));
  for (const row of rows.list) {
    chart.append(svg("rect", { class: "idle", x: rows.gutter, y: row.y, width: width - rows.gutter - RIGHT, height: row.h, rx: 3 }));
  }
  for (const hold of data.holds) held.push(...blocks(hold, data, rows, x, colour, tip));
  chart.append(...held.map(({ node }) => node));
  const focused = body.contains(document.activeElement) && document.activeElement.dataset.key;
  walk(chart, held, focused);
  for (const chain of chains(data.holds)) chart.append(...labelOf(chain, data, rows, x));
  for (const event of data.events) chart.append(...mark(event, data, rows, x, tip));
  const now = x(data.now);
  if (!data.past) chart.append(svg("line", { class: "now", x1: now, x2: now, y1: 0, y2: rows.height }));
  body.replaceChildren(chart);
  if (focused) [...body.querySelectorAll("[data-key]")].find((node) => node.dataset.key === focused)?.focus({ preventScroll: true });
}

function parts(root, folds) {
  let [head, body] = root.querySelectorAll(":scope > div");
  if (!body) {
    [head, body] = [el("div"), el("div", { class: "rows" })];
    root.replaceChildren(head, body);
  }
  body.classList.toggle("long", folds);
  return [head, body];
}

function chartOf(width, height, name) {
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": name });
}

function mark(event, data, rows, x, tip) {
  const top = rows.tops.get(event.node);
  if (top === undefined || event.at < data.since) return [];
  const y = top + (rows.folds ? 7 : 6), name = `${event.node} was ${event.what} at ${clock(event.at, true)}`;
  const sign = svg("path", { class: `mark ${event.what.replace(" ", "-")}`, d: MARKS[event.what], transform: `translate(${x(event.at)} ${y})`, role: "img", "aria-label": name });
  tip(sign, () => [el("strong", {}, name), event.why && el("p", {}, event.why)]);
  return [sign];
}

// The asked window, without the emptiness before the first lease in it.
function shownSince(overview) {
  const first = Math.min(overview.now - 60, ...overview.holds.map((hold) => hold.since));
  return Math.max(overview.since, first - 0.04 * (overview.now - first));
}

function grid(data, x, width, height, named) {
  const span = data.now - data.since, room = x(data.now) - x(data.since);
  const step = STEPS.find((s) => (span / s) * 74 < room) ?? 21600;
  const group = svg("g", { class: "grid" });
  for (let at = Math.ceil(data.since / step) * step; at <= data.now; at += step) {
    group.append(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: height }));
    const anchor = x(at) > width - 40 ? "end" : "middle";
    if (named) group.append(svg("text", { x: x(at), y: height + 14, "text-anchor": anchor }, clock(at, step < 60)));
  }
  return group;
}

function blocks(hold, data, rows, x, colour, tip) {
  const left = x(hold.since), right = x(hold.until ?? data.now);
  return hold.slots.flatMap(([node, index], at) => {
    const row = rows.places.get(`${node}:${index}`);
    if (!row) return [];
    const key = `${hold.segment_id}/${hold.attempt} ${node}:${index}`;
    const about = { class: "hold", "data-key": key, x: left, y: row.y, width: Math.max(2, right - left - 1), height: row.h, rx: 3, fill: colour(hold.job_id) };
    const rect = svg("rect", about), told = () => describe(hold, nameOf(hold, data), data, hold.stages[at]).filter(Boolean);
    tip(rect, told);
    const words = () => [`${node}, slot ${index}`, ...told().map((line) => line.textContent)].join("; ");
    return [{ node: rect, key, top: row.y, left, right, words }];
  });
}

// Leases that follow each other on the same slots at the same batch: they get one label.
function chains(holds) {
  const found = [];
  for (const hold of [...holds].sort((a, b) => a.since - b.since)) {
    const key = JSON.stringify([hold.job_id, hold.global_batch, hold.slots]);
    const before = found.find((chain) => chain.key === key && chain.until !== null && Math.abs(hold.since - chain.until) < 1);
    if (before) before.until = hold.until;
    else found.push({ ...hold, key });
  }
  return found;
}

function labelOf(chain, data, rows, x) {
  const row = chain.slots.length && rows.places.get(chain.slots[0].join(":"));
  const left = x(chain.since), room = Math.floor((x(chain.until ?? data.now) - left - 12) / 6.8);
  if (!row || row.h < 13 || room < 3) return [];
  const name = nameOf(chain, data);
  const texts = [`${name}, batch ${chain.global_batch}`, name];
  const text = texts.find((candidate) => candidate.length <= room) ?? clip(name, room);
  return [svg("text", { class: "label", x: left + 6, y: row.y + row.h / 2 + 4 }, text)];
}

function describe(hold, name, data, stage) {
  const until = hold.until ?? data.now;
  const lines = [
    `${clock(hold.since, true)} to ${hold.until ? clock(hold.until, true) : "now"} (${duration(until - hold.since)})`,
    `${plural(hold.slots.length, "slot")}, global batch ${hold.global_batch}${hold.attempt ? `, attempt ${hold.attempt + 1}` : ""}`,
    ...(stage ? [`This slot: ${stage}`] : []),
  ];
  return [
    el("strong", {}, name), el("div", { class: "id" }, hold.segment_id), ...lines.map((line) => el("div", {}, line)),
    hold.grant_reason && el("p", {}, `Why: ${hold.grant_reason}`),
    hold.end_reason && el("p", {}, `Ended: ${hold.end_reason}`),
  ];
}

function nameOf(hold, data) {
  return data.jobs.find((job) => job.job_id === hold.job_id)?.name ?? hold.job_id;
}
