// What was decided, from what, and whether it would be decided so again. A decision that is shown stays while newer ones come.

import { counts, layout, ofSlots } from "../allocations.js";
import { clock, count, duration, el, measure, plural } from "../format.js";
import { drawBanners } from "../redrawing.js";
import { api, asked, base, followTheme, jobPage, link } from "../shell.js";
import { waiting } from "../waiting.js";

const PERIOD = 5000, PAGE = 30, SHOWN = 20;
const $ = (id) => document.getElementById(id);
const view = { before: null, chosen: null, turn: 0, errors: {} };

// Of the list and of the decision that is shown, each its own.
function complain(about, error) {
  view.errors[about] = error?.message;
  const told = [...new Set(Object.values(view.errors).filter(Boolean))];
  drawBanners($("banners"), told.map((message) => el("p", { class: "banner bad" }, message)));
}

async function refresh() {
  const turn = ++view.turn;
  try {
    const query = new URLSearchParams({ limit: PAGE });
    if (view.before !== null) query.set("before", view.before);
    const decisions = await api(`decisions?${query}`);
    if (turn !== view.turn) return; // another page was asked for
    drawList(decisions);
    complain("list", null);
    if (view.chosen === null && decisions.length) choose(decisions[0].decision_id);
  } catch (error) {
    if (turn === view.turn) complain("list", error);
  }
}

function drawList(decisions) {
  const focused = document.activeElement?.closest("#list button")?.dataset.id;
  $("list").replaceChildren(...decisions.map((decision) => {
    const current = decision.decision_id === view.chosen;
    const button = el("button", { type: "button", "data-id": decision.decision_id, "aria-current": current ? "true" : null },
      `${decision.decision_id}: ${decision.policy}`, el("span", { class: "when" }, clock(decision.at, true)),
      el("span", { class: decision.failure ? "why failed" : "why", title: decision.trigger }, decision.failure ? `failed: ${decision.failure}` : `${decision.trigger}${did(decision)}`));
    button.addEventListener("click", () => choose(decision.decision_id));
    return el("li", {}, button);
  }));
  if (focused) [...$("list").querySelectorAll("button")].find((button) => button.dataset.id === focused)?.focus({ preventScroll: true });
  $("list").setAttribute("aria-busy", "false");
  $("none").hidden = decisions.length > 0 || view.before !== null;
  $("older").disabled = decisions.length < PAGE;
  $("older").dataset.before = decisions.length ? decisions[decisions.length - 1].decision_id : "";
  $("newest").disabled = view.before === null;
}

const did = (decision) => (decision.actions.length ? `; ${plural(decision.actions.length, "action")}` : "; nothing to do");

async function choose(number) {
  view.chosen = number;
  for (const button of $("list").querySelectorAll("button")) {
    if (Number(button.dataset.id) === number) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  try {
    const record = await api(`decisions/${number}`);
    if (view.chosen !== number) return;
    $("shown").replaceChildren(...drawn(record));
    complain("shown", null);
  } catch (error) {
    if (view.chosen === number) complain("shown", error);
  }
}

function drawn({ decision, snapshot, plan }) {
  const facts = [
    ["At", new Date(decision.at * 1000).toLocaleString()], ["After", decision.trigger], ["Policy", decision.policy === decision.wanted ? decision.policy : `${decision.policy} in place of ${decision.wanted}`],
    ["Took", decision.seconds < 1 ? `${measure(1000 * decision.seconds)} ms` : duration(decision.seconds)], ["Nodes", pool(snapshot)], ["Asks again", plan.wake_at ? clock(plan.wake_at, true) : "at the next event"],
  ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  const told = el("p", { role: "status" }), button = el("button", { type: "button" }, "Decide again from these inputs");
  button.addEventListener("click", () => again(decision, plan, told, button));
  return [
    el("h3", {}, `Decision ${decision.decision_id}`), el("dl", { class: "facts" }, ...facts),
    decision.failure ? el("p", { class: "banner bad" }, `${decision.wanted} failed: ${decision.failure}`) : "",
    list("Done at once", decision.actions), list("Notes of the policy", plan.notes),
    targets(snapshot, plan), el("div", { class: "again" }, button, told),
  ].filter((node) => node !== "");
}

function list(name, lines) {
  if (!lines.length) return "";
  return folded(lines, (shown) => el("dl", {}, el("dt", {}, name), el("dd", {}, el("ul", {}, ...shown.map((line) => el("li", {}, line))))));
}

// The first `SHOWN` of them, drawn by `draw`, and a button for all where they are more.
function folded(all, draw) {
  if (all.length <= SHOWN) return draw(all);
  const root = el("div", {}), button = el("button", { type: "button", class: "more" });
  const show = (whole) => {
    button.textContent = whole ? `The first ${SHOWN} only` : `All ${count(all.length)}`;
    button.onclick = () => {
      show(!whole);
      button.focus();
    };
    root.replaceChildren(draw(whole ? all : all.slice(0, SHOWN)), button);
  };
  show(false);
  return root;
}

function pool(snapshot) {
  const types = new Map();
  for (const node of snapshot.nodes.filter((each) => each.present)) {
    const [nodes, slots] = types.get(node.type) ?? [0, 0];
    types.set(node.type, [nodes + 1, slots + node.num_slots]);
  }
  return [...types].map(([type, [nodes, slots]]) => `${count(slots)} ${type} on ${count(nodes)}`).join(", ") || "none";
}

// Of one that its ranks choose: what was counted with, too.
function exchange(target) {
  return target.expected_comm ? `${target.comm} (${target.expected_comm})` : target.comm;
}

// Those whose slots change first.
function targets(snapshot, plan) {
  const heads = ["Job", "Priority", "Done", "Held", "Gets", "Batch", "Layout", "Exchange"];
  const jobs = snapshot.jobs.map((job) => {
    const target = plan.targets[job.job_id], held = counts(ofSlots(job.allocation?.slots ?? []));
    return { job, target, held, gets: target ? counts(target.counts) : "-" };
  });
  const moves = jobs.filter(({ held, gets }) => gets !== held), stay = jobs.filter(({ held, gets }) => gets === held);
  const rows = ({ job, target, held, gets }) => {
    const moved = gets !== held ? "changed" : null;
    const work = job.total_samples === null ? `${count(job.done_samples)} of ?` : `${count(job.done_samples)} of ${count(job.total_samples)}`;
    const cells = [link(el("a", {}, job.job_id), jobPage(job.job_id)), String(job.priority), work, held, el("span", { class: moved }, gets), target?.global_batch || "-", target && gets !== "none" ? layout(target.layout) : "-", target && gets !== "none" ? exchange(target) : "-"];
    return [
      el("tr", { "data-id": job.job_id }, ...cells.map((cell, i) => el("td", { class: i === 1 ? "number" : null }, typeof cell === "number" ? count(cell) : cell))),
      el("tr", { class: "why" }, el("td", { colspan: heads.length }, target?.reason || " ")),
    ];
  };
  const head = el("tr", {}, ...heads.map((name, i) => el("th", { scope: "col", class: i === 1 ? "number" : null }, name)));
  return folded([...moves, ...stay], (shown) => {
    const body = el("tbody", {}, ...shown.flatMap(rows));
    return el("div", { class: "scroll" }, el("table", { "aria-label": "What the policy saw of each job, and what it gave it" }, el("thead", {}, head), body));
  });
}

async function again(decision, plan, told, button) {
  button.disabled = true;
  const stop = waiting(told, "Being decided", `About ${duration(decision.seconds)}, as it took then`);
  try {
    const replayed = await api(`decisions/${decision.decision_id}/replay`).finally(stop);
    const others = Object.keys(plan.targets).filter((job) => JSON.stringify(plan.targets[job]) !== JSON.stringify(replayed.again.targets[job]));
    told.textContent = replayed.same ? "Decided the same today." : `Decided otherwise today: ${others.map((job) => `${job} ${counts(replayed.again.targets[job]?.counts ?? {})}`).join("; ") || "targets are the same, the policy's own state is not"}.`;
  } catch (error) {
    told.textContent = error.message;
  }
  button.disabled = false;
}

followTheme();
link($("cluster"), `${base}/plugin/elastic`);
link($("jobs"), `${base}/plugin/elastic-jobs`);
link($("what-if"), `${base}/plugin/elastic-what-if`);
link($("models"), `${base}/plugin/elastic-models`);
$("older").addEventListener("click", () => {
  view.before = Number($("older").dataset.before);
  refresh();
});
$("newest").addEventListener("click", () => {
  view.before = null;
  refresh();
});
const wanted = Number(asked("decision"));
if (Number.isInteger(wanted) && wanted > 0) choose(wanted);
refresh();
setInterval(() => document.hidden || view.before !== null || refresh(), PERIOD);
