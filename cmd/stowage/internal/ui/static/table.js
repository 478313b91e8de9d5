// Tables that change only what is different, a page at a time: a table can have many thousands of rows.

import { el, fill, plain, say } from "./dom.js";

const pageSize = 100;

// Table is a table. Each column has a title, and cell, which returns for an item the text of a cell, an
// element, or a list of both; key returns what identifies an item. The caption names the table.
//
// On a narrow screen each row is a block. Styles that do that make some browsers forget that it is a table,
// so everything has its role.
export class Table {
  constructor({ columns, key }) {
    Object.assign(this, { columns, key });
    this.rows = new Map(); // by key: the element, and the text that it was made of
    this.first = 0;
    this.caption = el("caption");
    this.body = el("tbody", { role: "rowgroup" });
    const titles = columns.map((c) => el("th", { scope: "col", role: "columnheader", class: c.class }, c.title));
    this.table = el("table", { role: "table" },
      this.caption,
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...titles)),
      this.body);
    this.previous = this.turn("Previous", -pageSize);
    this.next = this.turn("Next", pageSize);
    this.where = el("span", { role: "status" });
    this.pages = el("div", { class: "pages" }, this.previous, this.where, this.next);
    this.element = el("div", { class: "table" }, this.table, this.pages);
  }

  // turn returns the button that turns the page.
  turn(text, by) {
    const button = el("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      this.first += by;
      this.show(this.items, this.caption.textContent);
      this.table.scrollIntoView({ block: "start" });
      if (button.disabled) {
        (by > 0 ? this.previous : this.next).focus();
      }
    });
    return button;
  }

  // toStart shows the first page.
  toStart() {
    this.first = 0;
  }

  // show shows the items.
  show(items, caption) {
    this.items = items;
    this.first = Math.max(0, Math.min(this.first, Math.floor((items.length - 1) / pageSize) * pageSize));
    const shown = items.slice(this.first, this.first + pageSize);
    say(this.caption, caption);
    this.table.hidden = items.length === 0;
    this.pages.hidden = items.length <= pageSize;
    this.previous.disabled = this.first === 0;
    this.next.disabled = this.first + pageSize >= items.length;
    say(this.where, `${(this.first + 1).toLocaleString("en")} to ${(this.first + shown.length).toLocaleString("en")} ` +
      `of ${items.length.toLocaleString("en")}`);

    const focused = this.body.contains(document.activeElement) ? document.activeElement : undefined;
    const rows = new Map(shown.map((item) => [this.key(item), this.row(item)]));
    for (const [key, row] of this.rows) {
      if (!rows.has(key)) {
        row.element.remove();
      }
    }
    let at = this.body.firstChild;
    for (const { element } of rows.values()) {
      if (element === at) {
        at = at.nextSibling;
      } else {
        this.body.insertBefore(element, at);
      }
    }
    this.rows = rows;
    if (focused?.isConnected && document.activeElement !== focused) {
      focused.focus({ preventScroll: true }); // moving an element takes the focus from it
    }
  }

  // row returns the row of an item, with only the cells replaced that are different.
  row(item) {
    const key = this.key(item);
    const row = this.rows.get(key) ?? { element: el("tr", { role: "row" }), cells: [] };
    this.columns.forEach((column, i) => {
      const content = [column.cell(item)].flat();
      const made = content.map((c) => c instanceof Node ? c.outerHTML ?? c.textContent : plain(c ?? "")).join("\n");
      if (row.cells[i] === made) {
        return;
      }
      row.cells[i] = made;
      const cell = row.element.children[i] ?? row.element.appendChild(i === 0
        ? el("th", { scope: "row", role: "rowheader", class: column.class, "data-title": column.title })
        : el("td", { role: "cell", class: column.class, "data-title": column.title }));
      fill(cell, el("div", {}, ...content)); // one part beside the title, on a narrow screen
      cell.classList.toggle("empty", made === "");
    });
    return row;
  }
}
