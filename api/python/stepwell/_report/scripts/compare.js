// SPDX-License-Identifier: Apache-2.0
// Two steps beside each other: which leaves differ, and by how much.

const LARGEST = {
  key: "relative",
  down: true
};

const compare = {
  mount(body) {
    this.a = this.b = null;  // numbers of steps
    const chosen = (key) => (value) => {
      this[key] = app.document.steps.number[Number(value)];
      this.draw();
    };
    [this.fieldA, this.selectA] = choice("From step", [], "", chosen("a"));
    [this.fieldB, this.selectB] = choice("to step", [], "", chosen("b"));
    this.selectA.id = "compare-a";
    this.selectB.id = "compare-b";
    const swap =
        el("button", {
          type: "button",
          class: "small",
          onclick: () => {
            [this.a, this.b] = [this.b, this.a];
            this.draw();
          }
        },
           "Swap");
    this.useStep =
        el("button", {
          type: "button",
          class: "small",
          onclick: () => {
            this.b = app.document.steps.number[this.options()[nearest(this.options(), app.step)]];
            this.draw();
          }
        },
           "To the chosen step");
    this.all = toggle("Unchanged leaves, too", false, () => this.draw());
    this.said = el("p", {role: "status", id: "compare-said"});
    this.note = el("p", {class: "quiet"});
    this.grid = new Grid({
      label: "Leaves that differ",
      columns: this.columns(),
      rowsMax: 14,
      sort: LARGEST,
      empty: "No leaf differs.",
      isChosen: (row) => row.leaf >= 0 && row.leaf === app.leaf,
      onChoose: (row) => {
        if (row.leaf >= 0) app.setLeaf(row.leaf);
      }
    });
    fill(
        body, el("div", {class: "tools"}, this.fieldA, this.fieldB, swap, this.useStep, this.all),
        this.said, this.grid.element, this.note);
    app.on("document", () => this.take());
    app.on("leaf", () => this.grid.drawRows());
  },

  columns() {
    const number = (key, label, format, width = "100px") => ({
      key,
      label,
      width,
      align: "right",
      value: (row) =>
          (key === "relative" || key === "delta" ? magnitude(row[key]) : asNumber(row[key])),
      cell: (row) => format(row[key])
    });
    const columns = [
      {
        key: "path",
        label: "Leaf",
        width: "minmax(200px, 1fr)",
        header: true,
        text: true,
        value: (row) => row.path,
        cell: (row) => (row.path === "" ? "(the state)" : nameOf(row.path, 160))
      },
      {
        key: "what",
        label: "Change",
        width: "104px",
        text: true,
        value: (row) => row.what,
        cell: (row) => el("span", {class: `what ${row.what.split(" ")[0]}`}, row.what)
      },
      number("a", "Norm before", numberText),
      number("b", "Norm after", numberText),
      number("delta", "Change of norm", changeText, "118px"),
      number(
          "relative", "Relative",
          (value) =>
              (isNumber(value) ? `${value > 0 ? "+" : ""}${shareText(value)}` :
                                 valueText(value, String)),
          "92px"),
    ];
    if (app.isLive) columns.push(number("bytesChanged", "Changed", bytesText, "92px"));
    return [...columns, number("size", "Size", bytesText, "92px")];
  },

  // The steps that can be compared: sampled ones, or all of a live run. As indices, ascending.
  options() {
    return app.isLive ? app.document.steps.number.map((number, step) => step) :
                        app.document.leaves.steps;
  },

  take() {
    const {number} = app.document.steps, steps = this.options();
    const isThere = (wanted) => steps.some((step) => number[step] === wanted);
    if (steps.length) {
      if (!isThere(this.b)) this.b = number[steps[steps.length - 1]];
      if (!isThere(this.a)) this.a = number[steps[0]];
    }
    this.draw();
  },

  draw() {
    const {number} = app.document.steps, steps = this.options();
    const options = steps.map((step) => [step, stepName(step)]);
    const stepA = number.indexOf(this.a), stepB = number.indexOf(this.b);
    setOptions(this.selectA, options, stepA);
    setOptions(this.selectB, options, stepB);
    this.asked = (this.asked || 0) + 1;
    if (steps.length < 2) {
      this.said.textContent = steps.length ?
          "There is one step alone: nothing to compare it with." :
          "There is no step to compare.";
      this.grid.element.hidden = true;
      return;
    }
    this.grid.element.hidden = false;
    const {leaves} = app.document;
    const samples = [stepA, stepB].map((step) => leaves.steps.indexOf(step));
    if (!samples.includes(-1)) {
      this.show(comparedInDocument(...samples));
    } else {
      this.said.textContent = "Asking the server …";
      this.grid.setRows([], false);
    }
    if (app.isLive) this.askExact(samples);
  },

  async askExact(samples) {
    const {asked} = this;
    try {
      const {data} = await ask("changed", {a: this.a, b: this.b});
      if (asked === this.asked) this.show(comparedByServer(data, samples), true);
    } catch (error) {
      if (asked === this.asked) this.note.textContent = error.message;
    }
  },

  show(compared, isExact = false) {
    const {rows, counts} = compared;
    const parts = ["changed", "added", "removed", "unchanged", "not known"]
                      .filter((what) => counts[what] || what === "changed" || what === "unchanged")
                      .map((what) => `${formatCount(counts[what] || 0)} ${what}`);
    this.said.textContent = `${parts.join(", ")}.`;
    this.note.textContent = isExact ?
        `Exact, from the steps' records.${compared.note}` :
        "From the sampled steps' records. The change of a norm is the least by which the leaf " +
            "changed; a leaf may change and keep its norm.";
    this.grid.setRows(
        rows.filter((row) => this.all.querySelector("input").checked || row.what !== "unchanged"),
        true);
  },
};

function asNumber(value) {
  return isNumber(value)    ? value :
      value === "Infinity"  ? Infinity :
      value === "-Infinity" ? -Infinity :
                              null;
}

function magnitude(value) {
  return asNumber(value) === null ? null : Math.abs(asNumber(value));
}

function withNorms(row, samples) {
  const [a, b] = samples.map(
      (sample) => (row.leaf < 0 || sample < 0 ? null : statistic("norm", row.leaf, sample)));
  const isKnown = isNumber(a) && isNumber(b);
  const delta = isKnown ? b - a : null;
  const relative = !isKnown ? null : delta === 0 ? 0 : a === 0 ? "Infinity" : delta / a;
  return {...row, a, b, delta, relative};
}

function comparedInDocument(sampleA, sampleB) {
  const {leaves} = app.document, rows = [], counts = {};
  leaves.path.forEach((path, leaf) => {
    const [a, b] = [contentOf(leaf, sampleA), contentOf(leaf, sampleB)];
    if (a === null && b === null) return;
    const row = withNorms({leaf, path, size: leaves.logical_bytes[leaf]}, [sampleA, sampleB]);
    if (a === null || b === null)
      row.what = a === null ? "added" : "removed";
    else if (a >= 0 && b >= 0)
      row.what = a === b ? "unchanged" : "changed";
    else
      row.what = sampleA === sampleB             ? "unchanged" :
          isNumber(row.delta) && row.delta !== 0 ? "changed" :
                                                   "not known";
    counts[row.what] = (counts[row.what] || 0) + 1;
    rows.push(row);
  });
  return {rows, counts};
}

function comparedByServer(data, samples) {
  // The document's paths begin with the item where any of its steps has more than one.
  const {path: paths, item: items} = app.document.leaves;
  const known = new Map(paths.map((path, leaf) => [wholePath(items[leaf], path), leaf]));
  const leafOf = ({path, item}) => known.get(wholePath(item, path)) ?? -1;
  const rowOf = (what) => (each) => withNorms(
      {
        what: each.unsure ? "not known" : what,
        path: each.path,
        leaf: leafOf(each),
        size: each.nbytes,
        bytesChanged: each.nbytes_changed === undefined ? null : each.nbytes_changed
      },
      samples);
  const rows = [
    ...data.changed.map(rowOf("changed")), ...data.added.map(rowOf("added")),
    ...data.removed.map(rowOf("removed"))
  ];
  const counts = {unchanged: data.unchanged};
  for (const {what} of rows) counts[what] = (counts[what] || 0) + 1;
  const note = data.left_out ?
      ` ${countText(data.left_out, "further leaf", "further leaves")} not listed.` :
      "";
  return {rows, counts, note};
}
