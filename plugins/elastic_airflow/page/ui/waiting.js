// While an answer is computed: how long that takes, as far as that can be said before.

import { duration, el } from "./format.js";

const KEY = "elastic-took-"; // of this browser's session, in seconds

export function tookLast(what) {
  const seconds = Number(sessionStorage.getItem(KEY + what));
  return seconds > 0 ? seconds : null;
}

export function remember(what, seconds) {
  sessionStorage.setItem(KEY + what, seconds);
}

// Says in `node` what is done and what is expected. The seconds that go by are for the eye only: they would be read out
// one by one. Returns what ends the counting.
export function waiting(node, words, expected) {
  const counted = el("span", { class: "counted", "aria-hidden": "true" }), began = performance.now();
  node.replaceChildren(`${words}… ${expected}.`, counted);
  const timer = setInterval(() => {
    counted.textContent = ` ${duration(Math.round((performance.now() - began) / 1000))} so far.`;
  }, 1000);
  return () => clearInterval(timer);
}
