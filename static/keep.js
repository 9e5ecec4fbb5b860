// A live region that is fetched again keeps every element that it still has: what is focused, selected, scrolled,
// unfolded, checked or pressed there stays so, and only what differs is written.
"use strict";

// Rows that come and go are told apart by their own id or the first one in them, everything else by its id or place.
const ROWS = new Set(["TR", "LI", "ARTICLE"]);

function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "";
  return node.id || (ROWS.has(node.tagName) && node.querySelector("[id]")?.id) || "";
}

// Makes the children of `parent` like those of `fresh`; returns the elements that htmx has yet to look at.
function keepChildren(parent, fresh) {
  const coming = [...fresh.childNodes];
  const wanted = new Set(coming.map(keyOf));
  const keyed = new Map();
  const written = [];
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (key && !wanted.has(key)) child.remove();
    else if (key) keyed.set(key, child);
  }
  let at = parent.firstChild;
  for (const child of coming) {
    const key = keyOf(child);
    let same = key ? keyed.get(key) : at;
    while (!key && same && (keyOf(same) || same.nodeName !== child.nodeName)) same = same.nextSibling;
    if (!same || same.nodeName !== child.nodeName) {
      parent.insertBefore(child, at);
      written.push(child);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else parent.insertBefore(same, at);
    written.push(...keep(same, child));
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  return written;
}

// The same of `node` itself.
function keep(node, fresh) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.nodeValue !== fresh.nodeValue) node.nodeValue = fresh.nodeValue;
    return [];
  }
  if (node.isEqualNode(fresh) || node.matches("[data-bulk]")) return []; // the bar of picked rows is the script's own
  const sameTime = node.tagName === "TIME" && node.dateTime === fresh.dateTime; // its text is written by the script
  const changed = keepAttributes(node, fresh);
  return [...(changed && node.hasAttribute("hx-get") ? [node] : []), ...(sameTime ? [] : keepChildren(node, fresh))];
}

function keepAttributes(node, fresh) {
  let changed = false;
  for (const { name } of [...node.attributes]) {
    const unfolded = name === "open" && node.tagName === "DETAILS";
    if (!fresh.hasAttribute(name) && !unfolded) { node.removeAttribute(name); changed = true; }
  }
  for (const { name, value } of fresh.attributes) {
    if (node.getAttribute(name) !== value) { node.setAttribute(name, value); changed = true; }
  }
  return changed;
}

htmx.defineExtension("keep", {
  handleSwap(style, target, fragment) {
    if (style !== "keep") return false;
    const fresh = fragment.firstElementChild;
    if (fresh?.id !== target.id) return []; // a whole page, say: nothing of it belongs here
    return keepChildren(target, fresh); // the region's own attributes stay: they asked for this answer
  },
});
