// One kernel type: durations by size, work against the roofline, heat maps, and certificates.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, size, number, percent, reach, us, rate, bytes, bytesRate, isNumber, NONE, series } = opmeter;
  const MOST_POINTS = 3000;
  const c = data.columns;
  const rowCount = c.case.length;
  const all = Array.from({ length: rowCount }, (_, at) => at);
  const point = (at) => ({
    at, mean: c.mean_us[at], low: c.low_us[at], high: c.high_us[at], isWarned: c.warnings[at] !== "", isOutlier: c.outlier[at],
    flops: c.flop_per_s[at], bytes: c.bytes_per_s[at], traffic: c.traffic_bytes[at], work: c.operations[at],
  });

  opmeter.head(main, {
    title: data.kernel,
    sub: [data.version, data.family ? `${t("family")} ${data.family}` : ""].filter(Boolean).join(" · "),
    facts: `${t("database version")} ${data.database}`,
  });
  const shares = c.roofline_share.filter(isNumber);
  const halves = all.map((at) => c.high_us[at] / c.mean_us[at] - 1).filter(isNumber);
  opmeter.facts(main, [
    [t("durations"), count(rowCount), `${t("of")} ${count(data.cases)} ${t("cases")}`],
    [t("median duration"), us(d3.median(c.mean_us)), rowCount ? `${us(d3.min(c.mean_us))} – ${us(d3.max(c.mean_us))}` : ""],
    [t("median half-width"), reach(d3.median(halves)), t("of the 95 % interval")],
    [t("with a warning"), count(c.warnings.filter(Boolean).length), `${count(c.outlier.filter(Boolean).length)} ${t("off the curve of their neighbours")}`],
    ...(shares.length ? [[t("of the roofline"), percent(d3.median(shares)), t("median over the cases")]] : []),
  ]);

  function openNamed() {
    let name = "";
    try {
      name = decodeURIComponent(location.hash.slice(1));
    } catch { /* an address that a user changed names no case */ }
    const at = c.case.indexOf(name);
    if (at >= 0) certificate(at);
  }

  // The shapes of a case, without those of absent inputs.
  function shapes(at) {
    return c.shapes[at].split(";").filter(Boolean).join("; ") || c.case[at];
  }

  // The sizes of a case that have a name, such as M, N and K, or lengths.
  function sizes(at) {
    const group = groupOf(at);
    return group.axes.filter((axis) => !/^(in|out)put /.test(axis.name))
      .map((axis) => `${t(axis.name)}\u00a0${count(axis.values[at - group.begin])}`).join(" · ");
  }

  function groupOf(at) {
    return data.groups.find((group) => at < group.end);
  }

  function label(group) {
    return [group.inputs || t("unknown inputs"), group.state, group.settings].filter(Boolean).join(" · ");
  }

  function charts() {
    const place = el("div", {});
    const select = el("select", { "aria-label": t("group of cases"), onchange: () => show(Number(select.value)) },
      data.groups.map((group, at) => el("option", { value: at }, `${label(group)} – ${count(group.end - group.begin)}`)));
    const tools = el("div", { class: "tools" }, el("label", { class: "muted" }, `${t("dtype[rank] of each input")}: `, select),
      el("span", { class: "muted" }, `${count(data.groups.length)} ${t(data.groups.length === 1 ? "group" : "groups")}`));
    main.append(tools, place);
    const show = (at) => {
      place.replaceChildren();
      const group = data.groups[at];
      const rows = d3.range(group.begin, group.end).map((row) => {
        const one = point(row);
        for (const axis of group.axes) one[axis.name] = axis.values[row - group.begin];
        return one;
      });
      bySize(place, group, rows);
      heatMap(place, group, rows);
      work(place, group, rows);
    };
    show(0);
  }

  // Of many points, those that are marked and some of the others are drawn.
  function drawn(rows) {
    if (rows.length <= MOST_POINTS) return rows;
    const step = Math.ceil(rows.length / MOST_POINTS);
    return rows.filter((one, at) => one.isOutlier || at % step === 0);
  }

  const marks = [
    [t("duration with its 95 % interval"), series[0]],
    [t("with a warning"), "var(--warn)", d3.symbolCircle],
    [t("off the curve of its neighbours"), "var(--warn)", d3.symbolDiamond],
  ];
  const tip = (d) => [shapes(d.at), `${us(d.mean)}  (${us(d.low)} – ${us(d.high)})`, isNumber(d.flops) ? rate(d.flops) : "", c.warnings[d.at]].filter(Boolean).join("\n");
  const dots = (rows, x, y) => [
    Plot.dot(rows.filter((d) => !d.isWarned), { x, y, r: rows.length > 500 ? 2.4 : 3, fill: series[0] }),
    Plot.dot(rows.filter((d) => d.isWarned), { x, y, r: 3.4, fill: "var(--surface)", stroke: "var(--warn)", strokeWidth: 1.6 }),
    Plot.dot(rows.filter((d) => d.isOutlier), { x, y, r: 5.5, symbol: "diamond", stroke: "var(--warn)", strokeWidth: 1.6 }),
    Plot.tip(rows, Plot.pointer({ x, y, title: tip, maxRadius: 30 })),
  ];
  // The powers of two, or of a higher power of two, among sizes: at most so many.
  const powers = (values, most) => {
    const [first, last] = d3.extent(values).map(Math.log2);
    const step = Math.max(1, Math.ceil((last - first) / Math.max(2, most)));
    return d3.range(Math.ceil(first), last + 1e-9, step).map((power) => 2 ** power);
  };
  const logTicks = (values) => {
    const [least, most] = d3.extent(values.filter((v) => v > 0));
    return most / least > 16;
  };

  function bySize(place, group, rows) {
    const made = opmeter.section(place, t("Duration by size"), rows.length > MOST_POINTS ? `${count(drawn(rows).length)} ${t("of")} ${count(rows.length)} ${t("points are drawn")}` : t("select a point for its certificate"));
    if (!group.axes.length) {
      made.append(el("p", { class: "muted" }, group.inputs ? t("All cases of this group have the same sizes.") : t("The sizes of these cases are not known.")));
      return;
    }
    const grid = el("div", { class: "grid" });
    made.append(grid);
    const isLogY = logTicks(rows.map((one) => one.mean));
    const shown = drawn(rows);
    const limits = [d3.min(rows, (d) => d.mean) / 3, d3.max(rows, (d) => d.mean) * 3];
    for (const axis of group.axes) {
      const isLog = logTicks(axis.values) && axis.values.every((v) => v > 0);
      const others = group.axes.filter((one) => one !== axis);
      const key = (d) => others.map((one) => d[one.name]).join(",");
      const lines = d3.groups(rows, key).map(([, of]) => d3.sort(of, (d) => d[axis.name]))
        .filter((of) => of.length > 2 && of[0][axis.name] !== of.at(-1)[axis.name]);
      const some = Math.ceil(lines.length / 40);
      opmeter.chart(grid, {
        title: `${t("duration")} – ${t(axis.name)}`,
        note: `${count(new Set(axis.values).size)} ${t("values")}`,
        open: (d) => certificate(d.at),
        draw: (width) => ({
          width, height: 290, marginLeft: 54, marginBottom: 38,
          x: { type: isLog ? "log" : "linear", base: 2, label: axis.unit ? `${t(axis.name)} (${t(axis.unit)})` : t(axis.name), nice: !isLog, ticks: isLog ? powers(axis.values, width / 62) : Math.max(3, Math.floor(width / 80)), tickFormat: size, labelAnchor: "center", labelArrow: "none" },
          y: { type: isLogY ? "log" : "linear", domain: isLogY ? undefined : [0, d3.max(rows, (d) => Math.min(d.high ?? d.mean, limits[1]))], label: `${t("duration")} (µs)`, grid: true, ticks: 5, tickFormat: isLogY ? "~s" : undefined, labelArrow: "none" },
          marks: [
            lines.filter((_, at) => at % some === 0).map((of) => Plot.line(of, { x: axis.name, y: "mean", stroke: series[0], strokeOpacity: 0.25 })),
            Plot.ruleX(shown.filter((d) => isNumber(d.low) && isNumber(d.high)), { x: axis.name, y1: (d) => Math.max(d.low, limits[0]), y2: (d) => Math.min(d.high, limits[1]), stroke: (d) => (d.isWarned ? "var(--warn)" : series[0]), strokeOpacity: 0.45 }),
            ...dots(shown, axis.name, "mean"),
          ],
        }),
      });
    }
    made.append(opmeter.legend(marks));
  }

  // Colours: one hue, from light to dark.
  const scheme = "YlGnBu";

  function heatMap(place, group, rows) {
    const distinct = (axis) => d3.sort(new Set(axis.values));
    const many = group.axes.filter((axis) => new Set(axis.values).size > 2);
    if (many.length < 2 || rows.length < 9) return;
    const find = (pattern) => many.find((axis) => pattern.test(axis.name));
    const x = find(/^M$/) || find(/^requests$/) || many[0];
    const y = find(/^N$/) || find(/longest$/) || many.find((axis) => axis !== x);
    if (!y || x === y) return;
    // A third size selects the map, unless these two decide it.
    const cell = (d) => `${d[x.name]},${d[y.name]}`;
    const isFree = (axis) => d3.rollups(rows, (of) => new Set(of.map((d) => d[axis.name])).size, cell).some(([, n]) => n > 1);
    const rest = group.axes.filter((axis) => axis !== x && axis !== y && isFree(axis));
    const by = rest.find((axis) => axis.name === "K") || rest[0];
    const hasRate = rows.some((d) => isNumber(d.flops));
    const made = opmeter.section(place, t("Heat map"), `${t(x.name)} × ${t(y.name)}${by ? ` ${t("by")} ${t(by.name)}` : ""}`);
    const values = by ? distinct(by) : [null];
    const counts = by ? d3.rollup(rows, (of) => of.length, (d) => d[by.name]) : null;
    let chosen = by ? d3.greatest(values, (value) => counts.get(value)) : null;
    let isRate = hasRate;
    const tools = el("div", { class: "tools" },
      by ? el("label", { class: "muted" }, `${t(by.name)} `, el("select", { onchange: (event) => { chosen = Number(event.target.value); drawnChart.redraw(); } },
        values.map((value) => el("option", { value, selected: value === chosen }, `${count(value)} – ${count(counts.get(value))} ${t("cases")}`)))) : null,
      hasRate ? el("label", { class: "muted" }, `${t("colour")} `, el("select", { onchange: (event) => { isRate = event.target.value === "rate"; drawnChart.redraw(); } },
        el("option", { value: "rate" }, t("achieved TFLOP/s")), el("option", { value: "duration" }, t("duration (µs)")))) : null);
    made.append(tools);
    const drawnChart = opmeter.chart(made, {
      label: t("Heat map"),
      open: (d) => d.at !== undefined && certificate(d.at),
      draw: (width) => {
        const own = by ? rows.filter((d) => d[by.name] === chosen) : rows;
        // Of many sizes, neighbours share a cell, which is then large enough to be seen.
        const shared = (axis, most) => {
          const known = d3.sort(new Set(own.map((d) => d[axis.name])));
          const each = Math.ceil(known.length / most);
          return new Map(known.map((value, at) => [value, known[at - (at % each)]]));
        };
        const [ofX, ofY] = [shared(x, Math.max(20, width / 14)), shared(y, 40)];
        const cells = d3.flatGroup(own, (d) => ofX.get(d[x.name]), (d) => ofY.get(d[y.name])).map(([cx, cy, of]) => ({
          x: cx, y: cy, at: of[0].at, n: of.length, mean: d3.median(of, (d) => d.mean), rate: d3.median(of, (d) => d.flops),
          value: isRate ? d3.median(of, (d) => d.flops) / 1e12 : d3.median(of, (d) => d.mean),
        })).filter((cell) => isNumber(cell.value));
        const xs = d3.sort(new Set(cells.map((cell) => cell.x)));
        const ys = d3.sort(new Set(cells.map((cell) => cell.y)), (v) => -v);
        const every = (of, room) => { const step = Math.ceil(of.length / Math.max(1, room)); return of.filter((_, at) => at % step === 0); };
        const [least, most] = d3.extent(cells, (cell) => cell.value);
        const isWide = most / least > 20 && least > 0;
        const height = Math.max(180, Math.min(520, 26 * ys.length + 90));
        return {
          width, height, marginLeft: 64, marginBottom: 40, marginTop: 24, padding: 0.03,
          x: { domain: xs, label: t(x.name), ticks: every(xs, (width - 80) / 44), tickFormat: size, tickSize: 0, labelAnchor: "center", labelArrow: "none" },
          y: { domain: ys, label: t(y.name), labelAnchor: "top", ticks: every(ys, (height - 60) / 20), tickFormat: size, tickSize: 0, labelArrow: "none" },
          color: { scheme, type: isWide ? "log" : "linear", domain: most > least ? [least, most] : [0, most] },
          marks: [
            Plot.cell(cells, { x: "x", y: "y", fill: "value", rx: 1 }),
            Plot.tip(cells, Plot.pointer({ x: "x", y: "y", maxRadius: 30, title: (d) => `${t(x.name)} ${count(d.x)}, ${t(y.name)} ${count(d.y)}\n${us(d.mean)}${isNumber(d.rate) ? `\n${rate(d.rate)}` : ""}${d.n > 1 ? `\n${t("median of")} ${d.n} ${t("cases")}` : ""}` })),
          ],
        };
      },
    });
    const scale = el("div", {});
    made.append(scale);
    opmeter.chart(scale, {
      label: t("colour scale"),
      draw: (width) => {
        const own = by ? rows.filter((d) => d[by.name] === chosen) : rows;
        const value = (d) => (isRate ? d.flops / 1e12 : d.mean);
        const [least, most] = d3.extent(own.map(value).filter(isNumber));
        const isWide = most / least > 20 && least > 0;
        const steps = d3.range(64);
        const of = (at) => (isWide ? least * (most / least) ** (at / 64) : least + ((most - least) * at) / 64);
        return {
          width: Math.min(width, 360), height: 54, marginTop: 4, marginBottom: 38, marginLeft: 64, marginRight: 12,
          x: { type: isWide ? "log" : "linear", domain: [least, most], label: isRate ? t("achieved TFLOP/s") : t("duration (µs)"), ticks: 4, tickFormat: "~s", labelAnchor: "center", labelArrow: "none" },
          color: { scheme, type: "linear", domain: [0, 63] },
          marks: [Plot.rect(steps, { x1: of, x2: (at) => of(at + 1), y1: 0, y2: 1, fill: (at) => at })],
          y: { axis: null },
        };
      },
    });
  }

  function work(place, group, rows) {
    const known = rows.filter((d) => isNumber(d.flops) && isNumber(d.bytes));
    if (!known.length) return;
    const roof = data.roof;
    const made = opmeter.section(place, t("Work against the device"),
      roof ? `${t("published peaks")}: ${roof.source}` : `${t("no published peaks of")} ${data.device}`);
    const grid = el("div", { class: "grid" });
    made.append(grid);
    const shown = drawn(known).map((d) => ({ ...d, intensity: d.work / d.traffic }));
    const peak = roof ? roof.flop_per_s[group.dtype] || null : null;
    const [least, most] = d3.extent(shown, (d) => d.intensity);
    const ridge = roof && peak ? peak / roof.bytes_per_s : null;
    const ends = [Math.min(least, ridge ? ridge / 4 : least) / 1.5, Math.max(most, ridge ? ridge * 4 : most) * 1.5];
    const line = roof && peak ? [ends[0], ridge, ends[1]].map((v) => ({ x: v, y: Math.min(peak, v * roof.bytes_per_s) })) : [];
    const intensity = (v) => (/^[125]/.test(v.toExponential()) ? (v < 1 ? `${+v.toPrecision(2)}` : d3.format("~s")(v)) : "");
    opmeter.chart(grid, {
      title: t("Roofline"), note: peak ? `${group.dtype} ${rate(peak)}` : "",
      open: (d) => d.at !== undefined && certificate(d.at),
      draw: (width) => ({
        width, height: 290, marginLeft: 54, marginBottom: 38,
        x: { type: "log", domain: ends, label: `${t("operations per byte")} (FLOP/B)`, ticks: Math.max(3, Math.floor(width / 90)), tickFormat: intensity, labelAnchor: "center", labelArrow: "none" },
        y: { type: "log", label: `${t("achieved")} (FLOP/s)`, grid: true, ticks: 4, tickFormat: "~s", labelArrow: "none" },
        marks: [
          Plot.line(line, { x: "x", y: "y", stroke: "currentColor", strokeWidth: 1.5 }),
          ...dots(shown, "intensity", "flops"),
        ],
      }),
      keys: [[t("case"), series[0]], ...(peak ? [[t("peak of the device"), "currentColor", "line"]] : [])],
    });
    opmeter.chart(grid, {
      title: t("Memory traffic"), note: roof ? bytesRate(roof.bytes_per_s) : "",
      open: (d) => d.at !== undefined && certificate(d.at),
      draw: (width) => ({
        width, height: 290, marginLeft: 54, marginBottom: 38,
        x: { type: "log", label: `${t("declared traffic of a launch")} (B)`, ticks: Math.max(3, Math.floor(width / 90)), tickFormat: "~s", labelAnchor: "center", labelArrow: "none" },
        y: { type: "log", label: `${t("achieved")} (B/s)`, grid: true, ticks: 4, tickFormat: "~s", labelArrow: "none" },
        marks: [
          ...(roof ? [Plot.ruleY([roof.bytes_per_s], { stroke: "currentColor", strokeWidth: 1.5 })] : []),
          ...dots(shown, "traffic", "bytes"),
        ],
      }),
      keys: [[t("case"), series[0]], ...(roof ? [[t("peak bandwidth of the memory"), "currentColor", "line"]] : [])],
    });
  }

  function cases() {
    const made = opmeter.section(main, t("Cases"), `${count(rowCount)} ${t("durations")}`, "cases");
    const hasRate = c.flop_per_s.some(isNumber);
    const isFast = d3.max(c.flop_per_s) >= 1e11;
    opmeter.table(made, {
      name: t("Cases"), search: t("search shapes, dtypes, warnings"), rows: all, size: 25,
      searched: (at) => `${c.shapes[at]} ${sizes(at)} ${label(groupOf(at))} ${c.warnings[at]} ${c.case[at]}`,
      empty: t("no durations"),
      columns: [
        { label: t("input shapes"), value: (at) => c.shapes[at], node: (at) => el("button", { class: "plain", type: "button", title: t("certificate"), onclick: () => certificate(at) }, shapes(at)) },
        ...(all.some((at) => sizes(at)) ? [{ label: t("sizes"), wide: true, value: sizes }] : []),
        ...(data.groups.length > 1 ? [{ label: t("inputs"), wide: true, value: (at) => label(groupOf(at)) }] : []),
        { label: t("duration"), unit: "µs", kind: "number", value: (at) => c.mean_us[at], text: (at) => number(c.mean_us[at]) },
        { label: t("half-width"), kind: "number", value: (at) => c.high_us[at] / c.mean_us[at] - 1, text: (at) => reach(isNumber(c.high_us[at]) ? c.high_us[at] / c.mean_us[at] - 1 : null) },
        { label: t("sessions"), kind: "number", wide: true, value: (at) => c.sessions[at], text: (at) => count(c.sessions[at]) },
        ...(hasRate ? [{ label: isFast ? "TFLOP/s" : "GFLOP/s", kind: "number", wide: true, value: (at) => c.flop_per_s[at], text: (at) => number(c.flop_per_s[at] / (isFast ? 1e12 : 1e9)) }] : []),
        { label: "GiB/s", kind: "number", wide: true, value: (at) => c.bytes_per_s[at], text: (at) => (isNumber(c.bytes_per_s[at]) ? number(c.bytes_per_s[at] / 2 ** 30) : NONE) },
        { label: t("warnings"), value: (at) => c.warnings[at], node: (at) => c.warnings[at].split("; ").filter(Boolean).map((one) => el("span", { class: "tag" }, one)) },
      ],
    });
  }

  function failures() {
    const { count: n, reasons, rows } = data.failures;
    if (!n) return;
    const made = opmeter.section(main, t("Cases without a duration"), count(n), "failures");
    opmeter.table(made, {
      name: t("reasons"), rows: reasons, size: 20,
      columns: [
        { label: t("outcome"), kind: "word", value: (row) => row[1], text: (row) => t(row[1]) },
        { label: t("reason"), value: (row) => row[2] || NONE },
        { label: t("cases"), kind: "number", value: (row) => row[0], text: (row) => count(row[0]) },
      ],
    });
    const place = el("div", {});
    const list = el("details", {}, el("summary", {}, rows.length < n ? `${count(rows.length)} ${t("of")} ${count(n)} ${t("cases")}` : t("the cases")), place);
    made.append(list);
    list.addEventListener("toggle", () => {
      if (place.childElementCount) return;
      opmeter.table(place, {
        name: t("cases"), rows, size: 25,
        columns: [
          { label: t("input shapes"), value: (row) => row[1] || NONE },
          { label: t("outcome"), kind: "word", value: (row) => row[2], text: (row) => t(row[2]) },
          { label: t("reason"), value: (row) => row[3] || NONE },
        ],
      });
    });
  }

  // The certificate of a case: its measurements, with what makes each of them.

  async function certificate(at) {
    document.querySelector("dialog")?.remove();
    const group = groupOf(at);
    const body = el("div", {}, el("p", { class: "muted" }, t("loading")));
    const close = el("button", { type: "button", onclick: () => made.close() }, t("close"));
    const made = el("dialog", { "aria-label": t("certificate") },
      el("div", { class: "top" },
        el("div", {}, el("h2", {}, `${data.kernel} ${shapes(at)}`), el("p", { class: "small muted" }, label(group))), close),
      body);
    document.body.append(made);
    history.replaceState(null, "", `#${encodeURIComponent(c.case[at])}`);
    made.addEventListener("close", () => {
      made.remove();
      history.replaceState(null, "", location.pathname + location.search);
    });
    made.showModal();
    const columns = await opmeter.load(`${data.chunks}/${Math.floor(at / data.chunk)}`);
    const rows = [];
    for (let n = 0; n < columns.row.length; n += 1) {
      if (columns.row[n] !== at) continue;
      const one = {};
      for (const [name, values] of Object.entries(columns)) one[name] = Array.isArray(values) ? values[n] : values;
      rows.push(one);
    }
    body.replaceChildren();
    body.append(opmeter.pairs([
      [t("duration"), `${us(c.mean_us[at])}  (${us(c.low_us[at])} – ${us(c.high_us[at])}, ${t("95 % interval over sessions and devices")})`],
      [t("sizes"), sizes(at)],
      [t("sessions"), `${c.sessions[at]}`],
      [t("work"), [isNumber(c.operations[at]) ? `${d3.format(".4~s")(c.operations[at])} FLOP` : "", isNumber(c.traffic_bytes[at]) ? bytes(c.traffic_bytes[at]) : "", isNumber(c.flop_per_s[at]) ? rate(c.flop_per_s[at]) : "", isNumber(c.bytes_per_s[at]) ? bytesRate(c.bytes_per_s[at]) : ""].filter(Boolean).join(" · ")],
      [t("of the roofline"), isNumber(c.roofline_share[at]) ? percent(c.roofline_share[at]) : ""],
      [t("warnings"), c.warnings[at]],
      [t("case"), el("code", {}, c.case[at])],
    ]));
    strip(body, at, rows);
    rows.forEach((one, n) => body.append(measurement(one, n, rows.length)));
  }

  function strip(parent, at, rows) {
    const timed = rows.map((one, n) => ({ ...one, n: n + 1 })).filter((one) => isNumber(one.mean_us));
    if (!timed.length) return;
    const least = d3.min(timed, (d) => d.min_us);
    const most = d3.max(timed, (d) => d.p90_us);
    const clip = (v) => Math.max(least - (most - least), Math.min(most + (most - least), v));
    const band = isNumber(c.low_us[at]) && isNumber(c.high_us[at]) ? [{ low: clip(c.low_us[at]), high: clip(c.high_us[at]) }] : [];
    opmeter.chart(parent, {
      title: t("Repeats of each measurement"),
      note: `${count(d3.sum(timed, (d) => d.n_accepted))} ${t("accepted repeats")}`,
      draw: (width) => ({
        width, height: 30 * timed.length + 58, marginLeft: 34, marginBottom: 36, marginTop: 10,
        x: { label: `${t("duration")} (µs)`, grid: true, nice: true, ticks: Math.max(3, Math.floor(width / 90)), labelAnchor: "center", labelArrow: "none" },
        y: { domain: timed.map((d) => d.n), label: null, tickFormat: (n) => `#${n}`, tickSize: 0 },
        marks: [
          Plot.rectX(band, { x1: "low", x2: "high", fill: series[0], fillOpacity: 0.1 }),
          Plot.ruleY(timed, { x1: "min_us", x2: "p90_us", y: "n", stroke: "currentColor", strokeOpacity: 0.5 }),
          Plot.ruleY(timed, { x1: "p10_us", x2: "p90_us", y: "n", stroke: series[0], strokeWidth: 8, strokeOpacity: 0.4 }),
          Plot.tickX(timed, { x: "median_us", y: "n", stroke: "currentColor", strokeWidth: 1.5, inset: 6 }),
          Plot.ruleY(timed, { x1: "ci_low_us", x2: "ci_high_us", y: "n", stroke: "var(--warn)", strokeWidth: 2 }),
          Plot.dot(timed, { x: "mean_us", y: "n", r: 3.5, fill: "var(--warn)" }),
        ],
      }),
      keys: [[t("10th to 90th percentile, from the shortest"), series[0], "line"], [t("mean with its interval within the session"), "var(--warn)"], [t("median"), "currentColor", "line"]],
    });
  }

  function measurement(one, n, total) {
    const where = [one.node, one.device_serial].filter(Boolean).join(" ");
    const title = `#${n + 1} · ${one.started_at.slice(0, 16).replace("T", " ")} · ${where} · ${t(one.outcome)}`;
    const timing = isNumber(one.mean_us) ? `${us(one.mean_us)} (${us(one.ci_low_us)} – ${us(one.ci_high_us)})` : "";
    const plain = [
      [t("reason"), one.reason], [t("mean within the session"), timing], [t("median"), isNumber(one.median_us) ? us(one.median_us) : ""],
      [t("spread"), isNumber(one.spread) ? percent(one.spread) : ""],
      [t("launches"), isNumber(one.n_observed) ? `${count(one.n_accepted)} ${t("accepted")}, ${count(one.n_observed)} ${t("observed")}` : ""],
      [t("outliers left out"), one.outlier_share ? `${percent(one.outlier_share)}; ${t("mean with them")} ${us(one.untrimmed_us)}` : ""],
      [t("warnings"), list(one.warnings)], [t("caches"), t(one.cache)], [t("core"), one.core], [t("library"), one.library], [t("proof of what ran"), t(one.identity)],
      [t("assumed inputs"), one.assumes], [t("disturbance"), list(one.disturbance)], [t("counters"), list(one.counters)],
      [t("clock"), isNumber(one.opened_clock_mhz) ? `${number(one.opened_clock_mhz)} – ${number(one.closed_clock_mhz)} MHz` : ""],
      [t("temperature"), isNumber(one.opened_temperature_c) ? `${number(one.opened_temperature_c)} °C` : ""],
      [t("campaign"), `${one.campaign} ${t("plan")} ${one.plan}`], [t("shard"), one.shard], [t("attempt"), `${one.attempt}, ${t("session")} ${one.session}`],
      [t("image"), one.image_digest], [t("written by"), `opmeter ${one.collector_version}`],
      [t("raw record"), raw(one.raw_key)], [t("measurement"), el("code", {}, one.measurement)],
    ];
    return el("details", { open: total === 1 }, el("summary", {}, title), opmeter.pairs(plain));
  }

  function list(text) {
    if (!text) return "";
    try {
      return JSON.parse(text).map((one) => (Array.isArray(one) ? `${one[0]} ${isNumber(one[1]) ? number(one[1]) : one[1]}` : String(one))).join("; ");
    } catch {
      return text;
    }
  }

  function raw(key) {
    if (!key) return "";
    const address = data.raw.replace("raw-key", key);
    return address.startsWith("/") ? el("a", { href: `file://${encodeURI(address)}` }, el("code", {}, key)) : el("code", {}, address);
  }

  if (rowCount) charts();
  cases();
  failures();
  window.addEventListener("hashchange", openNamed);
  openNamed();
});
