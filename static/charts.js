// The charts of a Metrics tab, drawn by plotly: one fetch for all of them, again while the page is looked at.
"use strict";

const EVERY_SECONDS = 10;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const COLOURS = 8;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

class Charts {
  constructor(section) {
    this.section = section;
    this.here = section.querySelector("[data-charts-here]");
    this.mark = section.querySelector("[data-charts-state]");
    this.probe = section.appendChild(document.createElement("i"));
    this.probe.hidden = true;
    this.plots = new Map(); // metric → its element
    this.data = null;
    this.load();
    if (section.hasAttribute("data-live-charts")) setInterval(() => { if (!document.hidden) this.load(); }, EVERY_SECONDS * 1000);
    document.addEventListener("visibilitychange", () => { if (!document.hidden && this.data?.live) this.load(); });
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => { for (const plot of this.plots.values()) if (plot.data) Plotly.Plots.resize(plot); }).observe(this.here);
  }

  async load() {
    try {
      const answer = await fetch(this.section.dataset.src, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      this.data = await answer.json();
      this.draw();
      this.say("", this.data.live ? `live, every ${EVERY_SECONDS} s · times in ${zone}` : `times in ${zone}`);
    } catch (error) {
      this.say("fail", `The samples could not be read (${error.message}); trying again`);
    }
  }

  say(how, text) {
    this.mark.dataset.how = how;
    if (this.mark.textContent !== text) this.mark.textContent = text;
  }

  draw() {
    if (!this.data) return;
    const look = this.look();
    for (const chart of this.data.charts) this.drawOne(chart, look);
    this.section.querySelector("[data-charts-table]:has(.empty)")?.remove(); // each chart says it in its place
  }

  // The colours of the page's own tokens, as they are now.
  look() {
    const read = (name) => { this.probe.style.color = `var(${name})`; return getComputedStyle(this.probe).color; };
    const lines = Array.from({ length: COLOURS }, (_, n) => read(`--c${n + 1}`));
    return { lines, ink: read("--ink"), faint: read("--ink-3"), line: read("--line"), surface: read("--raised"), bound: read("--fail"), font: getComputedStyle(document.body).fontFamily };
  }

  drawOne(chart, look) {
    const card = this.card(chart);
    const plot = card.querySelector(".plot"), nothing = card.querySelector(".nothing");
    const isEmpty = chart.series.length === 0;
    nothing.hidden = !isEmpty;
    plot.hidden = isEmpty;
    if (isEmpty) {
      nothing.querySelector("p").textContent = chart.empty;
      if (plot.data) { Plotly.purge(plot); this.plots.delete(chart.metric); }
      return;
    }
    const scale = scaleOf(chart);
    const first = !plot.data;
    Plotly.react(plot, chart.series.map((series, n) => trace(series, n, scale, look)), this.layout(chart, scale, look), { displayModeBar: false, responsive: false });
    if (first) this.follow(chart, plot);
  }

  card(chart) {
    let card = this.here.querySelector(`[data-metric="${chart.metric}"]`);
    if (card) return card;
    card = document.createElement("article");
    card.className = "panel chart";
    card.dataset.metric = chart.metric;
    card.innerHTML = '<h2><span></span><small></small></h2><div class="plot"></div><div class="nothing" hidden><p></p></div>';
    card.querySelector("h2 span").textContent = chart.title;
    card.querySelector("h2 small").textContent = { "0–1": "", cores: "cores", bytes: "", "bytes/s": "per second" }[chart.unit] ?? chart.unit;
    return this.here.appendChild(card);
  }

  layout(chart, scale, look) {
    const axis = { color: look.faint, gridcolor: look.line, linecolor: look.line, zeroline: false, fixedrange: true, tickfont: { size: 11 } };
    const many = chart.series.length > 1;
    return {
      margin: { l: 52, r: 12, t: 8, b: many ? (chart.series.length > 3 ? 62 : 46) : 26 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: look.font, color: look.ink, size: 12 },
      hovermode: "x unified",
      hoverlabel: { bgcolor: look.surface, bordercolor: look.line, font: { color: look.ink, size: 12 } },
      showlegend: many,
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: { size: 11 }, maxheight: 60 },
      xaxis: { ...axis, type: "date", range: [local(this.data.start), local(this.data.end)], hoverformat: "%-d %b %H:%M:%S", showspikes: true, spikemode: "across", spikethickness: 1, spikecolor: look.faint, spikedash: "solid", nticks: 5, tickformat: tickFormat(this.data.end - this.data.start) },
      yaxis: { ...axis, rangemode: "tozero", nticks: 5, ...scale.axis },
      uirevision: "kept",
    };
  }

  // One time in all charts: what is under the pointer in one is shown in each.
  follow(chart, plot) {
    this.plots.set(chart.metric, plot);
    plot.on("plotly_hover", (event) => {
      const at = Date.parse(`${String(event.xvals?.[0]).replace(" ", "T")}Z`); // as plotly reckons: see `local`
      if (Number.isNaN(at)) return;
      for (const other of this.plots.values()) if (other !== plot && other.data) Plotly.Fx.hover(other, { xval: at }, "xy", true);
    });
    plot.on("plotly_unhover", () => { for (const other of this.plots.values()) if (other !== plot && other.data) Plotly.Fx.unhover(other); });
  }
}

function trace(series, n, scale, look) {
  const colour = series.bound ? look.bound : look.lines[n % COLOURS];
  return {
    type: "scatter", mode: lone(series.points) ? "lines+markers" : "lines", name: series.name, connectgaps: false,
    x: series.points.map(([at]) => local(at)), y: series.points.map(([, value]) => (value === null ? null : value / scale.divisor)),
    line: { width: series.bound ? 1 : 1.75, color: colour, dash: series.bound ? "dash" : DASHES[Math.floor(n / COLOURS) % DASHES.length] },
    marker: { size: 4 }, hovertemplate: scale.hover,
  };
}

function tickFormat(milliseconds) {
  if (milliseconds > 2 * 86400e3) return "%-d %b";
  return milliseconds > 600e3 ? "%H:%M" : "%H:%M:%S";
}

function lone(points) {
  return points.filter(([, value]) => value !== null).length < 3;
}

// Plotly writes dates as they are given: moved so that they read as this browser's time.
function local(milliseconds) {
  const date = new Date(milliseconds);
  return new Date(milliseconds - date.getTimezoneOffset() * 60000).toISOString().slice(0, 23);
}

function scaleOf(chart) {
  if (chart.unit === "0–1") return { divisor: 1, hover: "%{y:.1%}", axis: { tickformat: ".0%", range: [0, 1.02] } };
  if (!chart.unit.startsWith("bytes")) return { divisor: 1, hover: "%{y:.2f}", axis: {} };
  let most = 0;
  for (const series of chart.series) for (const [, value] of series.points) if (value > most) most = value;
  const power = Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(1, most)) / 10)));
  const unit = ["B", "KiB", "MiB", "GiB", "TiB"][power] + chart.unit.slice(5);
  return { divisor: 1024 ** power, hover: `%{y:.2f} ${unit}`, axis: { ticksuffix: ` ${unit}` } };
}

document.addEventListener("DOMContentLoaded", () => {
  const section = document.querySelector("[data-charts]");
  if (section) new Charts(section);
});
