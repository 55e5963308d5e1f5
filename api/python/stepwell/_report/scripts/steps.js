// SPDX-License-Identifier: Apache-2.0
// The chosen step: the chooser in the bar, and all shown steps as a table.

const chooser = {
  mount(box) {
    const move = (text, label, by) =>
        el("button", {
          type: "button",
          class: "small",
          "aria-label": label,
          title: label,
          onclick: () => app.moveStep(by)
        },
           text);
    this.field = el("input", {
      type: "text",
      inputmode: "numeric",
      id: "step-field",
      size: 7,
      autocomplete: "off",
      "aria-label": "Step: a number, or the nearest shown one is taken",
      onchange: () => this.take(),
      onkeydown: (event) => {
        if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
        app.moveStep(event.key === "ArrowUp" ? 1 : -1);
        event.preventDefault();
      }
    });
    this.follow = toggle("Follow", true, (on) => {
      app.follows = on;
      if (on) app.moveStep(Infinity), app.follows = true;
      this.draw();
    });
    this.follow.hidden = !app.isLive;
    fill(
        box, el("span", {class: "quiet"}, "Step"), move("◂", "Step before", -1), this.field,
        move("▸", "Step after", 1), move("Newest", "Newest step", Infinity), this.follow);
    app.on("document", () => this.draw());
    app.on("step", () => this.draw());
  },

  take() {
    const wanted = this.field.value.replace(/[,\s]/g, ""), {number} = app.document.steps;
    // Of large numbers several are one number of JavaScript's.
    const same = number.findIndex((each) => String(each) === wanted);
    if (same >= 0)
      app.setStep(same);
    else if (wanted && Number.isFinite(Number(wanted)))
      app.setStep(nearest(number.map(Number), Number(wanted)));
    this.draw();
  },

  draw() {
    this.field.value = app.step < 0 ? "none" : String(app.document.steps.number[app.step]);
    this.follow.querySelector("input").checked = app.follows;
  },
};

const stepsTable = {
  open(body) {
    if (this.grid) return;
    const bytes = (key, label) => ({
      key,
      label,
      width: "96px",
      align: "right",
      value: (step) => (app.document.steps[key] || [])[step],
      cell: (step) => bytesText((app.document.steps[key] || [])[step])
    });
    this.fixed = [
      {
        key: "number",
        label: "Step",
        width: "90px",
        align: "right",
        header: true,
        cell: stepName,
        value: (step) => Number(app.document.steps.number[step])
      },
      {
        key: "time",
        label: "Saved",
        width: "190px",
        value: (step) => app.document.steps.time_s[step],
        cell: (step) => timeText(app.document.steps.time_s[step])
      },
      {key: "marks", label: "Marks", width: "110px", cell: (step) => this.marks(step)},
      bytes("logical_bytes", "Size"),
      bytes("stored_bytes", "Stored"),
      bytes("owned_bytes", "Its own"),
      bytes("frees_bytes", "Frees"),
      {
        key: "save_s",
        label: "Save",
        width: "80px",
        align: "right",
        value: (step) => (app.document.steps.save_s || [])[step],
        cell: (step) => secondsText((app.document.steps.save_s || [])[step])
      },
    ];
    this.grid = new Grid({
      label: "Steps",
      columns: this.columns(),
      rows: this.rows(),
      rowsMax: 12,
      sort: {key: "number", down: true},
      empty: "This store has no step yet.",
      isChosen: (step) => step === app.step,
      onChoose: (step) => app.setStep(step)
    });
    fill(body, this.grid.element);
    app.on("document", () => {
      this.grid.columns = this.columns();
      this.grid.setRows(this.rows());
    });
    app.on("step", () => this.grid.drawRows());
  },

  rows() {
    this.marked = markedSteps(app.document);
    return app.document.steps.number.map((number, step) => step);
  },

  columns() {
    return [
      ...this.fixed,
      ...Object.keys(app.document.metrics || {})
          .slice(0, 8)
          .map((name, i) => ({
                 key: `metric-${i}`,
                 label: cutName(name, 24),
                 width: "100px",
                 align: "right",
                 value: (step) => {
                   const value = app.document.metrics[name][step];
                   return isNumber(value) ? value : null;
                 },
                 cell: (step) => numberText(app.document.metrics[name][step])
               }))
    ];
  },

  marks(step) {
    const kinds = Object.keys(MARKS).filter((kind) => this.marked[kind].includes(step));
    return kinds.map(
        (kind) =>
            el("span", {title: MARKS[kind].word}, markIcon(kind),
               el("span", {class: "unseen"}, MARKS[kind].word)));
  },
};
