// A job's segments, the newest first: what each held, from when to when, and why.

import { counts, layout, ofSlots } from "../allocations.js";
import { count, duration, el } from "../format.js";
import { base, link } from "../shell.js";
import { moreButton, scrolling, SHOWN } from "./tables.js";

const HEADS = ["Segment", "State", "Slots", "Batch", "Layout", "Exchange", "Steps", "Granted", "Held", "Attempts"];
const RIGHT = new Set([3, 8, 9]); // columns of numbers
let all = false;

// `page`: the newest first, and how many there are in all.
export function drawSegments(root, page, now) {
  const { segments, total } = page, shown = all ? segments : segments.slice(0, SHOWN);
  const head = el("tr", {}, ...HEADS.map((name, i) => el("th", { scope: "col", class: RIGHT.has(i) ? "number" : null }, name)));
  const table = el("table", { "aria-label": "Segments, newest first" }, el("thead", {}, head), el("tbody", {}, ...shown.flatMap((one) => rows(one, now))));
  const more = moreButton(segments.length, total, all, () => {
    all = !all;
    drawSegments(root, page, now);
  });
  root.replaceChildren(scrolling("Segments", table), more);
}

function rows(one, now) {
  const held = one.allocation, from = one.granted_at, until = one.lease_live ? now : one.released_at;
  const run = link(el("a", {}, `${one.index + 1}`), `${base}/dags/elastic_segment/runs/${encodeURIComponent(one.segment_id)}`);
  run.setAttribute("aria-label", `Airflow's run of segment ${one.index + 1}`);
  const cells = [
    el("span", {}, run, one.lineage ? ` lineage ${one.lineage}` : ""), one.state, held ? counts(ofSlots(held.slots)) : "-", held?.global_batch ? count(held.global_batch) : "-",
    held ? layout(held.layout) : "-", held ? held.comm : "-", `${count(one.start_step)} to ${one.end_step === null ? "…" : count(one.end_step)}`,
    from === null ? "-" : new Date(from * 1000).toLocaleString(), from === null || until === null ? "-" : duration(until - from), from === null ? "-" : count(one.attempt + 1),
  ];
  const why = [
    one.grant_reason ? el("div", {}, `Granted: ${one.grant_reason}${one.handed_over ? " (its processes went on from the segment before)" : ""}`) : null,
    one.revoke_reason && !one.end_reason ? el("div", {}, `Asked to end: ${one.revoke_reason}`) : null,
    one.end_reason ? el("div", {}, `Ended: ${one.end_reason}`) : null,
    one.error ? el("p", { class: "error" }, one.error) : null,
  ];
  return [
    el("tr", { "data-segment": one.segment_id }, ...cells.map((cell, i) => el("td", { class: RIGHT.has(i) ? "number" : null }, cell))),
    el("tr", { class: "why" }, el("td", { colspan: HEADS.length }, ...(why.some(Boolean) ? why : [" "]))),
  ];
}
