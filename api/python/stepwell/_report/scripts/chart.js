// SPDX-License-Identifier: Apache-2.0
// A chart of lines over the steps. d3 has the scales, axes, lines and the brush; what is here puts
// them together with what a reader does: choose a step, zoom, read a value.

const PALETTE = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

// Nearest of ascending numbers, as an index; -1 of none.
function nearest(numbers, x) {
  if (!numbers.length) return -1;
  const i = Math.max(1, d3.bisectLeft(numbers, x));
  if (numbers.length === 1 || i >= numbers.length) return numbers.length - 1;
  return x - numbers[i - 1] <= numbers[i] - x ? i - 1 : i;
}

// A group of the arrow keys' meanings, which every chart over steps has.
function stepKeys(event) {
  const moves = {
    ArrowRight: 1,
    ArrowUp: 1,
    ArrowLeft: -1,
    ArrowDown: -1,
    PageUp: 10,
    PageDown: -10,
    Home: -Infinity,
    End: Infinity
  };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in moves)
    app.moveStep(moves[event.key]);
  else if (event.key === "+" || event.key === "=")
    app.zoom(0.5);
  else if (event.key === "-")
    app.zoom(2);
  else if (event.key === "0" || event.key === "Escape")
    app.setRange(null);
  else
    return;
  event.preventDefault();
}

// options: label; series: [{name, values}], one value a step; steps: which shown step (index) each
// value is of; format(value); log; height; zero: the axis begins at 0; marks: [{step, kind}], drawn
// on the first line.
class Chart {
  constructor(options) {
    Object.assign(this, {height: 150, log: false, zero: false, marks: []}, options);
    this.element = el("div", {
      class: "chart",
      tabindex: 0,
      role: "slider",
      "aria-orientation": "horizontal",
      "aria-label": `${this.label}: chosen step`,
      onkeydown: stepKeys
    });
    this.note = el("p", {class: "quiet note"});
    this.figure = el("div", {class: "figure"}, this.element, this.note);
    onWidth(this.element, (width) => {
      this.width = width;
      this.draw();
    });
    charts.add(this);
  }

  set(options) {
    Object.assign(this, options);
    this.draw();
  }

  // The x of each value, in the timeline's unit: the step's number, or milliseconds.
  place() {
    const domain = app.domain();
    this.left = this.width < 480 ? 66 : 72;
    const scale = app.overTime ? d3.scaleUtc() : d3.scaleLinear();
    this.x = scale.domain(domain).range([this.left, this.width - 14]);
    this.xs = this.steps.map((step) => app.x(step));
    const seen = (i) => this.xs[i] >= domain[0] && this.xs[i] <= domain[1];
    const shown = [], odd = new Map();
    let dropped = 0;
    this.points = this.series.map(({values}, s) => values.map((value, i) => {
      const isDrawn = isNumber(value) && !(this.log && value <= 0);
      if (isDrawn && seen(i)) shown.push(value);
      if (isOdd(value)) odd.set(value, (odd.get(value) || 0) + 1);
      if (isNumber(value) && !isDrawn) dropped += 1;
      return {i, s, value, isDrawn, isOdd: isOdd(value)};
    }));
    let [low, high] = d3.extent(shown);
    this.isEmpty = low === undefined;
    if (this.isEmpty) [low, high] = this.log ? [0.1, 1] : [0, 1];
    if (this.zero && !this.log) low = Math.min(0, low);
    if (low === high) {
      [low, high] = this.log ? [low / 2, high * 2] :
          low === 0          ? [0, 1] :
                               [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
    } else if (!this.log) {
      const more = (high - low) * 0.06;
      [low, high] = [this.zero && low === 0 ? 0 : low - more, high + more];
    }
    this.y = (this.log ? d3.scaleLog() : d3.scaleLinear()).domain([low, high]).range([
      this.height - 24, 10
    ]);
    const notes = [...[...odd].map(([word, count]) => `${formatCount(count)} × ${word}`)];
    if (notes.length) notes[0] = `Not drawn as numbers, marked at the top: ${notes[0]}`;
    if (dropped) notes.push(`${countText(dropped, "value")} of 0 or less not drawn on a log scale`);
    this.note.textContent = notes.length ? `${notes.join(", ")}.` : "";
    this.note.hidden = !notes.length;
  }

  draw() {
    if (!this.width || !this.element.isConnected) return;
    this.place();
    const svg = d3.create("svg")
                    .attr("width", this.width)
                    .attr("height", this.height)
                    .attr("aria-hidden", "true");
    const clip = newId("clip");
    svg.append("clipPath")
        .attr("id", clip)
        .append("rect")
        .attr("x", this.left)
        .attr("y", 0)
        .attr("width", Math.max(0, this.width - this.left - 8))
        .attr("height", this.height - 22);
    this.drawAxes(svg);
    const inside = svg.append("g").attr("clip-path", `url(#${clip})`);
    this.drawLines(inside);
    this.drawMarks(inside);
    this.cursor =
        svg.append("line").attr("class", "chosen").attr("y1", 4).attr("y2", this.height - 22);
    this.reading = svg.append("g").attr("class", "reading");
    this.addBrush(svg);
    fill(this.element, svg.node());
    this.showStep();
  }

  drawAxes(svg) {
    const rows = Math.max(2, Math.floor(this.height / 45));
    const ticks = this.log                                    ? logTicks(this.y, rows) :
        this.format === bytesText || this.format === rateText ? bytesTicks(this.y, rows) :
                                                                this.y.ticks(rows);
    const left =
        d3.axisLeft(this.y)
            .tickValues(ticks)
            .tickSizeOuter(0)
            .tickFormat(
                this.format === formatShort ? axisText :
                                              (value) => this.format(value).replace(".0 ", " "))
            .tickSizeInner(-(this.width - this.left - 14));
    svg.append("g")
        .attr("class", "axis y")
        .attr("transform", `translate(${this.left},0)`)
        .call(left);
    svg.append("g")
        .attr("class", "axis x")
        .attr("transform", `translate(0,${this.height - 22})`)
        .call(stepAxis(this.x, this.width));
    if (this.isEmpty) {
      svg.append("text")
          .attr("class", "nothing")
          .attr("x", this.left + 12)
          .attr("y", this.height / 2)
          .text("no finite value here");
    }
  }

  drawLines(inside) {
    const line = d3.line()
                     .defined((point) => point.isDrawn)
                     .x((point) => this.x(this.xs[point.i]))
                     .y((point) => this.y(point.value));
    const dots = this.xs.length <= Math.max(60, this.width / 12);
    this.points.forEach((points, s) => {
      // A value that is not known does not break the line; NaN and infinities do.
      const joined = points.filter((each) => each.value !== null);
      inside.append("path")
          .attr("class", "line")
          .attr("d", line(joined))
          .style("stroke", PALETTE[s])
          .style("stroke-dasharray", DASHES[s]);
      // A point between two that are not drawn would be a line of no length.
      const alone = (k) => !(joined[k - 1] || {}).isDrawn && !(joined[k + 1] || {}).isDrawn;
      inside.selectAll(null)
          .data(joined.filter((each, k) => each.isDrawn && (dots || alone(k))))
          .enter()
          .append("circle")
          .attr("r", 2)
          .style("fill", PALETTE[s])
          .attr("cx", (each) => this.x(this.xs[each.i]))
          .attr("cy", (each) => this.y(each.value));
      inside.selectAll(null)
          .data(points.filter((each) => each.isOdd))
          .enter()
          .append("path")
          .attr("class", "odd")
          .attr("d", "M-3,-3L3,3M-3,3L3,-3")
          .attr("transform", (each) => `translate(${this.x(this.xs[each.i])},5)`);
    });
  }

  drawMarks(inside) {
    for (const {step, kind} of this.marks) {
      const i = this.steps.indexOf(step);
      const point = i >= 0 && this.points[0][i];
      if (!point || !point.isDrawn) continue;
      drawMark(
          inside.append("g").attr(
              "transform", `translate(${this.x(this.xs[i])},${this.y(point.value)})`),
          kind, 70);
    }
  }

  // A drag zooms; a click, which is a drag of no length, chooses the nearest step.
  addBrush(svg) {
    const area = [[this.left, 0], [this.width - 14, this.height - 22]];
    const brush = d3.brushX().extent(area).on("end", () => {
      if (!d3.event.sourceEvent) return;
      if (!d3.event.selection) {
        const [at] = d3.mouse(svg.node());
        this.choose(this.x.invert(at));
        return;
      }
      const [from, to] = d3.event.selection.map((at) => Number(this.x.invert(at)));
      app.setRange([from, to]);
    });
    const layer = svg.append("g").attr("class", "brush").call(brush);
    layer
        .on("mousemove",
            () => this.showReading(nearest(this.xs, this.x.invert(d3.mouse(svg.node())[0]))))
        .on("mouseleave", () => this.reading.selectAll("*").remove())
        .on("dblclick", () => app.setRange(null))
        .on("wheel", () => {
          if (!d3.event.ctrlKey && !d3.event.metaKey) return;  // a page that scrolls still scrolls
          d3.event.preventDefault();
          app.zoom(
              d3.event.deltaY > 0 ? 1.25 : 0.8, Number(this.x.invert(d3.mouse(svg.node())[0])));
        });
  }

  choose(x) {
    const i = nearest(this.xs, x);
    if (i >= 0) app.setStep(this.steps[i]);
    this.element.focus({preventScroll: true});
  }

  textAt(i) {
    const values =
        this.series.map(({name, values: of}) => `${name} ${valueText(of[i], this.format)}`);
    return `step ${stepName(this.steps[i])}: ${values.join(", ")}`;
  }

  showReading(i) {
    this.reading.selectAll("*").remove();
    if (i < 0) return;
    const at = this.x(this.xs[i]);
    this.reading.append("line").attr("x1", at).attr("x2", at).attr("y1", 4).attr(
        "y2", this.height - 22);
    const isRight = at > this.width / 2;
    this.reading.append("text")
        .attr("x", at + (isRight ? -6 : 6))
        .attr("y", 16)
        .attr("text-anchor", isRight ? "end" : "start")
        .text(visible(this.textAt(i)));
  }

  // The chosen step's line, and its words for a screen reader.
  showStep() {
    if (!this.cursor) return;
    const step = app.step, x = step < 0 ? NaN : this.x(app.x(step));
    const isSeen = x >= this.left - 1 && x <= this.width - 13;
    this.cursor.attr("x1", x || 0).attr("x2", x || 0).style("display", isSeen ? null : "none");
    const i = this.steps.indexOf(step), {number} = app.document.steps;
    const words = step < 0 ? "no step" :
        i >= 0             ? this.textAt(i) :
                             `step ${stepName(step)}: not sampled`;
    this.element.setAttribute("aria-valuemin", number.length ? Number(number[0]) : 0);
    this.element.setAttribute(
        "aria-valuemax", number.length ? Number(number[number.length - 1]) : 0);
    this.element.setAttribute("aria-valuenow", step < 0 ? 0 : Number(number[step]));
    this.element.setAttribute("aria-valuetext", visible(words));
  }
}

// Those that are in the page: told of each chosen step and each zoom.
const charts = new Set();

function inPage(draw) {
  for (const chart of charts) {
    if (chart.element.isConnected)
      draw(chart);
    else if (chart.width)
      charts.delete(chart);
  }
}

function valueText(value, format) {
  return isNumber(value) ? format(value) : numberText(value);
}

// A few powers of the base, or the scale's own ticks where it spans less than a decade.
function logTicks(scale, rows) {
  const [low, high] = scale.domain();
  const powers = d3.range(Math.ceil(Math.log10(low)), Math.floor(Math.log10(high)) + 1);
  if (powers.length < 2) return d3.scaleLinear().domain([low, high]).ticks(rows);
  const every = Math.ceil(powers.length / (rows + 1));
  return powers.filter((each, i) => i % every === 0).map((power) => 10 ** power);
}

// Round numbers of the unit that the largest has.
function bytesTicks(scale, rows) {
  const [low, high] = scale.domain();
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, Math.abs(high))) / 10));
  return d3.ticks(low / unit, high / unit, rows).map((tick) => tick * unit);
}

function stepAxis(x, width) {
  const axis = d3.axisBottom(x).ticks(Math.max(2, Math.floor(width / 110))).tickSizeOuter(0);
  if (app.overTime) return axis;
  return axis.tickValues(x.ticks(Math.max(2, Math.floor(width / 90))).filter(Number.isInteger))
      .tickFormat(formatCount);
}
