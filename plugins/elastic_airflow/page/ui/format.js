// Numbers and times as people read them, and DOM building that can only ever make text of text.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// In the words of `elastic_core.text.span`, which writes the reasons beside it (tests/airflow/page/test_format.py).
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "-";
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

export function count(number) {
  return new Intl.NumberFormat("en").format(number);
}

// JSON knows no such numbers: they come as texts.
const ODD = { NaN: "not a number", Infinity: "infinite", "-Infinity": "minus infinite" };

export function measure(value) {
  if (!Number.isFinite(value)) return ODD[value] ?? String(value);
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
}

// As `elastic_core.text.size_text`.
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes, unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${value.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

export function clock(at, seconds) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (seconds) options.second = "2-digit";
  return new Date(at * 1000).toLocaleTimeString([], options);
}

// When a job that waits may start, as `elastic_core.protocol.waiting.queued.starts_words`: of days with the date.
export function starting(queued, now) {
  if (queued.starts_at === null) return `when it starts is not known: ${queued.unknown}`;
  if (queued.starts_at <= now) return "starts as soon as its slots are free";
  return `starts about ${soonOrDate(queued.starts_at, now)}`;
}

export function soonOrDate(at, now) {
  return at - now < 20 * 3600 ? clock(at) : new Date(at * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
}

export function plural(n, word) {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

// Why a job whose cancelling was answered with this state is not cancelled, or null: one that had ended stays as it is.
export function notCancelled(state) {
  return state === "cancelled" ? null : `it has ended before: ${state}`;
}
