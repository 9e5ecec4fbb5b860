// A log: follows it over a websocket, or by asking where none gets through. What is found in it: log_find.js.
"use strict";

const LINES_MAX = 5000;
const LINES_MAX_AWAY = 10000; // while the reader has scrolled away: what they read is not taken from them
const STEPS_MAX = 25; // answers with more to come, before the rest is left out
const OPEN = 1; // of a websocket
const NEAR_END = 48; // pixels

class Log {
  constructor(panel) {
    this.panel = panel;
    this.box = panel.querySelector(".log");
    this.list = panel.querySelector("ol");
    this.follow = panel.querySelector("[data-follow]");
    this.newer = panel.querySelector("[data-newer]");
    this.positions = JSON.parse(panel.dataset.positions);
    this.together = panel.dataset.socket.includes("/jobs/");
    this.onRun = panel.querySelector("[name=tab]") !== null;
    this.around = "around" in panel.dataset;
    this.ended = panel.dataset.status === "ended" && !this.around;
    this.seconds = Number(panel.dataset.seconds);
    this.states = new Map(); // worker → [status, message]
    this.wait = 1;
    this.since = null;
    this.unseen = 0;
    this.flagged = this.list.querySelectorAll("li.error").length;
    this.pinned = false; // to the end, while the end is in view
    this.filter = new LogFilter(panel, this.list, () => this.look());
    this.listen();
    if (this.isLinked()) this.follow.checked = false;
    else if (this.follow.checked || this.ended) this.toEnd();
    if (this.follow.checked) this.start();
  }

  // ---- the place that the address names ----

  // Whether the address names a line. One that is not here is fetched with its neighbours.
  isLinked() {
    const name = location.hash.match(/^#L(\d+)\.(\d+)$/);
    if (!name && !this.around) return false;
    const line = (name && document.getElementById(name[0].slice(1))) || this.list.querySelector("li.linked");
    if (line) this.show(line);
    else if (name && !this.around && !this.together) {
      const address = new URL(location.href);
      address.searchParams.set("attempt", name[1]);
      address.searchParams.set("at", name[2]);
      location.replace(address);
    }
    return true;
  }

  show(line) {
    this.list.querySelector("li.linked")?.classList.remove("linked");
    line.classList.add("linked");
    const top = line.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
    this.box.scrollTop += top - this.box.clientHeight / 2;
    this.panel.scrollIntoView({ block: "nearest" });
    this.look();
  }

  // The address of a line; where several workers are shown, of the line in its own worker's log.
  addressOf(item, worker) {
    const [, attempt, offset] = item.id.match(/(\d+)\.(\d+)$/);
    return `${this.onRun ? `?tab=logs&worker=${worker}&` : "?"}attempt=${attempt}&at=${offset}#L${attempt}.${offset}`;
  }

  listen() {
    this.box.addEventListener("scroll", () => this.look(), { passive: true });
    new ResizeObserver(() => { if (this.pinned) this.toEnd(); }).observe(this.list);
    for (const event of ["hashchange", "popstate"]) window.addEventListener(event, () => {
      if (location.hash && this.isLinked() && this.follow.checked) { this.follow.checked = false; this.stop("paused"); }
    });
    this.list.addEventListener("click", (event) => {
      const link = event.target.closest("li > a[href]");
      if (!link || this.together || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.pushState(null, "", link.href);
      const top = this.box.scrollTop;
      this.show(link.parentElement);
      this.box.scrollTop = top; // it is in view: that is how it was clicked
    });
    this.newer.addEventListener("click", () => this.toEnd());
    this.follow.addEventListener("change", () => {
      if (!this.follow.checked) this.stop("paused");
      else if (this.around) location.assign(this.endAddress());
      else { this.toEnd(); this.start(); }
    });
    this.panel.addEventListener("filtered", () => { if (this.follow.checked) this.toEnd(); });
    this.panel.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    for (const select of this.panel.querySelectorAll("[data-reload]")) select.addEventListener("change", () => this.choose(select));
    const wrap = this.panel.querySelector("[data-wrap]");
    wrap.checked = localStorage.getItem("log-wrap") !== "off";
    wrap.addEventListener("change", () => localStorage.setItem("log-wrap", wrap.checked ? "on" : "off"));
    setInterval(() => this.check(), 1000);
  }

  // Another worker or attempt: the page is fetched anew, with what is looked for as it is.
  choose(select) {
    const address = new URL(location.pathname, location.href);
    for (const field of new FormData(this.panel.querySelector("form")).entries()) {
      if (field[1] && !(field[0] === "attempt" && select.name === "worker")) address.searchParams.set(...field);
    }
    location.assign(address);
  }

  endAddress() {
    const address = new URL(location.href);
    for (const name of ["attempt", "at", "near"]) address.searchParams.delete(name);
    address.hash = "";
    return address;
  }

  // ---- following ----

  get from() {
    if (!this.together) return Object.values(this.positions)[0] ?? "";
    return Object.entries(this.positions).map(([worker, position]) => `${worker}~${position}`).join(",");
  }

  start() {
    if (this.ended || this.socket) return;
    if (!this.since) this.say("connecting", "waiting");
    const from = this.from;
    const socket = (this.socket = socketTo(`${this.panel.dataset.socket}${from ? `?from=${from}` : ""}`));
    this.heard = Date.now();
    socket.onmessage = (event) => {
      this.wait = 1;
      this.polled = false;
      this.heard = Date.now();
      this.stopAsking();
      this.take([JSON.parse(event.data)]);
    };
    socket.onclose = (event) => {
      if (this.socket !== socket) return; // stopped by hand
      this.socket = null;
      if (this.ended) return;
      if (event.code === 4404) { this.follow.checked = false; this.stop("not available any more"); return; }
      if (!this.polled) this.lost(""); // else the plain way works, and says so
      this.ask();
      this.retry = setTimeout(() => this.start(), this.wait * 1000 * (0.75 + Math.random() / 2));
      this.wait = Math.min(this.wait * 2, 30);
    };
  }

  // A connection over which nothing comes any more, though every look sends something, is none.
  check() {
    if (this.socket?.readyState !== OPEN || Date.now() - this.heard < (3 * this.seconds + 5) * 1000) return;
    const dead = this.socket;
    dead.close();
    dead.onclose({ code: 1006 });
  }

  stop(why) {
    const socket = this.socket;
    this.socket = null;
    if (socket) socket.close();
    clearTimeout(this.retry);
    this.stopAsking();
    this.since = null;
    this.say(why, this.ended ? "ended" : "paused");
    this.look();
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

  async askOnce(times = 1) {
    const from = this.from;
    try {
      const hurry = times > STEPS_MAX ? "&hurry=1" : "";
      const answer = await fetch(`${this.panel.dataset.lines}?from=${from}${hurry}`, { headers: { accept: "application/json" } });
      if (answer.status === 404 || answer.redirected) { this.follow.checked = false; this.stop("not available any more"); return; }
      if (!answer.ok) throw new Error(answer.status);
      const frames = await answer.json();
      if (this.follow.checked && this.from === from) this.take(frames, `live, every ${this.seconds} s`); // else the websocket was faster
      this.polled = true;
      if (frames.some((frame) => frame.more) && this.follow.checked && this.asking === null) await this.askOnce(times + 1);
    } catch {
      this.polled = false;
      this.lost("");
    }
  }

  stopAsking() {
    clearTimeout(this.asking);
    this.asking = null;
  }

  take(frames, how = "live") {
    for (const frame of frames) {
      this.positions[frame.worker] = frame.position;
      this.states.set(frame.worker, [frame.status, frame.message]);
      if (frame.html) this.append(frame.html, frame.worker);
    }
    const states = [...this.states.values()];
    const lost = states.filter(([status]) => status === "reconnecting");
    this.ended = this.states.size === Object.keys(this.positions).length && states.every(([status]) => status === "ended");
    if (this.ended) { this.follow.disabled = true; this.follow.checked = false; this.stop("ended"); }
    else if (lost.length) this.lost(this.together ? `${lost.length} of ${states.length}: ${lost[0][1]}` : lost[0][1]);
    else {
      this.since = null;
      const said = states.length === 1 ? states[0] : ["live", ""];
      this.say(said[0] === "waiting" ? said[1] : said[1] ? `${how} · ${said[1]}` : how, said[0]);
    }
    if (this.pinned) this.toEnd();
  }

  // A line that was not finished comes again under the same name, and takes its own place.
  append(html, worker) {
    const template = document.createElement("template");
    template.innerHTML = html;
    for (const item of [...template.content.children]) {
      const old = item.id && document.getElementById(item.id);
      if (item.id) item.firstElementChild.href = this.addressOf(item, worker);
      this.flagged += item.classList.contains("error") - (old ? old.classList.contains("error") : 0);
      if (old) old.replaceWith(item);
      else { this.list.append(item); this.unseen++; }
    }
    this.trim();
    if (typeof writeTimes === "function") writeTimes(this.list);
    if (this.filter.active) this.filter.apply();
    this.tell();
  }

  trim() {
    const most = this.pinned ? LINES_MAX : LINES_MAX_AWAY;
    let gone = this.list.childElementCount - most;
    if (gone <= 0) return;
    for (; gone > 0; gone--) {
      this.flagged -= this.list.firstElementChild.classList.contains("error");
      this.list.firstElementChild.remove();
    }
    if (this.together) return;
    const first = this.list.querySelector("li[id]");
    const place = first?.id.match(/(\d+)\.(\d+)$/);
    if (!place) return;
    let link = this.box.querySelector(".log-more:first-child a");
    if (!link) {
      const more = document.createElement("p");
      more.className = "log-more";
      link = more.appendChild(document.createElement("a"));
      link.textContent = "Earlier output";
      this.box.prepend(more);
    }
    link.href = this.addressOf(first, Object.keys(this.positions)[0]).replace("&at=", "&near=").replace("?at=", "?near=").replace(/#.*/, "");
  }

  tell() {
    const note = this.panel.querySelector("[data-flagged]");
    note.hidden = this.flagged === 0;
    note.querySelector("b").textContent = this.flagged === 1 ? "1 line looks like an error" : `${this.flagged.toLocaleString()} lines look like errors`;
    this.panel.querySelector("[data-empty]").hidden = this.list.childElementCount > 0;
    if (!this.pinned) this.look();
  }

  lost(text) {
    this.since ??= new Date();
    this.say(`reconnecting since ${this.since.toLocaleTimeString()}${text ? ` · ${text}` : ""}`, "reconnecting");
  }

  say(text, how) {
    const place = this.panel.querySelector("[data-says]");
    if (place.textContent !== text) place.textContent = text;
    if (place.dataset.how !== how) place.dataset.how = how;
  }

  // ---- the end in view ----

  // Where the reader is, after they or the log have moved.
  look() {
    this.pinned = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_END;
    if (this.pinned) this.unseen = 0;
    this.newer.hidden = this.pinned || this.unseen === 0 || !this.follow.checked;
    if (!this.newer.hidden) this.newer.lastElementChild.textContent = this.unseen === 1 ? "1 new line" : `${this.unseen.toLocaleString()} new lines`;
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.look();
    this.pinned = true;
  }
}

const logs = [...document.querySelectorAll("[data-log]")].map((panel) => new Log(panel));
