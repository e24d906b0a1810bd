// How many slots are held over time, as step functions of what the leases say.

import { el, plural, svg } from "./format.js";

// By node: [at, change] of every lease's begin and end in the window, in order of time.
function changes(data) {
  const found = new Map();
  for (const hold of data.holds) {
    const from = Math.max(hold.since, data.since), until = Math.min(hold.until ?? data.now, data.now);
    if (until <= from) continue;
    for (const [node] of hold.slots) {
      if (!found.has(node)) found.set(node, []);
      found.get(node).push([from, 1], [until, -1]);
    }
  }
  return found;
}

function summed(list, start = 0) {
  const steps = [];
  let held = start;
  for (const [at, change] of [...list].sort((a, b) => a[0] - b[0])) {
    held += change;
    if (steps.length && steps.at(-1)[0] === at) steps.at(-1)[1] = held;
    else steps.push([at, held]);
  }
  return steps;
}

// {held: steps by node, all: steps of the pool, slots: steps of the slots that were there}. A node that is gone counts
// until it was lost, or else until its last lease ended.
export function usage(data) {
  const by = changes(data), held = new Map([...by].map(([node, list]) => [node, summed(list)]));
  const there = data.nodes.reduce((sum, node) => sum + node.num_slots, 0);
  const left = data.nodes.filter((node) => !node.present && !node.held).map((node) => {
    const lost = data.events.filter((event) => event.node === node.name && event.what === "lost").at(-1);
    return [lost?.at ?? held.get(node.name)?.at(-1)?.[0] ?? data.since, -node.num_slots];
  });
  const slots = [[data.since, there], ...summed(left, there)];
  return { held, all: summed([...by.values()].flat()), slots };
}

function valueAt(steps, at) {
  let value = 0;
  for (const [from, held] of steps) {
    if (from > at) break;
    value = held;
  }
  return value;
}

// Of the window: held slot-seconds over those that were there.
export function meanUse({ all, slots }, data) {
  const area = (steps) => steps.reduce((sum, [from, value], i) => sum + value * ((steps[i + 1]?.[0] ?? data.now) - Math.max(from, data.since)), 0);
  const there = area(slots);
  return there ? area(all) / there : 0;
}

// An area below a step function of the part held, from `bottom` to `height` above it.
export function usePath(steps, most, data, x, bottom, height) {
  const y = (held) => bottom - height * Math.min(1, most ? held / most : 0);
  let path = `M${x(data.since)},${bottom}`, last = 0;
  for (const [at, held] of steps) {
    path += `H${x(at)}V${y(held)}`;
    last = held;
  }
  return `${path}H${last ? x(data.now) : x(steps.at(-1)?.[0] ?? data.since)}V${bottom}Z`;
}

function heldAt(holds, at) {
  return holds.reduce((sum, hold) => sum + (hold.since <= at && (hold.until ?? Infinity) > at ? hold.slots.length : 0), 0);
}

export function useLine(data, used, x, { gutter, width, top, height, tip }) {
  const all = used.all.map(([at, held]) => [at, held, valueAt(used.slots, at)]);
  const marks = used.slots.map(([at, slots]) => [at, valueAt(used.all, at), slots]);
  const parts = [...all, ...marks].sort((a, b) => a[0] - b[0]).map(([at, held, slots]) => [at, slots ? held / slots : 0]);
  const held = data.past ? heldAt(data.holds, data.now) : data.nodes.reduce((sum, node) => sum + node.held, 0);
  const slots = used.slots.at(-1)[1], now = `${held} of ${slots}`, mean = `${Math.round(100 * meanUse(used, data))} % over time`;
  const ground = svg("rect", { class: "idle", x: gutter, y: top, width, height, rx: 3 });
  const area = svg("path", { class: "use", d: usePath(parts, 1, data, x, top + height, height) });
  tip(ground, () => [el("strong", {}, "Slots in use"), el("div", {}, `${plural(held, "slot")} of ${slots} ${data.past ? "at the end" : "now"}`), el("div", {}, `${mean}, of the slots that were there, set aside or not`)]);
  return [
    ground, area,
    svg("text", { class: "node", x: 2, y: top + 14 }, `In use: ${now}`),
    svg("text", { class: "kind", x: 2, y: top + 29 }, mean),
  ];
}
