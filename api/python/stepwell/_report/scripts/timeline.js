// SPDX-License-Identifier: Apache-2.0
// The timeline: each metric over the steps, and the lanes of what is said of steps.

const METRICS_AT_FIRST = 3;

const timeline = {
  charts: new Map(),

  mount(body) {
    this.chosen = null;
    const over =
        el("fieldset", {class: "segments"}, el("legend", {class: "unseen"}, "Axis"),
           [["number", "Step"], ["time", "Time"]].map(([value, text]) => {
             const radio = el("input", {
               type: "radio",
               name: "axis",
               value,
               onchange: () => {
                 app.overTime = value === "time";
                 app.setRange(null);
               }
             });
             radio.checked = value === "number";
             return el("label", {}, radio, el("span", {}, text));
           }));
    const button = (text, label, onclick) =>
        el("button", {type: "button", class: "small", "aria-label": label, title: label, onclick},
           text);
    this.log = toggle("Log scale", false, (on) => {
      app.log = on;
      for (const chart of this.charts.values()) chart.set({log: on});
    });
    this.reset = button("All steps", "Show all steps (0)", () => app.setRange(null));
    this.metrics = el("fieldset", {class: "toggles"});
    this.figures = el("div", {class: "figures"});
    this.lanes = new Lanes();
    this.range = el("p", {class: "quiet", id: "range", role: "status"});
    this.details = el("dl", {class: "facts chosen-facts", id: "chosen-facts"});
    fill(
        body,
        el("div", {class: "tools"}, over, this.log,
           el("div", {class: "buttons", role: "group", "aria-label": "Zoom"},
              button("−", "Zoom out (-)", () => app.zoom(2)),
              button("+", "Zoom in (+)", () => app.zoom(0.5)),
              button("◂", "Earlier steps", () => this.pan(-0.5)),
              button("▸", "Later steps", () => this.pan(0.5)), this.reset),
           this.metrics),
        this.range, this.figures, this.lanes.element, this.details,
        el("p", {class: "quiet hint"},
           "Click a chart or use its arrow keys to choose a step; drag across ",
           "it, Ctrl with the wheel, or + and − to zoom; 0 shows all steps."),
        el("details", {
          id: "steps-table",
          ontoggle: (event) => {
            if (event.target.open) stepsTable.open(event.target.querySelector(".body"));
          }
        },
           el("summary", {}, "Steps as a table"), el("div", {class: "body"})));
    app.on("document", () => this.draw());
    app.on("step", () => this.showStep());
    app.on("range", () => this.showRange());
  },

  pan(by) {
    const [from, to] = app.domain();
    const [first, last] = app.whole();
    const move = Math.max(first - from, Math.min(last - to, (to - from) * by));
    app.setRange([from + move, to + move]);
  },

  draw() {
    const names = Object.keys(app.document.metrics || {});
    if (!this.chosen) this.chosen = new Set(names.slice(0, METRICS_AT_FIRST));
    const asText = JSON.stringify(names);
    if (asText !== this.names) this.drawMetrics(names);
    this.names = asText;
    this.drawCharts(names);
    this.showRange();
    this.showStep();
  },

  drawMetrics(names) {
    fill(this.metrics, el("legend", {class: "unseen"}, "Metrics"), names.map((name) => {
      const box = toggle("", this.chosen.has(name), (on) => {
        if (on)
          this.chosen.add(name);
        else
          this.chosen.delete(name);
        this.drawCharts(names);
      });
      fill(box.querySelector("span"), nameOf(name, 40));
      return box;
    }));
    this.metrics.hidden = !names.length;
  },

  // A chart that stays is told of the new values, so that what it has in focus stays there, too.
  drawCharts(names) {
    const {steps, metrics} = app.document;
    const all = steps.number.map((number, step) => step);
    for (const name of [...this.charts.keys()]) {
      if (!names.includes(name) || !this.chosen.has(name)) this.charts.delete(name);
    }
    const figures = names.filter((name) => this.chosen.has(name)).map((name) => {
      const best = bestStep(app.document, name);
      const given = {
        steps: all,
        series: [{name: cutName(name, 40), values: metrics[name]}],
        marks: best === null ? [] : [{step: best, kind: "best"}]
      };
      if (!this.charts.has(name)) {
        const chart =
            new Chart({label: visible(name), format: formatShort, log: app.log, ...given});
        chart.title = el("h3", {});
        chart.box = el("div", {class: "chart-box"}, chart.title, chart.figure);
        this.charts.set(name, chart);
      } else {
        Object.assign(this.charts.get(name), given);
      }
      const chart = this.charts.get(name);
      chart.caption = best === null ?
          null :
          ` best (${bestMode(app.document, name)}) ${numberText(metrics[name][best])} at step ${
              stepName(best)}`;
      fill(
          chart.title, nameOf(name, 60),
          chart.caption ? el("span", {class: "quiet"}, markIcon("best"), chart.caption) : null);
      return chart;
    });
    const boxes = figures.map((chart) => chart.box);
    if (boxes.length !== this.figures.children.length ||
        boxes.some((box, i) => box !== this.figures.children[i]))
      fill(this.figures, boxes);
    if (!names.length) {
      const words = all.length ? "No step has a numeric metric: save(…, metrics={…}) keeps them." :
                                 "This store has no step yet.";
      fill(this.figures, el("p", {class: "quiet"}, words));
    }
    figures.forEach((chart) => chart.draw());
    this.lanes.draw();
  },

  showRange() {
    const {steps, retention} = app.document;
    const [from, to] = app.domain();
    const seen = steps.number.filter((number, step) => app.x(step) >= from && app.x(step) <= to);
    const gaps = ((retention || {}).gaps || []).length;
    const parts = [`${formatCount(seen.length)} of ${countText(steps.total, "step")} shown`];
    if (seen.length) parts.push(`${stepText(seen[0])} to ${stepText(seen[seen.length - 1])}`);
    if (gaps)
      parts.push(`${countText(gaps, "gap")} where steps are not there (deleted or never saved)`);
    this.range.textContent = `${parts.join(" · ")}.`;
    this.reset.disabled = app.range === null;
    this.lanes.draw();
  },

  showStep() {
    const {step} = app;
    if (step < 0) return void fill(this.details);
    fill(this.details, [...facts(stepFacts(step)).children]);
  },
};

// What is said of one step, as rows of name and value.
function stepFacts(step) {
  const {steps, metrics, retention} = app.document;
  const has = (list) => (list || []).includes(step);
  const at = (column) => (column ? column[step] : null);
  const marked = markedSteps(app.document);
  const marks = Object.keys(MARKS).filter((kind) => marked[kind].includes(step));
  const reason = (steps.taint || {})[step], damage = (steps.damaged || {})[step];
  const kept = ((steps.kept_by || [])[step] || []).map((rule) => visible(retention.rules[rule]));
  return [
    ["Step", el("strong", {}, stepName(step))],
    ["Saved", timeText(at(steps.time_s))],
    ...Object.keys(metrics || {})
        .map((name) => [nameOf(name, 40), numberText(metrics[name][step])]),
    ["Size", bytesText(at(steps.logical_bytes))],
    ["Stored", bytesText(at(steps.stored_bytes))],
    ["Its own", bytesText(at(steps.owned_bytes))],
    ["Deleting frees", bytesText(at(steps.frees_bytes))],
    ["Save took", secondsText(at(steps.save_s))],
    ["Leaves", numberText(at(steps.leaves))],
    ["Verified", has(steps.verified) ? "yes" : "not yet"],
    kept.length ? ["Kept by", kept.join("; ")] : null,
    marks.length ?
        [
          "Marks",
          marks.map((kind) => el("span", {class: "said"}, markIcon(kind), MARKS[kind].word))
        ] :
        null,
    reason !== undefined ? ["Tainted", nameOf(reason || "no reason given", 300)] : null,
    damage !== undefined ? ["Damage", nameOf(damage, 300)] : null,
  ];
}
