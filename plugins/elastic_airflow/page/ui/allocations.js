// What a job holds and is at, in words: slots by type, how the model lies on them, its state.

import { el, plural } from "./format.js";

export function ofSlots(slots) {
  const found = {};
  for (const slot of slots) found[slot.type] = (found[slot.type] ?? 0) + 1;
  return found;
}

export const counts = (byType) => Object.entries(byType).filter(([, n]) => n).sort().map(([type, n]) => `${n} ${type}`).join(", ") || "none";

export function layout({ sharded, servers, ...sizes }) {
  const axes = Object.entries(sizes).filter(([, n]) => n > 1).map(([name, n]) => `${name} ${n}`);
  return [...axes, sharded ? "sharded" : "", servers ? plural(servers, "server") : ""].filter(Boolean).join(", ") || "one replica";
}

// Of a job as the REST API tells it.
export function stateChip(job) {
  const states = { running: ["running", "training"], granted: ["starting", "starting"] };
  let [kind, text] = job.state === "active" ? (states[job.segment_state] ?? ["waiting", "waiting"]) : [job.state, job.state];
  if (job.paused && kind === "waiting") text = "paused";
  return el("span", { class: `chip ${kind}` }, text);
}
