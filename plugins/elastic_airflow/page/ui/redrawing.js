// What is drawn anew every few seconds: the focus stays where it is, and what is read out is read out once.

const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";
const focusable = (node) => [...(node?.querySelectorAll(FOCUSABLE) ?? [])];
const label = (node) => node.getAttribute("aria-label");

// The focus goes to what has the same label, or else the same place, in the part of the page that has the same id: a
// card, not the card's place in a list, where another may stand by then.
export function keepingFocus(root, redraw) {
  const focused = document.activeElement, within = root !== focused && root.contains(focused) ? focused.parentElement.closest("[id]") : null;
  const at = focusable(within).indexOf(focused);
  redraw();
  if (at < 0 || root.contains(document.activeElement)) return;
  const drawn = focusable(document.getElementById(within.id));
  (drawn.find((node) => label(node) && label(node) === label(focused)) ?? drawn[at])?.focus({ preventScroll: true });
}

// A screen reader reads banners when they are put there, so they are only replaced by other words.
export function drawBanners(root, banners) {
  const words = (nodes) => JSON.stringify([...nodes].map((node) => node.textContent));
  if (words(root.children) !== words(banners)) root.replaceChildren(...banners);
}
