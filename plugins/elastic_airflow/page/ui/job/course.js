// How a job went and how fast it is: loss and metrics over samples, samples a second over slots, bytes that moves took.

import { counts, layout } from "../allocations.js";
import { count, duration, el, measure, plural, size } from "../format.js";
import { drawChart } from "./chart.js";
import { scrolling } from "./tables.js";

const LOSS = "loss";
// As `SOURCES` of `page/overview.py`.
const SOURCES = {
  own_memory: "Kept in place", same_host: "From processes of the same host", other_hosts: "From processes of other hosts",
  own_node: "From the node's cache", other_nodes: "From other nodes' caches", store: "From the store",
};

// Whether the job's state goes back to what was measured or committed there; else a rollback left it.
export const isKept = (one, page) => one.lineage === page.job.lineage || one.step <= (page.kept_steps[one.lineage] ?? -1);

const done = (report) => report.progress ?? report.samples;
const axis = (reports) => (reports.some((one) => one.progress !== null && one.progress !== undefined) ? "samples of progress" : "samples");

export function drawLoss(root, reports, page) {
  const series = byLineage(reports, page, (report) => ({ y: Number(report.loss) }), "loss");
  drawChart(root, { label: "Loss over samples, with resizes", x: axis(reports), y: "loss", series, marks: resizes(reports, page), empty: "It has reported no loss yet." });
  const odd = reports.filter((one) => !Number.isFinite(Number(one.loss))).length;
  if (odd) root.append(el("p", { class: "about" }, `${plural(odd, "report")} came with a loss that is no number.`));
}

// Names of what was evaluated or logged; loss has a chart of its own.
export function metricNames(reports, checkpoints) {
  return [...new Set([...reports, ...checkpoints].flatMap((one) => Object.keys(one.metrics)))].filter((name) => name !== LOSS).sort();
}

export function drawMetric(root, name, reports, checkpoints, page) {
  const held = (one) => name !== null && one.metrics[name] !== undefined;
  const y = (one) => ({ y: Number(one.metrics[name]) });
  const committed = checkpoints.filter((one) => held(one) && isKept(one, page)).map((one) => ({
    x: done(one), ...y(one), hollow: one.bad, said: `${measure(Number(one.metrics[name]))}, step ${count(one.step)}${one.bad ? ", found corrupt" : ""}`,
  }));
  const logged = byLineage([...reports, ...checkpoints].filter(held).sort((a, b) => done(a) - done(b)), page, y, name ?? "");
  const series = [...logged, { name: "checkpoints", colour: 1, dots: true, points: committed }];
  drawChart(root, { label: `${name} over samples`, x: axis(reports), y: name ?? "", series, empty: "It was evaluated on no held-out data yet, and has logged nothing." });
}

function byLineage(reports, page, y, name) {
  const lines = new Map([["kept", []]]);
  for (const report of reports) {
    const point = { x: done(report), ...y(report) }, line = isKept(report, page) ? "kept" : report.lineage;
    lines.set(line, [...(lines.get(line) ?? []), { ...point, said: `${measure(point.y)}, step ${count(report.step)}` }]);
  }
  return [...lines].map(([line, points]) => (line === "kept" ? { name, colour: 0, points } : { name: "left by a rollback", colour: 0, faint: true, points }));
}

// Where it went on with other slots than before.
function resizes(reports, page) {
  const marks = [];
  let before = null;
  for (const report of reports.filter((one) => isKept(one, page))) {
    const held = counts({ [report.type]: report.num_slots }), cut = report.layout ? layout(report.layout) : "";
    if (before && before.held !== held) marks.push({ x: done(report), text: held, said: `${before.held} to ${held}` });
    else if (before && before.cut !== cut) marks.push({ x: done(report), text: cut || "replicas", said: `${before.cut || "replicas"} to ${cut || "replicas"}` });
    before = { held, cut };
  }
  return marks;
}

export function drawCurve(root, curve, job) {
  const types = [...new Set([...curve.curves.map((one) => one.type), ...curve.measured.map((one) => one.types)])];
  const predicted = curve.curves.map(({ type, speeds }) => ({
    name: `${type}, predicted`, colour: types.indexOf(type) % 8, points: speeds.map((one) => {
      const [low, median, high] = one.samples_per_second;
      return { x: one.num_slots, y: median, low, high, said: `${measure(median)} (${measure(low)} to ${measure(high)})${one.exchange ? `, exchanging by ${one.exchange}` : ""}` };
    }),
  }));
  const measured = types.map((type) => ({
    name: `${type}, measured`, colour: types.indexOf(type) % 8, dots: true,
    points: curve.measured.filter((one) => one.types === type).map((one) => ({
      x: one.num_slots, y: one.samples_per_second, hollow: one.global_batch !== null && one.global_batch !== curve.global_batch,
      said: `${measure(one.samples_per_second)}${one.global_batch === null ? "" : ` at batch ${count(one.global_batch)}`}`,
    })),
  }));
  const marks = job.state === "active" && job.slots ? [{ x: job.slots, text: "now", said: `It holds ${job.types}` }] : [];
  const chart = el("div", {});
  root.replaceChildren(chart, ...(curve.measured.length ? [figures(curve)] : []));
  root.classList.toggle("halves", curve.measured.length > 0);
  drawChart(chart, {
    label: "Samples a second over slots, predicted and measured", x: "slots", y: "samples a second", series: [...predicted, ...measured], marks,
    whole: true, zero: true, empty: "Nothing was measured yet, and before that nobody knows how fast it is.",
  });
  chart.append(el("p", { class: "about" }, aboutCurve(curve)));
}

function aboutCurve(curve) {
  if (curve.source === "none") return curve.measured.length ? "Of a job whose layers are placed on several types of slots there is no curve: each placement is predicted for itself." : "";
  const how = curve.source === "fitted" ? "fitted to what was measured" : "one configuration was measured: its shape is the one that jobs have in general";
  return `Lines: the model that decisions are made with, at global batch ${count(curve.global_batch)} (${how}). Bands: its 80 % interval. Hollow points: measured at another batch.`;
}

const figure = (speed) => (speed < 1 ? measure(speed) : count(+speed.toPrecision(3)));

function figures(curve) {
  const speeds = curve.curves.flatMap(({ type, speeds: of }) => of.map((one) => {
    const [low, median, high] = one.samples_per_second;
    return [type, one.num_slots, one.num_nodes, one.global_batch, layout(one.layout), "-", figure(median), `${figure(low)} to ${figure(high)}`];
  }));
  const points = curve.measured.map((one) => [
    one.types, one.num_slots, one.num_nodes ?? "-", one.global_batch ?? "-", one.layout ? layout(one.layout) : "-",
    `${figure(one.samples_per_second)} (${plural(one.reports, "report")})`, one.predicted === null ? "-" : figure(one.predicted), "-",
  ]);
  const heads = ["Type", "Slots", "Nodes", "Batch", "Layout", "Measured", "Predicted", "80 % interval"];
  const cells = (row) => row.map((cell) => el("td", {}, typeof cell === "number" ? count(cell) : cell));
  const head = el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, name))));
  const body = el("tbody", {}, ...[...points, ...speeds].map((row) => el("tr", {}, ...cells(row))));
  const shown = scrolling("Figures of samples a second", el("table", { "aria-label": "Samples a second by slots" }, head, body));
  shown.classList.add("figures");
  return shown;
}

export function drawMoves(root, moves) {
  const facts = [
    ["Resizes and restarts", count(moves.num_resizes)], ["Held slots for", `${measure(moves.slot_seconds / 3600)} slot-hours`],
    ["State was restored", moves.restores ? `${plural(moves.restores, "time")}, in ${duration(moves.restore_seconds)} in all` : "never, as far as checkpoints tell"],
    ...Object.entries(moves.moved).filter(([, bytes]) => bytes).map(([source, bytes]) => [SOURCES[source] ?? source, size(bytes)]),
  ];
  root.replaceChildren(el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
}
