// What pages need beside htmx: times, live hints, the theme switch, dialogs, copying, and a few keys. No state of its own.
"use strict";

// ---- times: every <time> is UTC from the server; shown local, with its zone; UTC stays in the title ----

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" });
const dayFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" });
const yearFormat = new Intl.DateTimeFormat(undefined, { year: "numeric", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" });

function absolute(date, now) {
  if (date.toDateString() === now.toDateString()) return clockFormat.format(date);
  return (date.getFullYear() === now.getFullYear() ? dayFormat : yearFormat).format(date);
}

function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  const h = Math.floor(s / 3600), m = Math.floor((s % 3600) / 60);
  if (h < 24) return m ? `${h}h${m}m` : `${h}h`;
  const d = Math.floor(h / 24);
  return h % 24 ? `${d}d${h % 24}h` : `${d}d`;
}

const WRITERS = {
  at: absolute,
  ago: (date, now) => ((now - date) / 1000 < 5 ? "just now" : `${span((now - date) / 1000)} ago`),
  age: (date, now) => span((now - date) / 1000),
  left: (date, now) => span((date - now) / 1000),
};

function writeTimes(root) {
  const now = new Date();
  for (const el of root.querySelectorAll("time[data-as]")) {
    const date = new Date(el.dateTime);
    const text = WRITERS[el.dataset.as](date, now);
    if (el.textContent !== text) el.textContent = text;
  }
}

// ---- live: a websocket says "changed", or nothing gets through and a timer does; the region then fetches itself ----

const POLL_SECONDS = 4;

// Where a browser has no websockets, or an extension throws instead of making one, it is as if none got through.
function socketTo(path) {
  try {
    return new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`);
  } catch {
    const never = { readyState: 3, close() {} };
    setTimeout(() => never.onclose?.({ code: 1006 }));
    return never;
  }
}

class Live {
  constructor(mark, path) {
    this.mark = mark;
    this.path = path;
    this.wait = 1;
    this.opened = false;
    this.connect();
    setInterval(() => { if (!this.opened && !document.hidden) changed(); }, POLL_SECONDS * 1000);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) changed(); });
  }

  connect() {
    const socket = socketTo(this.path);
    socket.onopen = () => {
      changed(); // what happened since the page was made, or since the last connection
      this.opened = true;
      this.wait = 1;
      this.say("live", "live");
    };
    socket.onmessage = changed;
    socket.onclose = () => {
      this.opened = false;
      if (this.mark.dataset.how === "gone") return;
      this.say("polling", `every ${POLL_SECONDS} s`);
      setTimeout(() => this.connect(), this.wait * 1000 * (0.75 + Math.random() / 2));
      this.wait = Math.min(this.wait * 2, 30);
    };
  }

  say(how, text) {
    if (this.mark.dataset.how === "gone") return;
    this.mark.dataset.how = how;
    this.mark.textContent = text;
    this.mark.title = how === "live" ? "Changes appear by themselves" : "No websocket gets through: this page asks for changes instead";
  }
}

function changed() {
  for (const region of document.querySelectorAll("[data-live]")) htmx.trigger(region, "changed");
}

function startLive() {
  const mark = document.querySelector(".live");
  if (!mark) return;
  if (mark.dataset.socket) new Live(mark, mark.dataset.socket);
  else setInterval(() => { if (!document.hidden) changed(); }, POLL_SECONDS * 1000);
}

// While a pointer is pressed nothing is replaced: only a press and a release on the same element are a click. What came
// meanwhile is asked for again.
let pressed = false;
const missed = new Map();

document.addEventListener("pointerdown", (event) => { pressed = event.button === 0; }, true);
for (const end of ["pointerup", "pointercancel", "contextmenu"]) document.addEventListener(end, release, true);

function release() {
  pressed = false;
  setTimeout(() => { // after the click
    for (const [asker, trigger] of missed) htmx.trigger(asker, trigger);
    missed.clear();
  });
}

function comesUnderPress(asker) {
  if (!pressed || !asker.matches("[data-live], #filters")) return false;
  missed.set(asker, asker.matches("form") ? "submit" : "changed");
  return true;
}

// A region whose answer is the same as the last one stays as it is: focus, selection and scrolling are not disturbed.
const answers = new Map();

document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, xhr, requestConfig } = event.detail;
  if (comesUnderPress(requestConfig.elt)) { event.detail.shouldSwap = false; return; }
  if (requestConfig.triggeringEvent?.type !== "changed") {
    answers.delete(target.id);
    return;
  }
  // An error, or an answer that is not this region's (a proxy's, a hotel's sign-in page): the next hint tries again.
  if (xhr.status >= 400 || !xhr.responseText.includes(`id="${target.id}"`)) {
    event.detail.shouldSwap = false;
    if (xhr.status === 404) gone();
    return;
  }
  if (answers.get(target.id) === xhr.responseText) event.detail.shouldSwap = false;
  answers.set(target.id, xhr.responseText);
  event.detail.swapOverride = "keep";
});

// What the page is about was deleted: what it shows stays to be read, and nothing asks for it any more.
function gone() {
  for (const region of document.querySelectorAll("[data-live]")) delete region.dataset.live;
  const mark = document.querySelector(".live");
  mark.dataset.how = "gone";
  mark.textContent = "deleted";
  mark.title = "It is not here any more: this page shows how it was";
}

// ---- rows that were picked stay picked when their table is fetched again ----

let picked = new Set();
document.addEventListener("htmx:beforeSwap", (event) => {
  picked = new Set([...event.detail.target.querySelectorAll("input[data-pick]:checked")].map((box) => box.value));
});

function markPicked(root) {
  for (const box of root.querySelectorAll("input[data-pick]")) if (picked.has(box.value)) box.checked = true;
  countPicked();
}

function countPicked() {
  const form = document.querySelector("[data-picks]");
  if (!form) return;
  const n = form.querySelectorAll("input[data-pick]:checked").length;
  const bar = form.querySelector("[data-bulk]");
  if (!bar) return;
  bar.hidden = n === 0;
  form.querySelector("[data-bulk-count]").textContent = `${n} selected`;
  const all = form.querySelector("[data-pick-all]");
  const boxes = form.querySelectorAll("input[data-pick]").length;
  if (all) { all.checked = n > 0 && n === boxes; all.indeterminate = n > 0 && n < boxes; }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]")) {
    for (const box of event.target.form.querySelectorAll("input[data-pick]")) box.checked = event.target.checked;
  }
  if (event.target.matches("[data-pick], [data-pick-all]")) countPicked();
});

// ---- dialogs: a link to a question is asked in the dialog; without scripts it is simply a page ----

document.addEventListener("htmx:afterSettle", (event) => {
  const { target } = event.detail;
  if (target?.id !== "dialog" || target.open) return; // a page that the Back button brings again has no target
  target.showModal();
  watchTyped(target);
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) {
    const dialog = event.target.closest("dialog");
    if (dialog) { event.preventDefault(); dialog.close(); }
  }
  if (event.target instanceof HTMLDialogElement) event.target.close(); // the backdrop
});

// A button that needs a name typed stays off until it is.
function watchTyped(root) {
  for (const input of root.querySelectorAll("input[data-must-be]")) {
    const button = input.form.querySelector("button[type=submit]");
    const look = () => { button.disabled = input.value.trim() !== input.dataset.mustBe; };
    input.addEventListener("input", look);
    look();
  }
}

// ---- New run: the two resource fields are per GPU when there are GPUs, with defaults to match ----

function watchGpus() {
  const gpus = document.querySelector("input[data-gpus]");
  if (!gpus) return;
  const look = () => {
    const which = Number(gpus.value) > 0 ? "gpu" : "cpu";
    const other = which === "gpu" ? "cpu" : "gpu";
    for (const field of document.querySelectorAll("[data-per-gpu]")) {
      const input = field.querySelector("input");
      field.querySelector("label").textContent = field.dataset[`${which}Label`];
      if (input.value === field.dataset[`${other}Default`]) input.value = field.dataset[`${which}Default`];
    }
  };
  gpus.addEventListener("input", look);
  look();
}

function markInvalid() {
  for (const field of document.querySelectorAll(".field")) {
    const input = field.querySelector("input, select, textarea");
    if (!input) continue;
    if (field.querySelector(".error")) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
}

// ---- a press that was refused is told in a toast: its answer is an error, and nothing to put into the page ----

document.addEventListener("htmx:beforeSwap", (event) => {
  const { xhr, requestConfig } = event.detail;
  if (xhr.status < 400 || !xhr.getResponseHeader("Content-Type")?.startsWith("application/json")) return;
  event.detail.shouldSwap = false;
  if (isByHand(requestConfig)) tell(JSON.parse(xhr.responseText).message);
});

document.addEventListener("htmx:sendError", (event) => {
  if (isByHand(event.detail.requestConfig)) tell("The console cannot be reached. Try again");
});

function isByHand({ triggeringEvent }) {
  return ["click", "submit"].includes(triggeringEvent?.type);
}

function tell(text) {
  const toast = document.createElement("div");
  toast.className = "toast error";
  toast.setAttribute("role", "status");
  toast.innerHTML = '<p></p><button class="button quiet small" type="button" data-dismiss>Close</button>';
  toast.firstChild.textContent = text;
  document.getElementById("toasts").append(toast);
}

// ---- a form is sent once, however often its button is pressed before the answer comes ----

const SEND_AGAIN_SECONDS = 10; // somebody may have stopped the page from loading, which no event tells
let sent = new WeakSet();
addEventListener("pageshow", () => { sent = new WeakSet(); }); // Back may bring the page as it was left

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (sent.has(form)) { event.preventDefault(); return; }
  sent.add(form);
  setTimeout(() => sent.delete(form), SEND_AGAIN_SECONDS * 1000);
});

// ---- theme, copying, toasts, keys ----

const THEMES = ["auto", "light", "dark"];

function showTheme(button) {
  const now = document.documentElement.dataset.theme || "auto";
  button.dataset.now = now;
  button.title = `Theme: ${now}`;
  button.setAttribute("aria-label", `Theme: ${now}. Change it`);
}

function nextTheme(button) {
  const now = document.documentElement.dataset.theme || "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "auto") { delete document.documentElement.dataset.theme; localStorage.removeItem("theme"); }
  else { document.documentElement.dataset.theme = next; localStorage.setItem("theme", next); }
  showTheme(button);
}

async function copy(button) {
  const source = button.closest("[data-copies]").querySelector("pre, code");
  if (navigator.clipboard) await navigator.clipboard.writeText(source.textContent);
  else { // by plain HTTP from another host there is none
    getSelection().selectAllChildren(source);
    document.execCommand("copy");
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.matches("[data-theme-switch]")) nextTheme(button);
  if (button?.matches("[data-copy]")) copy(button);
  if (button?.matches("[data-dismiss]")) button.closest(".toast").remove();
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  }
  if (event.key === "n") document.querySelector("a[data-new]")?.click();
});

document.addEventListener("htmx:afterSwap", (event) => { writeTimes(event.detail.elt.parentElement || document); });
document.addEventListener("htmx:afterSettle", () => { writeTimes(document); markPicked(document); markInvalid(); });

// On a narrow screen the menu and the tabs scroll sideways: the current entry is brought into view.
function showCurrent() {
  for (const here of document.querySelectorAll(".nav [aria-current], .tabs [aria-current]")) {
    const row = here.parentElement;
    row.scrollLeft = here.offsetLeft - row.offsetLeft - (row.clientWidth - here.offsetWidth) / 2;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  writeTimes(document);
  showCurrent();
  setInterval(() => writeTimes(document), 1000);
  for (const button of document.querySelectorAll("[data-theme-switch]")) showTheme(button);
  startLive();
  watchGpus();
  watchTyped(document);
  countPicked();
});
