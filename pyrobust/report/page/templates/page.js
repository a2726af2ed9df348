"use strict";
// The page's own script: reading curves, the table of all examples, one example in a dialog, and the theme. All text
// goes into the page as text, never as markup.
(() => {
  const ROW = 35; // height of a row in pixels, with its border
  const SPARE = 12; // rows drawn beyond each edge
  const PRINTED = 100; // rows of a printed page
  const make = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const read = (element) => JSON.parse(element.textContent);

  // Theme: automatic, light, dark.
  const theme = document.getElementById("theme");
  const themes = ["automatic", "light", "dark"];
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const shown = theme.querySelector("span");
    const next = themes[(themes.indexOf(shown.textContent) + 1) % themes.length];
    shown.textContent = next;
    if (next === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
  });

  // Curves: the range input, and the pointer, choose the position that is read out.
  const percent = (value) => `${value.toFixed(1)} %`;
  for (const plot of document.querySelectorAll(".plot[data-chart]")) {
    const name = plot.dataset.chart;
    const source = document.getElementById(`${name}-data`);
    if (!source) continue;
    const data = read(source);
    const box = document.getElementById(`${name}-readout`);
    const range = box.querySelector("input");
    const output = box.querySelector("output");
    const cursor = plot.querySelector(".cursor");
    const frame = plot.querySelector(".frame");
    const show = (place) => {
      const at = `${(100 * (data.x[place] - data.begin)) / (data.end - data.begin)}%`;
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      cursor.setAttribute("visibility", "visible");
      const parts = [data.texts[place]];
      for (const line of data.lines) {
        if (line.values[place] < 0) continue;
        const band = line.lower.length ? ` (${percent(line.lower[place])} to ${percent(line.upper[place])})` : "";
        parts.push(`${line.name} ${percent(line.values[place])}${band}`);
      }
      output.replaceChildren(...parts.map((part) => make("span", part)));
      range.setAttribute("aria-valuetext", parts.join(", "));
    };
    range.addEventListener("input", () => show(range.valueAsNumber));
    const point = (event) => {
      const area = frame.getBoundingClientRect();
      const x = data.begin + ((event.clientX - area.left) / area.width) * (data.end - data.begin);
      let best = 0;
      data.x.forEach((value, place) => {
        if (Math.abs(value - x) < Math.abs(data.x[best] - x)) best = place;
      });
      range.value = best;
      show(best);
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    box.hidden = false;
    show(range.valueAsNumber);
  }

  // All examples.
  const number = (value) => {
    if (value === Infinity) return "∞";
    if (Number.isInteger(value)) return String(value);
    const size = Math.abs(value);
    return size >= 1e-4 && size < 1e6 ? value.toPrecision(4) : value.toExponential(2);
  };
  const text = (column, row) => {
    const value = column.values[row];
    if (column.kind === "text") return column.texts[value];
    return value === null ? "–" : number(value);
  };
  const OPERATORS = {
    "=": (a, b) => a === b,
    "<": (a, b) => a < b,
    ">": (a, b) => a > b,
    "<=": (a, b) => a <= b,
    ">=": (a, b) => a >= b,
  };
  const tables = new Map();

  class Examples {
    constructor(section) {
      this.columns = read(section.querySelector(".rows-data"));
      for (const column of this.columns) {
        column.values = column.values.map((value) => (value === "inf" ? Infinity : value));
        if (column.hidden) column.texts = column.texts.map((lines) => lines.join("\n"));
      }
      this.noun = section.dataset.noun || "examples";
      this.shown = this.columns.filter((column) => !column.hidden);
      this.count = this.columns[0].values.length;
      this.order = Array.from({ length: this.count }, (_, row) => row);
      this.sorted = { column: this.columns[0], down: false };
      this.form = section.querySelector("form");
      this.status = section.querySelector(".count");
      this.box = section.querySelector(".rows");
      this.table = section.querySelector("table");
      this.body = this.table.tBodies[0];
      this.all = false;
      this.numbers = null;
      for (const part of [this.form, section.querySelector(".help"), this.box]) part.hidden = false;
      this.#head();
      this.#choices();
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", () => this.filter());
      // Of the menus only: leaving the search by a click on a row would draw the rows anew before the click ends.
      this.form.addEventListener("change", (event) => event.target.matches("select") && this.filter());
      this.form.addEventListener("reset", () => setTimeout(() => this.filter()));
      this.box.addEventListener("scroll", () => this.draw(), { passive: true });
      new ResizeObserver(() => this.draw()).observe(this.box);
      this.body.addEventListener("click", (event) => {
        const row = event.target.closest("tr[data-row]");
        if (row) open(this, Number(row.dataset.row), row.querySelector("button"));
      });
      this.body.addEventListener("keydown", (event) => this.#keys(event));
      this.filter();
    }

    #head() {
      const row = make("tr");
      for (const column of this.shown) {
        const cell = make("th", undefined, column.kind === "text" || !row.children.length ? "left" : "right");
        cell.scope = "col";
        const button = make("button", column.name);
        button.type = "button";
        button.title = column.about;
        button.addEventListener("click", () => {
          const down = this.sorted.column === column ? !this.sorted.down : false;
          this.sorted = { column, down };
          this.filter();
        });
        cell.append(button);
        column.head = cell;
        row.append(cell);
      }
      this.table.tHead.append(row);
    }

    #choices() {
      for (const select of this.form.querySelectorAll("select")) {
        const column = this.columns.find((each) => each.name === select.dataset.column);
        const values = new Map();
        column.values.forEach((value, row) => values.set(text(column, row), value));
        const names = [...values.keys()].sort((a, b) => (column.kind === "text" ? a.localeCompare(b) : a - b));
        for (const name of names.slice(0, 2000)) {
          const option = make("option", name);
          option.value = name;
          select.append(option);
        }
      }
    }

    // Rows that match the form, in the chosen order.
    filter() {
      const tests = [];
      for (const select of this.form.querySelectorAll("select")) {
        if (!select.value) continue;
        const column = this.columns.find((each) => each.name === select.dataset.column);
        tests.push((row) => text(column, row) === select.value);
      }
      const query = this.form.querySelector("input").value.trim().toLowerCase();
      for (const term of query.split(/\s+/).filter(Boolean)) tests.push(this.#test(term));
      const { column, down } = this.sorted;
      const sign = down ? -1 : 1;
      const key = column.kind === "text" ? column.values.map((value) => column.texts[value]) : column.values;
      const compare = (a, b) => {
        const x = key[a];
        const y = key[b];
        if (x === y) return a - b;
        if (x === null || y === null) return x === null ? 1 : -1; // nothing last, in both directions
        return x < y ? -sign : sign;
      };
      this.order = [];
      for (let row = 0; row < this.count; row++) if (tests.every((test) => test(row))) this.order.push(row);
      this.order.sort(compare);
      for (const each of this.shown) {
        each.head.setAttribute("aria-sort", each === column ? (down ? "descending" : "ascending") : "none");
      }
      this.status.textContent = `${this.order.length.toLocaleString("en")} of ${this.count.toLocaleString("en")} ${this.noun}`;
      this.table.setAttribute("aria-rowcount", this.order.length + 1);
      this.box.scrollTop = 0;
      this.draw(true);
    }

    #test(term) {
      const [, name, operator, value] = term.match(/^([^<>=]+)(<=|>=|<|>|=)(.+)$/) || [];
      const columns = name ? this.columns.filter((each) => each.name.replace(/\s/g, "").toLowerCase().includes(name)) : [];
      const column = columns.find((each) => each.name.toLowerCase() === name) || columns[0];
      if (column && column.kind !== "text" && value !== "" && !Number.isNaN(Number(value))) {
        return (row) => column.values[row] !== null && OPERATORS[operator](column.values[row], Number(value));
      }
      if (column && operator === "=") return (row) => text(column, row).toLowerCase().replace(/\s/g, "") === value;
      // Each distinct text is looked through once.
      const worded = this.columns.filter((each) => each.kind === "text");
      const hits = worded.map((each) => {
        each.lower ??= each.texts.map((one) => one.toLowerCase());
        return each.lower.map((one) => one.includes(term));
      });
      const counted = this.columns.filter((each) => each.kind !== "text");
      this.numbers ??= Array.from({ length: this.count }, (_, row) => counted.map((each) => text(each, row)).join("\n"));
      return (row) => worded.some((each, i) => hits[i][each.values[row]]) || this.numbers[row].toLowerCase().includes(term);
    }

    // Only the rows in view are in the document.
    draw(force = false) {
      const height = this.box.clientHeight || 600;
      const first = this.all ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
      const last = Math.min(this.order.length, this.all ? PRINTED : first + Math.ceil(height / ROW) + 2 * SPARE);
      if (!force && this.first === first && this.last === last) return;
      const active = this.body.contains(document.activeElement)
        ? document.activeElement.closest("tr").dataset.row
        : undefined;
      [this.first, this.last] = [first, last];
      const rows = [this.#gap(first * ROW)];
      for (let place = first; place < last; place++) rows.push(this.#row(place));
      rows.push(this.#gap(this.all ? 0 : (this.order.length - last) * ROW));
      this.body.replaceChildren(...rows);
      if (active !== undefined) this.body.querySelector(`tr[data-row="${active}"] button`)?.focus({ preventScroll: true });
    }

    #gap(height) {
      const row = make("tr", undefined, "gap");
      const cell = make("td");
      cell.colSpan = this.shown.length;
      cell.style.height = `${height}px`;
      row.setAttribute("aria-hidden", "true");
      row.append(cell);
      return row;
    }

    #row(place) {
      const index = this.order[place];
      const row = make("tr");
      row.dataset.row = index;
      row.setAttribute("aria-rowindex", place + 2);
      this.shown.forEach((column, i) => {
        const cell = make(i ? "td" : "th", undefined, column.kind === "text" || !i ? "left" : "right");
        const shown = text(column, index);
        if (i === 0) {
          const button = make("button", shown);
          button.type = "button";
          button.setAttribute("aria-label", `Open ${this.noun.slice(0, -1)} ${shown}`);
          cell.scope = "row";
          cell.append(button);
        } else {
          if (column.name === "outcome") cell.append(make("span", undefined, `mark ${shown.replace(" ", "-")}`));
          cell.append(shown);
        }
        row.append(cell);
      });
      return row;
    }

    #keys(event) {
      const row = event.target.closest("tr[data-row]");
      const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
      if (!row || !(event.key in moves)) return;
      event.preventDefault();
      const place = this.order.indexOf(Number(row.dataset.row)) + moves[event.key];
      this.show(Math.min(this.order.length - 1, Math.max(0, place)));
    }

    // Bring a row into view and give it the focus.
    show(place) {
      const top = place * ROW;
      const head = this.table.tHead.offsetHeight;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (top + ROW + head > this.box.scrollTop + this.box.clientHeight) {
        this.box.scrollTop = top + ROW + head - this.box.clientHeight;
      }
      this.draw();
      this.body.querySelector(`tr[data-row="${this.order[place]}"] button`)?.focus({ preventScroll: true });
    }
  }

  // One example.
  const dialog = document.getElementById("example");
  let current = null;
  const open = (table, row, from) => {
    current = { table, row, from: from || (current && current.from) };
    const [index, label, prediction] = table.columns.map((column) => text(column, row));
    const noun = table.noun[0].toUpperCase() + table.noun.slice(1, -1);
    document.getElementById("example-title").textContent = `${noun} ${index}`;
    const pictures = [];
    const card = document.querySelector(`[data-subject="${table.name}"] [data-row="${row}"]`);
    const captions = [`the example, class ${label}, predicted ${prediction}`, "its nearest adversarial example", ""];
    for (const [place, image] of [...(card ? card.querySelectorAll("img") : [])].entries()) {
      const figure = make("figure");
      const copy = make("img");
      const scale = image.dataset.scale;
      const caption = scale
        ? `their difference, times ${scale}; the largest change is ${image.dataset.largest}`
        : captions[place];
      copy.src = image.src;
      copy.alt = caption;
      figure.append(copy, make("figcaption", caption));
      pictures.push(figure);
    }
    document.getElementById("example-pictures").replaceChildren(...pictures);
    const numbers = table.columns.flatMap((column) => {
      const term = make("dt", column.name);
      term.title = column.about;
      const value = text(column, row) || "–";
      const cell = make("dd", column.hidden ? undefined : value);
      if (column.hidden) {
        const box = make("details");
        const words = make("pre", value);
        words.dir = "auto";
        box.append(make("summary", `Show the text, ${value.length.toLocaleString("en")} characters`), words);
        cell.append(box);
      }
      return [term, cell];
    });
    document.getElementById("example-numbers").replaceChildren(...numbers);
    const place = table.order.indexOf(row);
    document.getElementById("example-previous").disabled = place <= 0;
    document.getElementById("example-next").disabled = place < 0 || place === table.order.length - 1;
    if (!dialog.open) dialog.showModal();
  };
  const step = (by) => {
    const place = current.table.order.indexOf(current.row) + by;
    if (place >= 0 && place < current.table.order.length) open(current.table, current.table.order[place]);
  };
  document.getElementById("example-close").addEventListener("click", () => dialog.close());
  document.getElementById("example-previous").addEventListener("click", () => step(-1));
  document.getElementById("example-next").addEventListener("click", () => step(1));
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    const { table, row, from } = current;
    if (from && from.isConnected && from.classList.contains("card")) return from.focus();
    const place = table.order.indexOf(row);
    if (place >= 0) table.show(place);
  });

  for (const section of document.querySelectorAll(".examples")) {
    const name = section.closest(".subject").id;
    const table = new Examples(section);
    table.name = name;
    tables.set(name, table);
  }
  for (const gallery of document.querySelectorAll(".gallery")) {
    gallery.addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card) open(tables.get(gallery.dataset.subject), Number(card.dataset.row), card);
    });
  }

  // Print: everything open, and the first rows of each table.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
    for (const table of tables.values()) {
      table.all = true;
      table.draw(true);
      if (table.order.length > PRINTED) table.status.textContent += `; the first ${PRINTED} are printed`;
    }
  });
  addEventListener("afterprint", () => {
    for (const each of closed) each.open = false;
    for (const table of tables.values()) {
      table.all = false;
      table.filter();
    }
  });

  // A run in progress: reload, except while an example is open, a filter is in use, or the reader has paused it.
  const live = document.getElementById("live");
  if (live && live.dataset.seconds) {
    const pause = document.getElementById("live-pause");
    let paused = false;
    pause.hidden = false;
    pause.setAttribute("aria-pressed", "false");
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
    });
    const used = () =>
      document.querySelector("dialog[open]") ||
      [...document.querySelectorAll(".examples input")].some((input) => input.type === "search" && input.value);
    setInterval(() => {
      if (!paused && !used()) location.reload();
    }, 1000 * Number(live.dataset.seconds));
  }
})();
