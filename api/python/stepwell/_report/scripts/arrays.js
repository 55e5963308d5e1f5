// SPDX-License-Identifier: Apache-2.0
// What only a live server can show of a leaf: its elements, as a histogram, a heat map and values.

const HEAT_LEVELS = 32;

// Half of a surrogate pair, which a name of Python's may have, goes as the bytes that it is stored
// as.
function escapedForUrl(text) {
  return [...text]
      .map((each) => {
        const code = each.charCodeAt(0);
        if (each.length > 1 || code < 0xd800 || code > 0xdfff) return encodeURIComponent(each);
        const bytes = [0xe0 | code >> 12, 0x80 | code >> 6 & 0x3f, 0x80 | code & 0x3f];
        return bytes.map((byte) => `%${byte.toString(16)}`).join("");
      })
      .join("");
}

// Asks the server that the page came from; throws an Error with its words.
async function ask(what, parameters) {
  const token = new URLSearchParams(location.search).get("token") || "";
  const query = Object.entries({...parameters, token})
                    .map(([name, value]) => `${name}=${escapedForUrl(String(value))}`)
                    .join("&");
  let answer;
  try {
    answer = await fetch(`${what}?${query}`, {cache: "no-cache", credentials: "same-origin"});
  } catch {
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return {data: await answer.json(), tag: answer.headers.get("ETag")};
  const said = await answer.json().catch(() => ({}));
  const words = said.error && (said.error.message || said.error);
  throw new Error(visible(typeof words === "string" ? words : `The server says ${answer.status}.`));
}

const arrays = {
  mount(body, leaf) {
    this.asked = 0;
    if (!app.isLive) {
      fill(
          body,
          el("p", {class: "quiet hint"}, "Its histogram, heat map and elements are not on this ",
             "page: ", el("code", {}, "stepwell serve"), " shows them."));
      return;
    }
    this.leaf = leaf;
    this.slice = el("input", {
      type: "text",
      size: 14,
      placeholder: "0, :, 0:16",
      spellcheck: "false",
      autocomplete: "off",
      onkeydown: (event) => {
        if (event.key === "Enter") this.read();
      }
    });
    this.button = el("button", {type: "button", id: "read", onclick: () => this.read()});
    this.said = el("p", {class: "quiet", role: "status", id: "arrays-said"});
    this.shown = el("div", {class: "figures", id: "arrays-shown"});
    fill(
        body, el("h4", {}, "Elements"),
        el("div", {class: "tools"},
           el("label", {class: "field"}, el("span", {}, "Slice"), this.slice), this.button),
        this.said, this.shown);
    this.showStep();
  },

  showStep() {
    if (app.isLive && this.button) this.button.textContent = `Read at step ${stepName(app.step)}`;
  },

  // Of several answers under way the last that was asked for counts.
  async read() {
    const {path, item} = app.document.leaves, {number} = app.document.steps;
    const at = this.leaf;
    const asked = this.asked += 1;
    this.said.textContent = "Reading …";
    const wanted = {step: number[app.step], path: wholePath(item[at], path[at]), item: item[at]};
    if (this.slice.value.trim()) wanted.slice = this.slice.value.trim();
    try {
      const {data} = await ask("leaf", wanted);
      if (asked === this.asked) this.show(data);
    } catch (error) {
      if (asked !== this.asked) return;
      this.said.textContent = error.message;
      fill(this.shown);
    }
  },

  show(data) {
    const slice = data.slice ? `, [${visible(data.slice)}]` : "";
    this.said.textContent = `Step ${stepText(data.step)}${slice}.`;
    const {histogram, heatmap, values} = data;
    fill(this.shown, [
      histogram && this.figure("Histogram", drawHistogram(histogram), histogramWords(histogram)),
      heatmap &&
          this.figure(
              `Heat map${heatmap.of ? ` of [${visible(heatmap.of)}]` : ""}`, drawHeatMap(heatmap),
              heatmap.note),
      values && values.values.length &&
          this.figure(
              "Values", drawValues(values),
              values.of > values.values.length ?
                  `The first ${formatCount(values.values.length)} of ${formatCount(values.of)}.` :
                  ""),
      typeof data.value === "string" &&
          this.figure("Value", wholeName("The leaf's value", visible(data.value)), ""),
      data.sharding_text &&
          this.figure(
              "Sharding",
              el("pre", {tabindex: 0, role: "region", "aria-label": "Sharding drawn"},
                 visible(data.sharding_text).replace(/\\x0a/g, "\n")),
              ""),
    ].filter(Boolean));
  },

  figure(title, drawn, note) {
    return el(
        "div", {class: "chart-box"}, el("h4", {}, title), drawn,
        note ? el("p", {class: "quiet note"}, visible(note)) : null);
  },
};

function histogramWords(histogram) {
  const parts = [`${formatCount(d3.sum(histogram.counts))} elements in ${
      countText(histogram.counts.length, "bin")}`];
  const beyond = [["below", "below"], ["above", "above"], ["nan", "NaN"], ["infinite", "infinite"]];
  for (const [key, word] of beyond) {
    if (histogram[key]) parts.push(`${formatCount(histogram[key])} ${word}`);
  }
  return `${parts.join(", ")}.${histogram.note ? ` ${histogram.note}` : ""}`;
}

function drawHistogram({edges, counts}) {
  const box = el("div", {class: "plain-chart"});
  onWidth(box, (width) => {
    const height = 150, left = 54;
    const x =
        d3.scaleLinear().domain([edges[0], edges[edges.length - 1]]).range([left, width - 14]);
    const y = d3.scaleLinear().domain([0, d3.max(counts) || 1]).range([height - 22, 8]);
    const svg = d3.create("svg")
                    .attr("width", width)
                    .attr("height", height)
                    .attr("role", "img")
                    .attr(
                        "aria-label",
                        `Histogram from ${formatShort(edges[0])} to ${
                            formatShort(edges[edges.length - 1])}; the fullest bin has ${
                            formatCount(d3.max(counts) || 0)}`);
    svg.append("g")
        .attr("class", "axis y")
        .attr("transform", `translate(${left},0)`)
        .call(d3.axisLeft(y).ticks(3, "~s").tickSizeOuter(0).tickSizeInner(-(width - left - 14)));
    svg.append("g")
        .attr("class", "axis x")
        .attr("transform", `translate(0,${height - 22})`)
        .call(d3.axisBottom(x).ticks(Math.max(2, Math.floor(width / 90)), "~g").tickSizeOuter(0));
    svg.append("g")
        .selectAll("rect")
        .data(counts)
        .enter()
        .append("rect")
        .attr("class", "bin")
        .attr("x", (count, i) => x(edges[i]))
        .attr("y", (count) => y(count))
        .attr("width", (count, i) => Math.max(1, x(edges[i + 1]) - x(edges[i]) - 0.5))
        .attr("height", (count) => y(0) - y(count))
        .append("title")
        .text(
            (count, i) =>
                `${formatShort(edges[i])} to ${formatShort(edges[i + 1])}: ${formatCount(count)}`);
    fill(box, svg.node());
  });
  return box;
}

// One path for each of a few colours: 16,384 cells are too many elements.
function drawHeatMap(map) {
  const rows = map.mean.length, columns = rows ? map.mean[0].length : 0;
  const [low, high] = d3.extent(map.mean.flat().filter(isNumber));
  const level = d3.scaleQuantize()
                    .domain(low < high ? [low, high] : [low || 0, (low || 0) + 1])
                    .range(d3.range(HEAT_LEVELS));
  const reading = el("p", {class: "quiet", role: "status"});
  let at = [0, 0], cursor = null, side = 1, tall = 1;
  const read = () => {
    const [r, c] = at;
    const edge = (edges, i, size) => (edges ? `${edges[i]}:${edges[i + 1]}` : `${i} of ${size}`);
    const number = (values) => numberText(values[r][c]);
    reading.textContent =
        `[${edge(map.row_edges, r, rows)}, ${edge(map.column_edges, c, columns)}]: mean ${
            number(map.mean)}, min ${number(map.min)}, max ${number(map.max)}`;
    if (cursor) cursor.attr("x", c * side).attr("y", r * tall);
  };
  const move = (r, c) => {
    at = [Math.max(0, Math.min(rows - 1, r)), Math.max(0, Math.min(columns - 1, c))];
    read();
  };
  const box = el("div", {
    class: "heat",
    tabindex: 0,
    role: "application",
    "aria-label": `Heat map of ${rows} by ${columns} blocks; arrow keys read them`,
    onkeydown: (event) => {
      const by = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [
                    0, 1
                  ]}[event.key];
      if (!by) return;
      move(at[0] + by[0], at[1] + by[1]);
      event.preventDefault();
    }
  });
  onWidth(box, (width) => {
    side = Math.min(width / columns, 24);
    tall = Math.min(side, 360 / rows);
    const svg = d3.create("svg")
                    .attr("width", side * columns)
                    .attr("height", tall * rows)
                    .attr("aria-hidden", "true")
                    .attr("shape-rendering", "crispEdges");
    const paths = d3.range(HEAT_LEVELS + 1).map(() => d3.path());
    map.mean.forEach((row, r) => row.forEach((value, c) => {
      paths[isNumber(value) ? level(value) : HEAT_LEVELS].rect(c * side, r * tall, side, tall);
    }));
    paths.forEach(
        (path, i) => svg.append("path")
                         .attr("d", path.toString())
                         .style(
                             "fill",
                             i < HEAT_LEVELS ? d3.interpolateViridis(i / (HEAT_LEVELS - 1)) :
                                               "var(--tainted)"));
    cursor = svg.append("rect").attr("class", "cell").attr("width", side).attr("height", tall);
    svg.on("mousemove", () => {
      const [x, y] = d3.mouse(svg.node());
      move(Math.floor(y / tall), Math.floor(x / side));
    });
    fill(box, svg.node());
    read();
  });
  const isOddThere = map.mean.flat().some((value) => !isNumber(value));
  const scale = el(
      "p", {class: "quiet legend"}, numberText(low),
      el("span", {class: "viridis", "aria-hidden": "true"}), numberText(high),
      isOddThere ? [el("span", {class: "odd-cell", "aria-hidden": "true"}), "not finite"] : null);
  return el("div", {}, box, scale, reading);
}

function drawValues({shape, values}) {
  const strides = shape.map((size, k) => shape.slice(k + 1).reduce((a, b) => a * b, 1));
  const index = (i) => shape.map((size, k) => Math.floor(i / strides[k]) % size).join(", ");
  const grid = new Grid({
    label: "Values",
    rowsMax: 8,
    rows: values.map((value, i) => i),
    columns: [
      {
        key: "index",
        label: "Index",
        width: "minmax(90px, 1fr)",
        header: true,
        cell: (i) => `[${index(i)}]`
      },
      {
        key: "value",
        label: "Value",
        width: "minmax(120px, 2fr)",
        align: "right",
        value: (i) => (isNumber(values[i]) ? values[i] : null),
        cell: (i) =>
            (typeof values[i] === "number" ? String(values[i]) : visible(String(values[i])))
      }
    ]
  });
  return grid.element;
}
