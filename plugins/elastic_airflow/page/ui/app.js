// Asks for the overview every two seconds while somebody looks, and draws it.

import { cardsOf } from "./attention.js";
import { el } from "./format.js";
import { drawChosen } from "./choosing.js";
import { drawReport } from "./forecasts.js";
import { drawEnded, drawJobs, pausedBanner, summary, unreconciledBanner } from "./jobs.js";
import { keepingLogs } from "./log.js";
import { steerWindow, windowOf } from "./past.js";
import { drawBanners, keepingFocus } from "./redrawing.js";
import { asked, followTheme, problem } from "./shell.js";
import { drawTimeline } from "./timeline.js";

const PERIOD = 2000, COLOURS = 10;
const $ = (id) => document.getElementById(id);
const colours = new Map(), tips = new WeakMap();
let data = null, failure = null;

// Jobs keep their colour as long as the page is open; the next one gets the colour that is used least.
function colour(jobId) {
  if (!colours.has(jobId)) {
    const used = Array.from({ length: COLOURS }, (_, i) => [...colours.values()].filter((c) => c === i).length);
    colours.set(jobId, used.indexOf(Math.min(...used)));
  }
  return `var(--job-${colours.get(jobId)})`;
}

async function refresh() {
  try {
    const answer = await fetch(`../ui/overview?minutes=${$("minutes").value}`, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(await problem(answer));
    data = await answer.json();
    failure = null;
  } catch (error) {
    failure = error.message;
  }
  draw();
}

function draw() {
  const banners = [];
  if (failure) banners.push(el("p", { class: "banner bad" }, failure, data ? " Shown is what was known last." : ""));
  if (data?.paused.length) banners.push(el("p", { class: "banner" }, pausedBanner(data.paused)));
  if (data?.unreconciled) banners.push(el("p", { class: "banner" }, unreconciledBanner(data.unreconciled)));
  drawBanners($("banners"), banners);
  if (data) keepingFocus(document.querySelector("main"), drawData);
}

function drawData() {
  const byAge = [...data.jobs].sort((a, b) => a.submitted_at - b.submitted_at || a.job_id.localeCompare(b.job_id));
  byAge.forEach((job) => colour(job.job_id));
  const cards = cardsOf(data.jobs);
  $("summary").replaceChildren(...summary(data));
  const { data: seen, said } = windowOf(data);
  $("window").textContent = said;
  drawTimeline($("timeline"), seen, colour, tip);
  if (!$("chosen").dataset.open) drawChosen($("chosen"), cards.active, refresh);
  $("ended-section").hidden = !cards.ended.length;
  keepingLogs(() => {
    drawJobs($("jobs"), cards, data.now, colour);
    drawEnded($("ended"), cards.ended, data.now, colour);
  });
  $("forecasts-section").hidden = !data.forecasts.jobs;
  drawReport($("forecasts"), data.forecasts);
}

function showTip(content, x, y) {
  const box = $("tip");
  box.replaceChildren(...content().filter(Boolean));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? Math.max(8, y - height - 12) : y + 18}px`;
}

// Of what is pointed at, or gone to by a key. (Listeners for the focus would make each node of an SVG a stop of the Tab key.)
function tip(node, content) {
  tips.set(node, content);
  node.addEventListener("pointermove", (event) => showTip(content, event.clientX, event.clientY));
  node.addEventListener("pointerleave", hideTip);
}

function hideTip() {
  $("tip").hidden = true;
}

document.addEventListener("focusin", ({ target }) => {
  if (!tips.has(target) || !target.matches(":focus-visible")) return;
  const { left, right, top, bottom } = target.getBoundingClientRect();
  showTip(tips.get(target), (left + right) / 2, (top + bottom) / 2);
});
document.addEventListener("focusout", ({ target }) => tips.has(target) && hideTip());
followTheme();
$("minutes").addEventListener("change", refresh);
steerWindow(() => data?.now ?? Date.now() / 1000, () => data && draw());
window.addEventListener("resize", () => data && draw());
document.addEventListener("redraw", draw);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
await refresh();
const job = asked("job");
if (job) document.getElementById(`job-${job}`)?.scrollIntoView();
setInterval(() => document.hidden || refresh(), PERIOD);
