// SPDX-License-Identifier: Apache-2.0
// One leaf: what it is, and its statistics over the sampled steps.

const LEAF_CHARTS = [
  ["Norm", (leaf) => [{name: "norm", values: statisticRow("norm", leaf)}], formatShort, {}],
  [
    "Range",
    (leaf) => ["max", "mean", "min"].map((name) => ({name, values: statisticRow(name, leaf)})),
    formatShort, {}
  ],
  [
    "Changed since the step before",
    (leaf) => [{name: "changed", values: statisticRow("changed", leaf)}], shareText, {zero: true}
  ],
  [
    "Not finite", (leaf) => [{name: "not finite", values: statisticRow("nonfinite", leaf)}],
    numberText, {zero: true}
  ],
];

const leafView = {
  mount(body) {
    this.body = body;
    this.log = false;
    app.on("document", () => this.draw());
    app.on("leaf", () => {
      this.draw();
      document.getElementById("leaf").scrollIntoView({block: "nearest"});
    });
    app.on("step", () => this.showStep());
  },

  // At first, the largest array with a norm.
  first() {
    const {leaves} = app.document;
    const sizes = leaves.logical_bytes.map(
        (size, leaf) => (statisticRow("norm", leaf).some(isNumber) ? size : -1));
    return d3.scan(sizes, (a, b) => b - a);
  },

  draw() {
    if (!this.isBegun && app.document.leaves.path.length) {
      this.isBegun = true;
      if (app.leaf < 0) app.leaf = this.first();
    }
    const {leaf} = app;
    if (leaf < 0 || leaf >= app.document.leaves.path.length) {
      this.charts = [];
      this.shown = null;
      fill(
          this.body,
          el("p", {class: "quiet"},
             app.document.leaves.path.length ?
                 "Choose a leaf in the tree, by a click or with the arrow keys and Enter." :
                 "No leaf is known."));
      return;
    }
    const name = JSON.stringify([app.document.leaves.item[leaf], app.document.leaves.path[leaf]]);
    if (this.shown === name)
      this.update(leaf);
    else
      this.build(leaf);
    this.shown = name;
    this.showStep();
  },

  build(leaf) {
    const path = app.document.leaves.path[leaf];
    const isWhole = visible(path) === path && path.length <= NAME_MAX;
    this.facts = el("div", {id: "leaf-facts"});
    this.mesh = el("div", {});
    this.at = el("div", {id: "leaf-at"});
    this.note = el("p", {class: "quiet"});
    this.charts = LEAF_CHARTS.map(([title, seriesOf, format, more]) => {
      const chart = new Chart({
        label: title,
        format,
        height: 118,
        log: this.log && !more.zero,
        ...more,
        steps: app.document.leaves.steps,
        series: seriesOf(leaf)
      });
      const {length} = chart.series;
      chart.box =
          el("div", {class: "chart-box"},
             el("h4", {}, title,
                length < 2 ?
                    null :
                    chart.series.map(({name}, s) => el("span", {class: "key"}, lineIcon(s), name))),
             chart.figure);
      return chart;
    });
    this.figures = el("div", {class: "figures beside"}, this.charts.map(({box}) => box));
    this.arrays = el("div", {id: "arrays"});
    fill(
        this.body,
        el("h3", {class: "path", id: "leaf-path"}, path === "" ? "(the state)" : nameOf(path), " ",
           copyButton(path, "Copy path")),
        isWhole ? null : wholeName("The leaf's whole path", path), this.facts, this.mesh, this.at,
        this.note, el("div", {class: "tools"}, toggle("Log scale", this.log, (on) => {
                        this.log = on;
                        this.charts.forEach((chart) => chart.set({log: on && !chart.zero}));
                      })), this.figures, this.arrays);
    arrays.mount(this.arrays, leaf);
    this.update(leaf);
  },

  update(leaf) {
    const {leaves} = app.document;
    const sharding = shardingOf(leaf);
    fill(this.facts, facts([
           ["Item", nameOf(leaves.item[leaf], 60)], ["Kind", visible(leaves.kind[leaf] || UNKNOWN)],
           ["Type", nameOf(typeOf(leaf), 120)], ["Size", bytesText(leaves.logical_bytes[leaf])],
           ["Stored", bytesText(leaves.stored_bytes[leaf])],
           ["Sharding", sharding ? nameOf(sharding.text, 200) : "none"]
         ]));
    fill(this.mesh, drawMesh(leaf));
    const newest = d3.max(leaves.steps.filter((step, sample) => app.isPresent(leaf, sample)));
    this.note.textContent =
        `Type, sizes and sharding are those at step ${stepName(newest)}. ${this.contents(leaf)} ${
            leaves.statistics ? "" : "No sampled step has statistics of its leaves."}`;
    this.charts.forEach((chart, i) => {
      const series = LEAF_CHARTS[i][1](leaf);
      const isKnown = series.some(({values}) => values.some((value) => value !== null));
      chart.box.hidden = !isKnown;
      chart.set({steps: leaves.steps, series});
    });
  },

  // A share may be of whole chunks; none is none.
  isUpperBound(leaf, sample) {
    const {statistics} = app.document.leaves;
    return Boolean(statistics) && statistics.changed_exact === false &&
        statistic("changed", leaf, sample) > 0;
  },

  contents(leaf) {
    const {steps} = app.document.leaves;
    const content = steps.map((step, sample) => contentOf(leaf, sample));
    const there = content.filter((each) => each !== null),
          known = there.filter((each) => each >= 0);
    const absent = there.length < steps.length ?
        ` It is in ${formatCount(there.length)} of ${countText(steps.length, "sampled step")}.` :
        "";
    if (!known.length) return `Whether its content changed is not known.${absent}`;
    const distinct = new Set(known).size, of = countText(known.length, "sampled step");
    return `${
        distinct === 1 ? "The same bytes" :
                         `${formatCount(distinct)} different contents`} in ${of}.${absent}`;
  },

  showStep() {
    if (!this.shown || app.leaf < 0) return;
    const {leaf} = app;
    const {leaves} = app.document, sample = app.sampledAt(app.step);
    const number = stepName(leaves.steps[sample]);
    const isSame = leaves.steps[sample] === app.step;
    const at = (name, format) => format(statistic(name, leaf, sample));
    const bound = this.isUpperBound(leaf, sample) ? "≤ " : "";
    const rows = [
      ["Norm", at("norm", numberText)], ["Minimum", at("min", numberText)],
      ["Mean", at("mean", numberText)], ["Maximum", at("max", numberText)],
      ["Not finite", at("nonfinite", numberText)],
      ["Changed", `${bound}${at("changed", shareText)}`]
    ];
    fill(
        this.at,
        el("h4", {},
           isSame ? `At step ${number}` : `At step ${number}, the sampled step nearest before`),
        app.isPresent(leaf, sample) ? facts(rows) :
                                      el("p", {class: "quiet"}, "The leaf is not in this step."));
    arrays.showStep();
  },
};

function lineIcon(series) {
  const svg = d3.create("svg")
                  .attr("width", 22)
                  .attr("height", 8)
                  .attr("class", "icon")
                  .attr("aria-hidden", "true");
  svg.append("line")
      .attr("class", "line")
      .attr("x1", 1)
      .attr("x2", 21)
      .attr("y1", 4)
      .attr("y2", 4)
      .style("stroke", PALETTE[series])
      .style("stroke-dasharray", DASHES[series]);
  return svg.node();
}
