// A log: follows it over a websocket, or by asking where none gets through; Find and Errors only over what is here.
"use strict";

const LINES_MAX = 5000;
const OPEN = 1; // of a websocket
const NEAR_END = 48; // pixels

class Log {
  constructor(panel) {
    this.panel = panel;
    this.box = panel.querySelector(".log");
    this.list = panel.querySelector("ol");
    this.follow = panel.querySelector("[data-follow]");
    this.find = panel.querySelector("[name=find]");
    this.errors = panel.querySelector("[data-errors]");
    this.position = panel.dataset.position;
    this.ended = panel.dataset.status === "ended" && !("around" in panel.dataset);
    this.seconds = Number(panel.dataset.seconds);
    this.wait = 1;
    this.since = null;
    this.listen();
    this.mark();
    this.pinned = false; // to the end, while the end is in view
    if (this.linked()) this.follow.checked = false;
    else if (this.follow.checked || this.ended) this.toEnd();
    if (this.follow.checked) this.start();
  }

  // Whether the address names a line. One that is not among the last ones is fetched with its neighbours.
  linked() {
    const name = location.hash.match(/^#L(\d+)\.(\d+)$/);
    if (!name) return false;
    if (!document.getElementById(name[0].slice(1)) && !("around" in this.panel.dataset)) {
      const address = new URL(location.href);
      address.searchParams.set("attempt", name[1]);
      address.searchParams.set("at", name[2]);
      location.replace(address);
    }
    return true;
  }

  listen() {
    this.box.addEventListener("scroll", () => { this.pinned = this.isNearEnd(); }, { passive: true });
    new ResizeObserver(() => { if (this.pinned) this.toEnd(); }).observe(this.list);
    window.addEventListener("hashchange", () => {
      if (this.linked() && this.follow.checked) { this.follow.checked = false; this.stop("paused"); }
    });
    this.follow.addEventListener("change", () => (this.follow.checked ? (this.toEnd(), this.start()) : this.stop("paused")));
    this.find.addEventListener("input", () => this.filter());
    this.errors.addEventListener("change", () => this.filter());
    this.find.form.addEventListener("submit", (event) => event.preventDefault());
    for (const select of this.panel.querySelectorAll("[data-reload]")) {
      select.addEventListener("change", () => {
        const attempt = this.panel.querySelector("[name=attempt]");
        if (select.name === "worker" && attempt) attempt.disabled = true; // another worker has other attempts
        this.find.form.submit();
      });
    }
  }

  // ---- following ----

  start() {
    if (this.ended || this.socket) return;
    const from = this.position ? `?from=${this.position}` : "";
    const socket = (this.socket = socketTo(`${this.panel.dataset.socket}${from}`));
    socket.onmessage = (event) => {
      this.wait = 1;
      this.polled = false;
      this.stopAsking();
      this.take(JSON.parse(event.data));
    };
    socket.onclose = (event) => {
      if (this.socket !== socket) return; // stopped by hand
      this.socket = null;
      if (this.ended) return;
      if (event.code === 4404) { this.stop("not available any more"); return; }
      if (!this.polled) this.lost("reconnecting"); // else the plain way works, and says so
      this.ask();
      this.retry = setTimeout(() => this.start(), this.wait * 1000 * (0.75 + Math.random() / 2));
      this.wait = Math.min(this.wait * 2, 30);
    };
  }

  stop(why) {
    const socket = this.socket;
    this.socket = null;
    if (socket) socket.close();
    clearTimeout(this.retry);
    this.stopAsking();
    this.since = null;
    this.say(why);
  }

  // The plain way, while no websocket gets through: soon after it was lost, then as often as the websocket would say.
  ask(seconds = 0.5) {
    if (this.asking || this.ended || !this.follow.checked) return;
    this.asking = setTimeout(async () => {
      this.asking = null;
      if (!document.hidden) await this.askOnce();
      if (this.socket?.readyState !== OPEN) this.ask(this.seconds);
    }, seconds * 1000);
  }

  async askOnce() {
    try {
      const answer = await fetch(`${this.panel.dataset.lines}?from=${this.position}`, { headers: { accept: "application/json" } });
      if (answer.status === 404 || answer.redirected) { this.follow.checked = false; this.stop("not available any more"); return; }
      if (!answer.ok) throw new Error(answer.status);
      if (this.follow.checked) this.take(await answer.json(), `every ${this.seconds} s`);
      this.polled = true;
    } catch {
      this.polled = false;
      this.lost("reconnecting");
    }
  }

  stopAsking() {
    clearTimeout(this.asking);
    this.asking = null;
  }

  take(frame, how = "live") {
    this.position = frame.position;
    if (frame.html) this.append(frame.html);
    this.ended = frame.status === "ended";
    if (frame.status === "reconnecting") this.lost(frame.message);
    else {
      this.since = null;
      this.say(this.ended ? "ended" : frame.status === "waiting" ? frame.message : frame.message ? `${how} · ${frame.message}` : how);
    }
    if (this.ended) { this.follow.disabled = true; this.follow.checked = false; this.stop("ended"); }
    if (frame.html && this.pinned) this.toEnd();
  }

  // A line that was not finished comes again under the same name, and takes its own place.
  append(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    for (const item of [...template.content.children]) {
      if (!this.shows(item)) item.hidden = true;
      const old = item.id && document.getElementById(item.id);
      if (old) old.replaceWith(item);
      else this.list.append(item);
    }
    while (this.list.childElementCount > LINES_MAX) this.list.firstElementChild.remove();
    if (typeof writeTimes === "function") writeTimes(this.list);
    this.count();
    this.mark();
  }

  lost(text) {
    this.since ??= new Date();
    this.say(`${text} · since ${this.since.toLocaleTimeString()}`);
  }

  say(text) {
    const place = this.panel.querySelector("[data-says]");
    if (place.textContent !== text) place.textContent = text;
  }

  isNearEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_END;
  }

  toEnd() {
    this.pinned = true;
    this.box.scrollTop = this.box.scrollHeight;
  }

  // ---- Find and Errors only ----

  filter() {
    for (const item of this.list.children) item.hidden = !this.shows(item);
    const address = new URL(location.href);
    const link = this.panel.querySelector("[data-download]");
    const download = new URL(link.href);
    for (const url of [address, download]) {
      this.find.value ? url.searchParams.set("find", this.find.value) : url.searchParams.delete("find");
      this.errors.checked ? url.searchParams.set("errors", "on") : url.searchParams.delete("errors");
    }
    history.replaceState(history.state, "", address);
    link.href = download;
    this.mark();
    if (this.follow.checked) this.toEnd();
  }

  shows(item) {
    if (item.classList.contains("gap")) return true;
    const text = item.lastElementChild.textContent.toLowerCase();
    return (!this.errors.checked || text.includes("error")) && text.includes(this.find.value.toLowerCase());
  }

  count() {
    const flagged = this.list.querySelectorAll("li.error").length;
    const note = this.panel.querySelector("[data-flagged]");
    note.hidden = flagged === 0;
    note.firstElementChild.textContent = flagged === 1 ? "1 line looks like an error" : `${flagged} lines look like errors`;
    this.panel.querySelector("[data-empty]").hidden = this.list.childElementCount > 0;
  }

  // What was looked for is painted over the text: the lines stay as they are.
  mark() {
    if (!window.CSS?.highlights) return;
    const wanted = this.find.value.toLowerCase();
    CSS.highlights.delete("found");
    if (!wanted) return;
    const ranges = [];
    for (const item of this.list.querySelectorAll("li:not([hidden], .gap)")) {
      const walker = document.createTreeWalker(item.lastElementChild, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const text = node.data.toLowerCase();
        if (text.length !== node.data.length) continue; // a letter that grows in lower case
        for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
          const range = new Range();
          range.setStart(node, at);
          range.setEnd(node, at + wanted.length);
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }
}

for (const panel of document.querySelectorAll("[data-log]")) new Log(panel);
