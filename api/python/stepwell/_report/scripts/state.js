// SPDX-License-Identifier: Apache-2.0
// What is shown: the document, and what the reader chose. A choice is kept by the step's number and
// the leaf's path, so that it survives a new document of a live run.

// The document lies in the page, packed; DecompressionStream is the browser's own.
async function readEmbedded() {
  const element = document.getElementById("document");
  if (!element) return null;
  const packed = Uint8Array.from(atob(element.textContent.trim()), (each) => each.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const app = {
  document: null,
  isLive: false,
  step: -1,
  leaf: -1,
  range: null,
  overTime: false,
  log: false,
  follows: true,
  listeners: {step: [], leaf: [], range: [], document: []},

  on(what, listener) {
    this.listeners[what].push(listener);
  },
  tell(what) {
    for (const listener of this.listeners[what]) listener();
  },

  setDocument(report) {
    const before = this.document;
    const number = before && this.step >= 0 ? before.steps.number[this.step] : null;
    const nameIn = ({path, item}, leaf) => wholePath(item[leaf], path[leaf]);
    const name = before && this.leaf >= 0 ? nameIn(before.leaves, this.leaf) : null;
    this.document = report;
    const newest = report.steps.number.length - 1;
    const same = number === null ? -1 : report.steps.number.indexOf(number);
    this.step = (this.isLive && this.follows) || same < 0 ? newest : same;
    this.leaf = name === null ?
        -1 :
        report.leaves.path.findIndex((each, i) => nameIn(report.leaves, i) === name);
    this.tell("document");
  },

  setStep(step) {
    const newest = this.document.steps.number.length - 1;
    if (step < 0 || step > newest || step === this.step) return;
    this.step = step;
    this.follows = false;
    this.showInRange();
    this.tell("step");
    inPage((chart) => chart.showStep());
  },

  moveStep(by) {
    const newest = this.document.steps.number.length - 1;
    this.setStep(Math.max(0, Math.min(newest, this.step + by)));
  },

  setLeaf(leaf) {
    this.leaf = leaf;
    this.tell("leaf");
  },

  // ---- the axis of steps ------------------------------------------------------------------------

  x(step) {
    const {number, time_s: time} = this.document.steps;
    return this.overTime ? time[step] * 1000 : Number(number[step]);
  },

  // A step that is not shown takes, over time, the place of the shown one nearest to it.
  xOfNumber(number) {
    if (!this.overTime) return Number(number);
    return this.x(nearest(this.document.steps.number.map(Number), Number(number)));
  },

  whole() {
    const last = this.document.steps.number.length - 1;
    if (last < 0) return [0, 1];
    const [from, to] = [this.x(0), this.x(last)];
    return from < to ? [from, to] : [from - 1, from + 1];
  },

  domain() {
    return this.range || this.whole();
  },

  setRange(range) {
    const [first, last] = this.whole();
    if (range) {
      let [from, to] = [Math.max(first, range[0]), Math.min(last, range[1])];
      const least = (last - first) / Math.max(4, this.document.steps.number.length);
      if (to - from < least) [from, to] = [(from + to - least) / 2, (from + to + least) / 2];
      range = from <= first && to >= last ? null : [from, to];
    }
    this.range = range;
    this.tell("range");
    inPage((chart) => chart.draw());
  },

  // Around a place, or the chosen step where it is in sight.
  zoom(factor, around) {
    const [from, to] = this.domain();
    let at = around === undefined && this.step >= 0 ? this.x(this.step) : around;
    if (!(at >= from && at <= to)) at = (from + to) / 2;
    this.setRange([at - (at - from) * factor, at + (to - at) * factor]);
  },

  // A zoomed chart moves along with the chosen step.
  showInRange() {
    if (!this.range) return;
    const [from, to] = this.range, x = this.x(this.step);
    if (x >= from && x <= to) return;
    const [first, last] = this.whole(), width = to - from;
    const start = Math.max(first, Math.min(last - width, x - width / 2));
    this.setRange([start, start + width]);
  },

  // ---- the sampled steps, in which leaves are known ---------------------------------------------

  // Position among the sampled steps of the newest that is not after `step`; the oldest, if none.
  sampledAt(step) {
    return Math.max(0, d3.bisectRight(this.document.leaves.steps, step) - 1);
  },

  isPresent(leaf, sample) {
    return contentOf(leaf, sample) !== null;
  },
};

// Numbers of steps that JavaScript has no number for are text.
function stepText(number) {
  return typeof number === "string" ? visible(number) : formatCount(number);
}

function stepName(step) {
  return stepText(app.document.steps.number[step]);
}

// Equal numbers are equal bytes; -1: there, but of unknown content; null: not in that step.
function contentOf(leaf, sample) {
  const row = app.document.leaves.content[leaf];
  return row && row[sample] !== undefined ? row[sample] : null;
}

function statistic(name, leaf, sample) {
  const row = ((app.document.leaves.statistics || {})[name] || [])[leaf];
  const value = Array.isArray(row) ? row[sample] : row;
  return value === undefined ? null : value;
}

function statisticRow(name, leaf) {
  return app.document.leaves.steps.map((step, sample) => statistic(name, leaf, sample));
}
