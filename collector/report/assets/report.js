// Shared by all pages: elements, formats, tables and charts. Data only ever become text.
"use strict";

const opmeter = (() => {
  const html = document.documentElement;
  const root = html.dataset.root;
  const isChinese = html.lang === "zh";
  const t = (text) => (isChinese && Object.hasOwn(chinese, text) ? chinese[text] : text);

  // Return an element. Children that are no elements become text; null is left out.
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(made.style, value);
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) made.append(child);
    }
    return made;
  }

  // Formats.

  const plainNumber = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
  const wholeNumber = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const NONE = "–";
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const count = (value) => (isNumber(value) ? wholeNumber.format(value) : NONE);
  const number = (value) => {
    if (!isNumber(value)) return NONE;
    return Math.abs(value) >= 1e4 ? wholeNumber.format(value) : plainNumber.format(value);
  };
  const percent = (value) => {
    if (!isNumber(value)) return NONE;
    const share = 100 * value;
    const digits = share !== 0 && Math.abs(share) < 1 ? 2 : Math.abs(share) < 10 ? 1 : 0;
    return `${share >= 1e4 ? wholeNumber.format(share) : share.toFixed(digits)} %`;
  };
  // The half-width of an interval, as a share of the mean; above 100 % as a factor both ways.
  const reach = (share) => {
    if (!isNumber(share)) return NONE;
    return share <= 1 ? `± ${percent(share)}` : `×/÷ ${number(1 + share)}`;
  };
  const scaled = (value, units, base) => {
    if (!isNumber(value)) return NONE;
    let at = 0;
    let left = value;
    while (Math.abs(left) >= base && at < units.length - 1) {
      left /= base;
      at += 1;
    }
    return `${Number(left.toPrecision(4))} ${units[at]}`;
  };
  // Sizes on an axis: 4,096 rather than 4.096k.
  const size = (value) => (Math.abs(value) < 1e6 ? count(value) : d3.format(".3~s")(value));
  const us = (value) => scaled(value, ["µs", "ms", "s"], 1000);
  const rate = (value) =>
    scaled(value, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"], 1000);
  const bytesRate = (value) => scaled(value, ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"], 1024);
  const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);

  // Parts of a page.

  function head(parent, { title, sub, facts }) {
    const up = html.dataset.up;
    const trail = up ? el("a", { href: up }, `← ${t("overview")}`) : el("span", {}, t("opmeter report"));
    parent.append(
      el("div", { class: "crumbs" }, trail, el("span", {}, facts || "")),
      el("div", { class: "head" }, el("h1", {}, breakable(title)), el("p", { class: "sub" }, sub || "")),
    );
  }

  // A long name, which may continue on the next line after a separator.
  function breakable(text) {
    return String(text).split(/(?<=[/_])/).map((part) => [part, el("wbr")]);
  }

  // Tiles with one number each: [label, value, note].
  function facts(parent, rows) {
    const tiles = rows.map(([label, value, note]) =>
      el("div", { class: "fact" },
        el("dt", {}, label),
        el("dd", {}, value, note ? el("div", { class: "note" }, note) : null)),
    );
    parent.append(el("dl", { class: "facts" }, tiles));
  }

  function section(parent, title, note, id) {
    const made = el("section", { class: "section", id: id || null, "aria-label": title },
      el("header", {}, el("h2", {}, title), note ? el("p", { class: "muted" }, note) : null));
    parent.append(made);
    return made;
  }

  function pairs(rows) {
    return el("dl", { class: "pairs" }, rows
      .filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  // A bar of shares: [[share, colour, label], ...].
  function bar(parts) {
    const text = parts.map(([share, , label]) => `${label} ${percent(share)}`).join(", ");
    return el("div", { class: "bar", role: "img", "aria-label": text, title: text },
      parts.filter(([share]) => share > 0).map(([share, colour]) =>
        el("span", { style: { width: `${100 * share}%`, background: colour } })));
  }

  function legend(items) {
    return el("ul", { class: "legend" }, items.map(([label, colour, shape]) => {
      const mark = svg("svg", { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
      if (shape === "line") mark.append(svg("path", { d: "M-6,0H6", stroke: colour, "stroke-width": 2 }));
      else if (shape === "dash") {
        mark.append(svg("path", { d: "M-6,0H6", stroke: colour, "stroke-width": 2, "stroke-dasharray": "3,2" }));
      } else if (shape) {
        mark.append(svg("path", { d: d3.symbol(shape, 44)(), fill: "none", stroke: colour, "stroke-width": 1.6 }));
      } else mark.append(svg("circle", { r: 4, fill: colour }));
      return el("li", {}, mark, label);
    }));
  }

  function svg(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "stroke" || name === "fill") made.style[name] = value;
      else made.setAttribute(name, value);
    }
    return made;
  }

  // A chart that is drawn again when its width changes. `draw(width)` returns options of Plot.
  // `open(datum)` is called for the mark under the pointer when a user clicks.
  function chart(parent, { title, note, label, draw, keys, open }) {
    const place = el("div", { class: open ? "can-open" : null });
    const made = el("figure", {},
      title || note ? el("figcaption", {}, el("span", { class: "title" }, title || ""), el("span", { class: "note" }, note || "")) : null,
      place, keys ? legend(keys) : null);
    parent.append(made);
    let last = 0;
    const render = () => {
      const width = Math.floor(place.clientWidth);
      if (!width || width === last) return;
      last = width;
      const { style, ...options } = draw(width);
      const plotted = Plot.plot({
        width,
        ...options,
        className: "plot",
        style: { background: "transparent", fontFamily: "inherit", fontSize: "12px", overflow: "visible", ...style },
      });
      plotted.setAttribute("role", "img");
      plotted.setAttribute("aria-label", label || title || "");
      if (open) {
        plotted.addEventListener("click", () => plotted.value && open(plotted.value));
      }
      place.replaceChildren(plotted);
    };
    new ResizeObserver(render).observe(place);
    return { redraw: () => { last = 0; render(); }, figure: made };
  }

  // A table that is searched, sorted and shown a page at a time.
  // columns: {label, unit, value(row), text(row)?, node(row)?, kind: "number" | "word", wide}
  // What to do next, and its command.
  function next(parent, what, command) {
    parent.append(el("p", { class: "small muted next" }, what, el("br"), el("code", {}, command)));
  }

  function table(parent, { columns, rows, search, searched, sort, size = 50, name, empty }) {
    if (!rows.length) {
      parent.append(el("p", { class: "muted" }, empty || t("none")));
      return;
    }
    let shown = rows;
    let page = 0;
    let [by, isDown] = sort || [null, false];
    const words = searched || ((row) => columns.map((one) => one.value(row)).join(" "));
    const texts = search ? rows.map((row) => String(words(row)).replaceAll("\u00a0", " ").toLowerCase()) : [];
    const heads = columns.map((column, at) => {
      const label = [column.label, column.unit ? el("span", { class: "unit" }, ` (${column.unit})`) : null];
      const press = () => {
        isDown = by === at ? !isDown : column.kind === "number";
        by = at;
        page = 0;
        update();
      };
      return el("th", { class: classes(column), scope: "col" }, el("button", { type: "button", onclick: press }, label));
    });
    const body = el("tbody");
    const found = el("span", { class: "muted", role: "status" });
    const input = search
      ? el("input", { type: "search", placeholder: search, "aria-label": search, oninput: () => { page = 0; update(); } })
      : null;
    const before = el("button", { type: "button", onclick: () => { page -= 1; fill(); } }, t("previous"));
    const after = el("button", { type: "button", onclick: () => { page += 1; fill(); } }, t("next"));
    const where = el("span", { class: "muted" });
    const pages = el("div", { class: "pages" }, where, before, after);
    if (input) parent.append(el("div", { class: "tools" }, input, found));
    parent.append(
      el("div", { class: "scroll" },
        el("table", { "aria-label": name || search || "" }, el("thead", {}, el("tr", {}, heads)), body)),
      pages);

    function update() {
      const terms = input ? input.value.trim().toLowerCase().split(/\s+/).filter(Boolean) : [];
      shown = terms.length ? rows.filter((_, at) => terms.every((word) => texts[at].includes(word))) : rows.slice();
      if (by !== null) {
        const value = columns[by].value;
        shown.sort((a, b) => compare(value(a), value(b), isDown));
      }
      heads.forEach((one, at) => {
        if (at === by) one.setAttribute("aria-sort", isDown ? "descending" : "ascending");
        else one.removeAttribute("aria-sort");
        one.firstChild.dataset.sorted = at === by ? (isDown ? "↓" : "↑") : "";
      });
      if (input) found.textContent = terms.length ? `${count(shown.length)} ${t("of")} ${count(rows.length)}` : count(rows.length);
      fill();
    }
    function fill() {
      const first = page * size;
      const rowsHere = shown.slice(first, first + size);
      body.replaceChildren(...rowsHere.map((row) =>
        el("tr", {}, columns.map((column) =>
          el("td", { class: classes(column) }, column.node ? column.node(row) : column.text ? column.text(row) : column.value(row) ?? NONE)))));
      pages.hidden = shown.length <= size;
      before.disabled = page === 0;
      after.disabled = first + size >= shown.length;
      where.textContent = `${count(Math.min(first + 1, shown.length))}–${count(Math.min(first + size, shown.length))} ${t("of")} ${count(shown.length)}`;
    }
    update();
  }

  const classes = (column) => [column.kind, column.wide ? "wide" : null].filter(Boolean).join(" ") || null;
  function compare(a, b, isDown) {
    const isLess = [a, b].map((one) => one === null || one === undefined || Number.isNaN(one));
    if (isLess[0] || isLess[1]) return isLess[0] - isLess[1]; // what is missing comes last
    const order = a < b ? -1 : a > b ? 1 : 0;
    return isDown ? -order : order;
  }

  // Data: that of the page, and files that are loaded on demand.

  let draw = null;
  let isDrawn = false;
  const waiting = new Map();
  const loaded = new Map();

  function receive(data) {
    const pending = waiting.get(document.currentScript);
    if (pending) {
      waiting.delete(document.currentScript);
      pending(data);
      return;
    }
    if (isDrawn) return;
    isDrawn = true;
    const main = el("main", {});
    document.getElementById("page").replaceChildren(main);
    try {
      draw(data, main);
    } catch (error) {
      main.append(el("p", {}, t("This page could not be drawn. The same data are in the files named below.")));
      throw error;
    } finally {
      main.append(foot());
    }
    html.dataset.ready = "1";
  }

  // Return a promise of the value of a data file next to the page.
  function load(path) {
    if (!loaded.has(path)) {
      loaded.set(path, new Promise((resolve, reject) => {
        const script = el("script", { src: `${path}.data.js` });
        waiting.set(script, resolve);
        script.addEventListener("error", () => reject(new Error(path)));
        document.head.append(script);
      }));
    }
    return loaded.get(path);
  }

  function foot() {
    const files = [`${html.dataset.stem}.json`, ...html.dataset.tables.split(" ").filter(Boolean)];
    const generator = document.querySelector('meta[name="generator"]').content;
    return el("footer", {},
      el("span", {}, `${t("The same data")}: `, files.map((file, at) => [at ? ", " : "", el("a", { href: file }, file.split("/").pop())])),
      el("span", {}, generator));
  }

  // A page of something that changes loads itself again, but not under an open dialog.
  function reload() {
    if (document.querySelector("dialog[open]")) setTimeout(reload, 2000);
    else location.reload();
  }
  if (html.dataset.reload) setTimeout(reload, 1000 * Number(html.dataset.reload));
  document.addEventListener("keydown", (event) => {
    const search = document.querySelector('input[type="search"]');
    if (event.key === "/" && search && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      search.focus();
    }
  });

  const series = [1, 2, 3, 4, 5, 6, 7].map((at) => `var(--series-${at})`);
  return {
    t, el, svg, root, series, NONE, count, size, number, percent, reach, us, rate, bytes, bytesRate, isNumber,
    head, facts, section, next, pairs, bar, legend, chart, table, receive, load,
    view: (drawn) => { draw = drawn; },
  };
})();
