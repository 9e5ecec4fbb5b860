// Find, Errors only and their context, over the lines that a log's page holds.
"use strict";

class LogFilter {
  constructor(panel, list, moved) {
    this.panel = panel;
    this.list = list;
    this.moved = moved; // called when the reader is taken to a match
    this.find = panel.querySelector("[name=find]");
    this.errors = panel.querySelector("[data-errors]");
    this.context = panel.querySelector("[name=context]");
    this.texts = new WeakMap(); // line → its text in lower case
    this.hits = [];
    this.at = -1;
    this.find.addEventListener("input", () => this.changed());
    this.find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.go(event.shiftKey ? -1 : 1);
    });
    this.errors.addEventListener("change", () => this.changed());
    this.context.addEventListener("change", () => this.changed());
    panel.querySelector("[data-previous]").addEventListener("click", () => this.go(-1));
    panel.querySelector("[data-next]").addEventListener("click", () => this.go(1));
    this.apply();
  }

  get active() {
    return this.find.value !== "" || this.errors.checked;
  }

  changed() {
    this.at = -1;
    this.apply();
    this.writeAddress();
    this.panel.dispatchEvent(new Event("filtered"));
  }

  // Of all lines: which match, which stand near one, which are not shown.
  apply() {
    const items = [...this.list.children];
    const wanted = this.find.value.toLowerCase();
    const current = this.hits[this.at];
    this.hits = this.active ? items.filter((item) => !item.classList.contains("gap") && this.matches(item, wanted)) : [];
    if (this.active || this.wasActive) {
      const around = Number(this.context.value);
      const hits = new Set(this.hits);
      const near = new Set();
      items.forEach((item, index) => {
        if (hits.has(item) && around) for (const other of items.slice(Math.max(index - around, 0), index + around + 1)) near.add(other);
      });
      for (const item of items) {
        const shown = !this.active || hits.has(item) || item.classList.contains("gap");
        item.classList.toggle("off", !shown && !near.has(item));
        item.classList.toggle("context", !shown && near.has(item));
      }
    }
    this.wasActive = this.active;
    this.at = current ? this.hits.indexOf(current) : -1;
    this.say();
    this.paint(wanted);
  }

  matches(item, wanted) {
    let text = this.texts.get(item);
    if (text === undefined) {
      const whole = item.lastElementChild;
      const who = whole.querySelector(":scope > .who");
      text = whole.textContent.slice(who ? who.textContent.length + 1 : 0).toLowerCase();
      this.texts.set(item, text);
    }
    return (!this.errors.checked || text.includes("error")) && text.includes(wanted);
  }

  go(step) {
    if (!this.active || this.hits.length === 0) return;
    this.hits[this.at]?.classList.remove("current");
    this.at = this.at < 0 ? (step > 0 ? this.firstBelow() : this.hits.length - 1) : (this.at + step + this.hits.length) % this.hits.length;
    const hit = this.hits[this.at];
    hit.classList.add("current");
    const box = this.list.parentElement;
    const top = hit.getBoundingClientRect().top - box.getBoundingClientRect().top;
    if (top < 40 || top > box.clientHeight - 60) box.scrollTop += top - box.clientHeight / 2;
    this.say();
    this.moved();
  }

  // The first match that is in view or below it: the reader goes on from where they are.
  firstBelow() {
    const edge = this.list.parentElement.getBoundingClientRect().top;
    const found = this.hits.findIndex((hit) => hit.getBoundingClientRect().top >= edge);
    return Math.max(found, 0);
  }

  say() {
    const lines = this.list.querySelectorAll("li:not(.gap)").length;
    const note = this.panel.querySelector("[data-matches]");
    note.hidden = !this.active;
    const of = `${this.hits.length.toLocaleString()} of ${lines.toLocaleString()} line${lines === 1 ? "" : "s"}`;
    note.textContent = this.at >= 0 ? `${this.at + 1} / ${of}` : of;
    for (const button of this.panel.querySelectorAll("[data-previous], [data-next]")) button.hidden = !this.active || this.hits.length === 0;
    this.panel.querySelector("[data-none]").hidden = !this.active || this.hits.length > 0 || lines === 0;
  }

  writeAddress() {
    const address = new URL(location.href);
    const link = this.panel.querySelector("[data-download]");
    const download = new URL(link.href);
    for (const url of [address, download]) {
      const set = (name, value) => (value ? url.searchParams.set(name, value) : url.searchParams.delete(name));
      set("find", this.find.value);
      set("errors", this.errors.checked ? "on" : "");
      set("context", this.active && this.context.value !== "0" ? this.context.value : "");
    }
    history.replaceState(history.state, "", address);
    link.href = download;
  }

  // What was looked for is painted over the text: the lines stay as they are.
  paint(wanted) {
    if (!window.CSS?.highlights) return;
    CSS.highlights.delete("found");
    if (!wanted) return;
    const ranges = [];
    for (const item of this.hits) {
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
