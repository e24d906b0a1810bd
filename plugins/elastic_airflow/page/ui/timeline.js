// Who holds which slot over time: one row a slot, grouped by node; one block for each lease.

import { clock, duration, el, plural, svg } from "./format.js";

const GUTTER = 132, AXIS = 22, NODE_GAP = 12, RIGHT = 14;
const STEPS = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400];

export function drawTimeline(root, overview, colour, tip) {
  const data = { ...overview, since: shownSince(overview) };
  const width = Math.max(360, root.clientWidth - 2);
  const rows = layout(data.nodes);
  if (!rows.list.length) {
    root.replaceChildren(el("p", { class: "empty" }, "The cluster has no slots yet: `elastic up` tells the ledger of this machine's."));
    return;
  }
  const height = rows.height + AXIS;
  const span = data.now - data.since;
  const x = (at) => GUTTER + ((Math.min(Math.max(at, data.since), data.now) - data.since) / span) * (width - GUTTER - RIGHT);
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Slots over time" });
  chart.append(grid(data, x, width, rows.height), ...labels(data.nodes, rows));
  for (const row of rows.list) {
    chart.append(svg("rect", { class: "idle", x: GUTTER, y: row.y, width: width - GUTTER - RIGHT, height: row.h, rx: 3 }));
  }
  for (const hold of data.holds) chart.append(...blocks(hold, data, rows, x, colour, tip));
  for (const chain of chains(data.holds)) chart.append(...labelOf(chain, data, rows, x));
  const now = x(data.now);
  chart.append(svg("line", { class: "now", x1: now, x2: now, y1: 0, y2: rows.height }));
  root.replaceChildren(chart);
}

// The asked window, without the emptiness before the first lease in it.
function shownSince(overview) {
  const first = Math.min(overview.now - 60, ...overview.holds.map((hold) => hold.since));
  return Math.max(overview.since, first - 0.04 * (overview.now - first));
}

function layout(nodes) {
  const total = nodes.reduce((sum, node) => sum + node.num_slots, 0);
  const h = total > 64 ? 8 : total > 24 ? 13 : 22;
  const list = [], places = new Map(), tops = new Map();
  let y = 4;
  for (const node of nodes) {
    tops.set(node.name, y);
    for (let index = 0; index < node.num_slots; index += 1) {
      const row = { y, h, node: node.name, index };
      list.push(row);
      places.set(`${node.name}:${index}`, row);
      y += h + (h > 10 ? 4 : 2);
    }
    y += NODE_GAP;
  }
  return { list, places, tops, height: y - NODE_GAP + 4, h };
}

function state(node) {
  return node.set_aside ? `${node.type}, set aside` : node.present ? node.type : `${node.type}, gone`;
}

function labels(nodes, rows) {
  return nodes.flatMap((node) => {
    const top = rows.tops.get(node.name);
    const parts = [
      svg("text", { class: "node", x: 2, y: top + 15 }, clip(node.name, 13)),
      svg("text", { class: "kind", x: 2, y: top + 30 }, state(node)),
    ];
    if (rows.h > 10) {
      for (let index = 0; index < node.num_slots; index += 1) {
        const row = rows.places.get(`${node.name}:${index}`);
        parts.push(svg("text", { class: "kind", x: GUTTER - 10, y: row.y + 15, "text-anchor": "end" }, String(index)));
      }
    }
    return parts;
  });
}

function grid(data, x, width, height) {
  const span = data.now - data.since;
  const step = STEPS.find((s) => (span / s) * 74 < width - GUTTER) ?? 21600;
  const group = svg("g", { class: "grid" });
  for (let at = Math.ceil(data.since / step) * step; at <= data.now; at += step) {
    group.append(svg("line", { x1: x(at), x2: x(at), y1: 0, y2: height }));
    const anchor = x(at) > width - 40 ? "end" : "middle";
    group.append(svg("text", { x: x(at), y: height + 15, "text-anchor": anchor }, clock(at, step < 60)));
  }
  return group;
}

function blocks(hold, data, rows, x, colour, tip) {
  const left = x(hold.since), right = x(hold.until ?? data.now);
  return hold.slots.flatMap(([node, index], at) => {
    const row = rows.places.get(`${node}:${index}`);
    if (!row) return [];
    const about = { class: "hold", x: left, y: row.y, width: Math.max(2, right - left - 1), height: row.h, rx: 3, fill: colour(hold.job_id) };
    const rect = svg("rect", about);
    tip(rect, () => describe(hold, nameOf(hold, data), data, hold.stages[at]));
    return [rect];
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

function clip(text, room) {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, room - 1))}…`;
}
