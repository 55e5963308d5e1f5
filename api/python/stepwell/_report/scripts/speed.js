// SPDX-License-Identifier: Apache-2.0
// Speed: how long saves took, and at which rate they wrote.

const speed = {
  mount(body) {
    this.log =
        toggle("Log scale", false, (on) => this.charts.forEach((chart) => chart.set({log: on})));
    const chart = (label, format) =>
        new Chart({label, format, height: 120, zero: true, steps: [], series: []});
    this.charts = [
      chart("Seconds from save to commit", secondsText), chart("Bytes written a second", rateText)
    ];
    this.said = el("p", {id: "speed-said"});
    this.box =
        el("div", {}, el("div", {class: "tools"}, this.log),
           ["From the call of save to its commit", "Bytes of its own ÷ that time"].map(
               (title, i) =>
                   el("div", {class: "chart-box"}, el("h3", {}, title), this.charts[i].figure)));
    fill(body, this.said, this.box);
    app.on("document", () => this.draw());
  },

  draw() {
    const {steps} = app.document;
    const all = steps.number.map((number, step) => step);
    const seconds = steps.save_s || all.map(() => null);
    const rates = all.map((step) => {
      const owned = (steps.owned_bytes || [])[step];
      return isNumber(owned) && isNumber(seconds[step]) && seconds[step] > 0 ?
          owned / seconds[step] :
          null;
    });
    const known = seconds.filter(isNumber), knownRates = rates.filter(isNumber);
    this.box.hidden = !known.length;
    const unknown = all.length - known.length;
    this.said.textContent = !all.length ?
        "This store has no step yet." :
        !known.length ?
        "How long the saves took is not known: the store does not say it of these steps." :
        `Median ${secondsText(d3.median(known))}, longest ${secondsText(d3.max(known))}; median ${
            rateText(d3.median(knownRates))}.${
            unknown ? ` Of ${countText(unknown, "step")} it is not known.` : ""}`;
    this.charts[0].set({steps: all, series: [{name: "save", values: seconds}]});
    this.charts[1].set({steps: all, series: [{name: "rate", values: rates}]});
  },
};
