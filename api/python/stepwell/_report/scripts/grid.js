// SPDX-License-Identifier: Apache-2.0
// A table of any number of rows, of which only those in sight are in the page. Arrow keys, Page Up,
// Page Down, Home and End move in it; Enter and a click choose. A tree is one, too.

const ROW_PX = 26;
const ROWS_BEYOND = 8;

// options: label, rows (any values), columns: [{key, label, unit, width, align, value(row),
// cell(row)}], onChoose(row), isChosen(row), tree: {level, expanded, setSize, position}(row) and
// onTree(row, key), sort: {key, down}, empty: what is said of no rows, rowsMax: rows in sight.
class Grid {
  constructor(options) {
    Object.assign(this, {rowsMax: 14, sort: null, empty: "Nothing to show.", active: 0}, options);
    this.id = newId("grid");
    this.head = el("div", {role: "row", class: "row head", "aria-rowindex": 1});
    this.body = el("div", {role: "rowgroup", class: "rows"});
    this.none = el("p", {class: "quiet none"}, this.empty);
    this.box =
        el("div", {
          role: this.tree ? "treegrid" : "grid",
          tabindex: 0,
          class: "grid",
          "aria-label": this.label,
          onscroll: () => this.drawRows(),
          onkeydown: (event) => this.onKey(event)
        },
           el("div", {role: "rowgroup", class: "heads"}, this.head), this.body);
    this.element = el("div", {class: "grid-box"}, this.box, this.none);
    this.body.addEventListener("click", (event) => this.onClick(event));
    onWidth(this.box, () => this.drawRows());
    this.setRows(this.rows || []);
  }

  setRows(rows, keepsPlace = true) {
    this.rows = rows;
    this.sortRows();
    if (!keepsPlace) this.box.scrollTop = 0;
    this.active = Math.max(0, Math.min(keepsPlace ? this.active : 0, this.rows.length - 1));
    this.draw();
  }

  sortRows() {
    const column = this.sort && this.columns.find(({key}) => key === this.sort.key);
    if (!column || !column.value) return;
    const way = this.sort.down ? -1 : 1;
    const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
    const keyed = this.rows.map((row, i) => [column.value(row), i, row]);
    // What is not known comes last, whichever way: it is neither small nor large.
    keyed.sort(([a, i], [b, k]) => {
      if (!known(a) || !known(b)) return known(b) - known(a) || i - k;
      return (a < b ? -way : a > b ? way : 0) || i - k;
    });
    this.rows = keyed.map(([, , row]) => row);
  }

  sortBy(column) {
    const down = this.sort && this.sort.key === column.key ? !this.sort.down : !column.text;
    this.sort = {key: column.key, down};
    this.setRows(this.rows, false);
  }

  draw() {
    const columns = this.columns;
    this.box.style.setProperty("--columns", columns.map(({width}) => width || "1fr").join(" "));
    this.drawHead(columns);
    this.box.setAttribute("aria-rowcount", this.rows.length + 1);
    this.box.setAttribute("aria-colcount", columns.length);
    this.body.style.height = `${this.rows.length * ROW_PX}px`;
    this.box.style.maxHeight = `${(this.rowsMax + 1) * ROW_PX + 12}px`;
    this.none.hidden = this.rows.length > 0;
    this.box.hidden = this.rows.length === 0;
    this.drawRows();
  }

  // What has the focus has it afterwards, too: a live page draws itself anew every few seconds.
  drawHead(columns) {
    const focused = this.head.contains(document.activeElement) ?
        document.activeElement.parentElement.dataset.key :
        null;
    fill(this.head, columns.map((column) => {
      const sorted = this.sort && this.sort.key === column.key;
      const text = el("span", {}, column.label);
      return el(
          "div", {
            role: "columnheader",
            class: column.align === "right" ? "right" : "",
            "data-key": column.key,
            "aria-sort": !column.value || this.tree ? null :
                sorted ? (this.sort.down ? "descending" : "ascending") :
                         "none",
          },
          column.value && !this.tree ?
              el("button", {type: "button", class: "sort", onclick: () => this.sortBy(column)},
                 text,
                 el("span", {"aria-hidden": "true"},
                    sorted ? (this.sort.down ? " ▾" : " ▴") : "")) :
              text);
    }));
    const button = focused && this.head.querySelector(`[data-key="${focused}"] button`);
    if (button) button.focus();
  }

  drawRows() {
    const height = this.box.clientHeight || this.rowsMax * ROW_PX;
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_PX) - ROWS_BEYOND);
    const last = Math.min(this.rows.length, first + Math.ceil(height / ROW_PX) + 2 * ROWS_BEYOND);
    const rows = [];
    for (let i = first; i < last; ++i) rows.push(this.rowAt(i));
    fill(this.body, rows);
    const isSeen = this.active >= first && this.active < last;
    if (isSeen && this.rows.length) {
      this.box.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
    } else {
      this.box.removeAttribute("aria-activedescendant");
    }
  }

  rowAt(i) {
    const row = this.rows[i];
    const chosen = this.isChosen && this.isChosen(row);
    const tree = this.tree && this.tree(row);
    const element =
        el("div", {
          role: "row",
          id: `${this.id}-${i}`,
          "data-i": i,
          "aria-rowindex": i + 2,
          "aria-selected": this.isChosen ? String(Boolean(chosen)) : null,
          "aria-level": tree && tree.level,
          "aria-expanded": tree && tree.expanded,
          "aria-setsize": tree && tree.setSize,
          "aria-posinset": tree && tree.position,
          class: `row${chosen ? " chosen" : ""}${i === this.active ? " active" : ""}`,
        },
           this.columns.map((column) => {
             const content = column.cell ? column.cell(row) : String(column.value(row));
             return el(
                 "div", {
                   role: column.header ? "rowheader" : "gridcell",
                   class: column.align === "right" ? "right" : "",
                   "data-key": column.key
                 },
                 [content].flat().map(valueOf));
           }));
    element.style.top = `${i * ROW_PX}px`;
    return element;
  }

  onClick(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    this.active = Number(row.dataset.i);
    const isTwisty = Boolean(event.target.closest(".twisty"));
    if (this.onTree && isTwisty) {
      this.onTree(this.rows[this.active], "toggle");
    } else {
      this.choose();
    }
    this.drawRows();
  }

  choose() {
    const row = this.rows[this.active];
    if (row !== undefined && this.onChoose) this.onChoose(row);
  }

  onKey(event) {
    if (event.target !== this.box || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_PX) - 2);
    const moves =
        {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity};
    if (event.key in moves) {
      this.moveTo(this.active + moves[event.key]);
    } else if (event.key === "Enter" || event.key === " ") {
      this.choose();
    } else if (this.onTree && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      const to = this.onTree(this.rows[this.active], event.key === "ArrowRight" ? "open" : "close");
      if (Number.isInteger(to)) this.moveTo(to);
    } else {
      return;
    }
    event.preventDefault();
    this.drawRows();
  }

  moveTo(i) {
    this.active = Math.max(0, Math.min(i, this.rows.length - 1));
    const top = this.active * ROW_PX, seen = this.box.clientHeight - ROW_PX - 8;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + ROW_PX > this.box.scrollTop + seen) this.box.scrollTop = top + ROW_PX - seen;
    this.drawRows();
  }
}
