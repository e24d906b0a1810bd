// While an answer is computed: how long that takes, as far as that can be said before.

import { duration, el } from "./format.js";

// Says in `node` what is done and what is expected: words, or a promise of some, which may fail. The seconds that go by
// are for the eye only: they would be read out one by one. Returns what ends the counting.
export function waiting(node, words, expected) {
  const counted = el("span", { class: "counted", "aria-hidden": "true" }), began = performance.now(), told = new Text(`${words}…`);
  node.replaceChildren(told, counted);
  Promise.resolve(expected).then((text) => (told.data = `${words}… ${text}.`)).catch(() => {});
  const timer = setInterval(() => {
    counted.textContent = ` ${duration(Math.round((performance.now() - began) / 1000))} so far.`;
  }, 1000);
  return () => clearInterval(timer);
}
