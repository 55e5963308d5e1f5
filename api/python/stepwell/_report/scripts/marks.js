// SPDX-License-Identifier: Apache-2.0
// What is said of steps by marks: each kind has a shape, a colour and a word, so that none of the
// three has to carry it alone. Below the charts they have a lane a kind.

const MARKS = {
  best: {symbol: d3.symbolStar, colour: "var(--best)", word: "best"},
  pinned: {symbol: d3.symbolSquare, colour: "var(--pinned)", word: "pinned"},
  tainted: {symbol: d3.symbolCross, colour: "var(--tainted)", word: "tainted", turn: 45},
  damaged: {symbol: d3.symbolDiamond, colour: "var(--damaged)", word: "damaged"},
  next: {
    symbol: d3.symbolTriangle,
    colour: "var(--next)",
    word: "goes next",
    turn: 180,
    isHollow: true
  },
};
const LANE_PX = 17;

function drawMark(group, kind, area) {
  const {symbol, colour, turn, isHollow} = MARKS[kind];
  group.append("path")
      .attr("class", `mark ${kind}`)
      .attr("d", d3.symbol().type(symbol).size(area)())
      .attr("transform", turn ? `rotate(${turn})` : null)
      .style("fill", isHollow ? "var(--card)" : colour)
      .style("stroke", colour);
}

function markIcon(kind) {
  const svg = d3.create("svg")
                  .attr("width", 14)
                  .attr("height", 14)
                  .attr("class", "icon")
                  .attr("aria-hidden", "true");
  drawMark(svg.append("g").attr("transform", "translate(7,7)"), kind, 50);
  return svg.node();
}

// The shown steps (indices) of each kind.
function markedSteps(report) {
  const {steps, best} = report;
  const indices = (value) => (Array.isArray(value) ? value : Object.keys(value || {}).map(Number));
  const bests = new Set();
  for (const metric of Object.keys(best || {})) bests.add(bestStep(report, metric));
  bests.delete(null);
  return {
    best: [...bests].sort(d3.ascending),
    pinned: indices(steps.pinned),
    tainted: indices(steps.taint),
    damaged: indices(steps.damaged),
    next: indices(steps.goes_next)
  };
}

// As the rule that keeps the best steps has it, or as the metric's name says; of others, null.
function bestMode(report, metric) {
  const rule = (report.best_rules || []).find((each) => each.metric === metric);
  if (rule) return rule.mode;
  if (/loss|err|perplexity|ppl|nll/i.test(metric)) return "min";
  return /acc|score|reward|f1|auc|bleu|rouge/i.test(metric) ? "max" : null;
}

function bestStep(report, metric) {
  const index = ((report.best || {})[metric] || {})[bestMode(report, metric)];
  return Number.isInteger(index) ? index : null;
}

// The lanes: where steps are, where they are not, and those that are marked.
class Lanes {
  constructor() {
    this.element = el("div", {class: "lanes"});
    onWidth(this.element, (width) => {
      this.width = width;
      this.draw();
    });
  }

  draw() {
    if (!this.width || !app.document) return;
    const marked = markedSteps(app.document);
    const kinds = Object.keys(MARKS).filter((kind) => marked[kind].length);
    const left = this.width < 480 ? 60 : 72, height = LANE_PX * (kinds.length + 1);
    const x = d3.scaleLinear().domain(app.domain()).range([left, this.width - 14]);
    const svg = d3.create("svg")
                    .attr("width", this.width)
                    .attr("height", height + 2)
                    .attr("role", "img")
                    .attr("aria-label", this.words(marked, kinds));
    this.drawSteps(svg, x, left);
    kinds.forEach((kind, lane) => {
      const y = LANE_PX * (lane + 1) + LANE_PX / 2;
      svg.append("text")
          .attr("class", "lane")
          .attr("x", left - 8)
          .attr("y", y + 4)
          .attr("text-anchor", "end")
          .text(MARKS[kind].word);
      svg.append("line")
          .attr("class", "lane")
          .attr("x1", left)
          .attr("x2", this.width - 14)
          .attr("y1", y)
          .attr("y2", y);
      // Of marks that would lie on each other one is drawn.
      let before = -Infinity;
      for (const step of marked[kind]) {
        const at = x(app.x(step));
        if (at < left || at > this.width - 14 || at - before < 3) continue;
        before = at;
        drawMark(svg.append("g").attr("transform", `translate(${at},${y})`), kind, 55);
      }
    });
    svg.on("click", () => {
      const all = app.document.steps.number.map((number, step) => app.x(step));
      const step = nearest(all, x.invert(d3.mouse(svg.node())[0]));
      if (step >= 0) app.setStep(step);
    });
    fill(this.element, svg.node());
  }

  drawSteps(svg, x, left) {
    const right = this.width - 14;
    svg.append("text")
        .attr("class", "lane")
        .attr("x", left - 8)
        .attr("y", LANE_PX / 2 + 4)
        .attr("text-anchor", "end")
        .text("steps");
    for (const [before, after] of (app.document.retention || {}).gaps || []) {
      const from = Math.max(left, x(app.xOfNumber(before)));
      const to = Math.min(right, x(app.xOfNumber(after)));
      if (to - from < 1) continue;
      svg.append("rect")
          .attr("class", "gap")
          .attr("x", from)
          .attr("width", to - from)
          .attr("y", LANE_PX / 2 - 1.5)
          .attr("height", 3);
    }
    const path = d3.path();
    let before = -Infinity;
    app.document.steps.number.forEach((number, step) => {
      const at = x(app.x(step));
      if (at < left || at > right || at - before < 0.7) return;
      before = at;
      path.moveTo(at, 3);
      path.lineTo(at, LANE_PX - 3);
    });
    svg.append("path").attr("class", "ticks").attr("d", path.toString());
  }

  words(marked, kinds) {
    const {steps} = app.document;
    const said = kinds.map((kind) => {
      const some = marked[kind].slice(0, 12).map(stepName);
      const more = marked[kind].length - some.length;
      return `${MARKS[kind].word}: ${some.join(", ")}${
          more ? ` and ${formatCount(more)} more` : ""}`;
    });
    return [`${countText(steps.number.length, "step")} shown`, ...said].join("; ");
  }
}
