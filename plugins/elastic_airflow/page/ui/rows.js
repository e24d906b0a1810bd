// The rows of the timeline: one a slot, or one a node where there are many slots, which a click or a key unfolds.

import { svg } from "./format.js";
import { usePath } from "./use.js";

const FOLD_ABOVE = 64; // slots of the pool
const NODE_GAP = 12, HEAD = 18; // between nodes; the row of a node that can be unfolded
const unfolded = new Set();

export function layout(nodes) {
  const total = nodes.reduce((sum, node) => sum + node.num_slots, 0), folds = total > FOLD_ABOVE;
  const h = folds ? 8 : total > 24 ? 13 : 22;
  const list = [], places = new Map(), tops = new Map();
  let y = 4;
  for (const node of nodes) {
    tops.set(node.name, y);
    if (folds) y += HEAD;
    if (!folds || unfolded.has(node.name)) {
      for (let index = 0; index < node.num_slots; index += 1) {
        const row = { y, h };
        list.push(row);
        places.set(`${node.name}:${index}`, row);
        y += h + (h > 10 ? 4 : 2);
      }
      if (folds) y += 6;
    }
    if (!folds) y += NODE_GAP;
  }
  return { list, places, tops, height: y + (folds ? 4 : 4 - NODE_GAP), h, folds, gutter: folds ? 216 : 132 };
}

export function labels(nodes, rows) {
  return nodes.flatMap((node) => {
    const top = rows.tops.get(node.name);
    const parts = [
      svg("text", { class: "node", x: 2, y: top + 15 }, clip(node.name, 13)),
      svg("text", { class: "kind", x: 2, y: top + 30 }, state(node)),
    ];
    if (rows.h > 10) {
      for (let index = 0; index < node.num_slots; index += 1) {
        const row = rows.places.get(`${node.name}:${index}`);
        parts.push(svg("text", { class: "kind", x: rows.gutter - 10, y: row.y + 15, "text-anchor": "end" }, String(index)));
      }
    }
    return parts;
  });
}

// A node's row: how many of its slots are held now, and over time. `redraw` when it is folded or unfolded.
export function folds(data, used, rows, x, width, redraw) {
  return data.nodes.map((node) => {
    const y = rows.tops.get(node.name), open = unfolded.has(node.name), h = HEAD - 4;
    const held = `${node.held} of ${node.num_slots}`;
    const row = svg("g", {
      class: "fold", role: "button", tabindex: "0", "data-node": node.name, "data-key": node.name, "aria-expanded": String(open),
      "aria-label": `${node.name}, ${state(node)}, ${held} slots held: its slots`,
    },
      svg("rect", { class: "hit", x: 0, y: y - 1, width: width - 2, height: HEAD - 1, rx: 3 }),
      svg("text", { class: "kind", x: 3, y: y + 11 }, open ? "▾" : "▸"),
      svg("text", { class: "node small", x: 16, y: y + 11 }, clip(node.name, 14)),
      svg("text", { class: "kind", x: 116, y: y + 11 }, clip(node.set_aside ? "set aside" : node.present ? node.type : "gone", 10)),
      svg("text", { class: "kind", x: rows.gutter - 8, y: y + 11, "text-anchor": "end" }, held),
      svg("rect", { class: "idle", x: rows.gutter, y, width: width - rows.gutter - 14, height: h, rx: 3 }),
      svg("path", { class: "use", d: usePath(used.held.get(node.name) ?? [], node.num_slots, data, x, y + h, h) }));
    const turn = () => {
      open ? unfolded.delete(node.name) : unfolded.add(node.name);
      redraw();
    };
    row.addEventListener("click", turn);
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn();
    });
    return row;
  });
}

export function state(node) {
  const words = [node.type, node.set_aside && "set aside", !node.present && "gone"];
  return words.filter(Boolean).join(", ");
}

export function clip(text, room) {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, room - 1))}…`;
}
