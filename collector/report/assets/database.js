// One version directory of a database: coverage, quality, warnings, kernels, provenance.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, number, percent, reach, us, isNumber, NONE, series } = opmeter;
  const q = data.quality;
  const untested = q.of_several_sessions > 0;  // where no sessions are compared, they were disturbed

  const colours = { exact: "var(--good)", imported: series[3], reused: series[2], between: "var(--fair)", outside: series[4], failed: series[1], unsupported: series[5], missing: "var(--line)" };
  const statuses = Object.keys(colours);

  opmeter.head(main, {
    title: data.version,
    sub: [`${t("database version")} ${data.database}`, data.time.slice(0, 16).replace("T", " "), data.author].filter(Boolean).join(" · "),
    facts: data.runtime === "real" ? "" : t("of a fake runtime, not measured on a device"),
  });
  opmeter.facts(main, [
    [t("durations"), count(q.durations), `${count(data.kernels.length)} ${t("kernel types")}`],
    [t("of several sessions"), percent(q.durations ? q.of_several_sessions / q.durations : NaN), count(q.of_several_sessions)],
    [t("median half-width"), q.durations ? reach(q.median_reach) : NONE, t("of the 95 % interval")],
    ...(q.imported ? [[t("imported from another tool"), percent(q.imported / q.durations), count(q.imported)]] : []),
    [t("with a warning"), percent(q.durations ? q.warned / q.durations : NaN), count(q.warned)],
    [t("without a duration"), count(d3.sum(data.kernels, (one) => one.without)), t("cases that were tried or planned")],
  ]);

  slow();
  coverage();
  quality();
  kernels();
  warnings();
  provenance();

  // What is slow, what is not known, and the command that measures it.
  function slow() {
    if (!q.durations) return;
    const made = opmeter.section(main, t("Time by kernel type"), t("what is slow, what is not known, what next"), "slow");
    const whole = d3.sum(data.kernels, (one) => one.total_us) || 1;
    const own = data.kernels.map((one) => ({ kernel: one.kernel, cases: one.cases, share: one.total_us / whole, half_width: one.half_width, statuses: { exact: one.durations / (one.cases || 1), missing: one.without / (one.cases || 1) } }));
    const workloads = data.coverage.length ? data.coverage : [{ name: t("sum of the durations of its own cases"), kernels: own, missing: "" }];
    for (const one of workloads) {
      const rows = one.kernels.map((row) => {
        const known = data.kernels.find((kernel) => kernel.kernel === row.kernel) || {};
        return { ...row, roofline_share: isNumber(row.half_width) ? known.roofline_share : null };
      });
      made.append(el("h3", {}, one.name));
      opmeter.table(made, {
        name: one.name, rows, size: 12, sort: [1, true],
        columns: [
          { label: t("kernel type"), value: (row) => row.kernel, node: (row) => kernelLink(row.kernel) },
          { label: t("share of time"), kind: "number", value: (row) => row.share, text: (row) => percent(row.share) },
          { label: t("of roofline"), kind: "number", value: (row) => row.roofline_share, text: (row) => (isNumber(row.roofline_share) ? percent(row.roofline_share) : NONE) },
          { label: t("half-width"), kind: "number", value: (row) => row.half_width, text: (row) => (isNumber(row.half_width) ? reach(row.half_width) : NONE) },
          {
            label: t("measured"), value: (row) => row.statuses.exact || 0,
            node: (row) => opmeter.bar(statuses.map((name) => [row.statuses[name] || 0, colours[name], t(name)])),
          },
          { label: t("cases"), kind: "number", wide: true, value: (row) => row.cases, text: (row) => count(row.cases) },
        ],
      });
      if (one.missing) opmeter.next(made, t("Write the cases without a duration, to measure them:"), one.missing);
      const width = (row) => row.share * row.half_width;
      const widest = d3.greatest(rows.filter((row) => isNumber(row.half_width)), width);
      if (widest) opmeter.next(made, `${t("Narrow the intervals that add most,")} ${widest.kernel}:`, `${data.pull} && ${data.measure} tree/${data.version}/${widest.kernel}.csv`);
    }
  }

  function coverage() {
    if (!data.coverage.length) return;
    const made = opmeter.section(main, t("Coverage"), t("share of the device time of a workload"), "coverage");
    for (const one of data.coverage) {
      const parts = statuses.map((name) => [one.shares[name] ? one.shares[name].time : 0, colours[name], t(name)]);
      const figures = statuses.filter((name) => one.shares[name] && one.shares[name].time > 0)
        .map((name) => `${t(name)} ${percent(one.shares[name].time)}`).join(" · ");
      made.append(el("div", { class: "workload" },
        el("h3", {}, one.name), opmeter.bar(parts), el("p", { class: "small muted" }, figures)));
    }
    made.append(opmeter.legend(statuses.map((name) => [t(name), colours[name]])));
  }

  function quality() {
    const made = opmeter.section(main, t("Quality"), t("how well the durations are known"), "quality");
    if (!q.durations) {
      made.append(el("p", { class: "muted" }, t("no durations")));
      return;
    }
    const grid = el("div", { class: "grid two" });
    made.append(grid);
    widths(grid);
    reliability(grid);
    drift(grid);
    differences(grid);
  }

  function widths(grid) {
    const { edges, counts } = data.widths;
    const bins = counts.map((n, at) => ({ low: edges[at], high: edges[at + 1], n })).filter((bin) => bin.n);
    if (!bins.length) return;
    opmeter.chart(grid, {
      title: t("Width of the intervals"),
      note: `${t("median")} ${reach(q.median_reach)}`,
      draw: (width) => ({
        width, height: 230, marginLeft: 48, marginBottom: 38,
        x: { type: "log", domain: [Math.min(0.01, bins[0].low), Math.max(0.5, bins.at(-1).high)], label: `${t("half-width of the 95 % interval")} (%)`, tickFormat: (v) => `${+(100 * v).toPrecision(2)}`, ticks: width < 360 ? 3 : 6, labelAnchor: "center", labelArrow: "none" },
        y: { label: t("cases"), grid: true, nice: true, ticks: 5, labelArrow: "none" },
        marks: [
          Plot.rect(bins, { x1: "low", x2: "high", y1: 0, y2: "n", fill: series[0], inset: 0.5, rx: 1, title: (bin) => `${percent(bin.low)} – ${percent(bin.high)}\n${count(bin.n)} ${t("cases")}`, tip: true }),
          Plot.ruleX([q.median_reach], { stroke: "currentColor", strokeDasharray: "3,3" }),
          Plot.ruleY([0]),
        ],
      }),
    });
  }

  function reliability(grid) {
    const rows = q.reliability;
    if (!rows.length) {
      grid.append(el("figure", {}, el("figcaption", {}, el("span", { class: "title" }, t("Coverage of the intervals"))),
        el("p", { class: "muted small" }, untested ? t("No case of a kernel has two sessions without disturbance, so the coverage cannot be tested here.") : t("No case has a second session, so the coverage cannot be tested here."))));
      return;
    }
    opmeter.chart(grid, {
      title: t("Coverage of the intervals"),
      note: `${count(rows[0].pairs)} ${q.is_blind ? t("blind repeats") : t("pairs of sessions")}`,
      draw: (width) => ({
        width, height: 230, marginLeft: 48, marginBottom: 38,
        x: { domain: [0.4, 1], label: `${t("stated coverage")} (%)`, tickFormat: (v) => `${Math.round(100 * v)}`, ticks: 6, labelAnchor: "center", labelArrow: "none" },
        y: { domain: [Math.min(0.4, ...rows.map((one) => spread(one)[0])), 1], label: `${t("observed coverage")} (%)`, tickFormat: (v) => `${Math.round(100 * v)}`, grid: true, ticks: 6, labelArrow: "none" },
        marks: [
          Plot.line([[0.4, 0.4], [1, 1]], { stroke: "currentColor", strokeOpacity: 0.5, strokeDasharray: "4,4" }),
          Plot.ruleX(rows, { x: "nominal", y1: (d) => spread(d)[0], y2: (d) => spread(d)[1], stroke: series[0], strokeWidth: 1.5 }),
          Plot.line(rows, { x: "nominal", y: "covered", stroke: series[0], strokeWidth: 1.5 }),
          Plot.dot(rows, { x: "nominal", y: "covered", r: 4.5, fill: series[0], title: (d) => `${t("stated")} ${percent(d.nominal)}\n${t("observed")} ${percent(d.covered)}`, tip: true }),
        ],
      }),
      keys: [[t("observed"), series[0]], [t("as stated"), "currentColor", "dash"]],
    });
  }

  // The 95 % interval of a share of pairs (Wilson).
  function spread({ covered: p, pairs: n }) {
    const z = 1.96;
    const middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    const half = z * Math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n);
    return [Math.max(0, middle - half), Math.min(1, middle + half)];
  }

  function drift(grid) {
    const rows = data.sessions.map(([device, began, factor, low, high, fault]) => ({ device, at: new Date(began), factor, low, high, fault }))
      .filter((one) => !Number.isNaN(+one.at));
    if (!rows.length) {
      grid.append(el("figure", {}, el("figcaption", {}, el("span", { class: "title" }, t("Drift by device and day"))),
        el("p", { class: "muted small" }, t("No session has canaries."))));
      return;
    }
    const [day, clock] = [d3.utcFormat("%m-%d"), d3.utcFormat("%H:%M")];
    const devices = d3.groupSort(rows, (of) => -1e6 * of.filter((one) => one.fault).length - of.length, (one) => one.device);
    const colour = (one) => series[Math.min(devices.indexOf(one.device), 6)];
    const shown = rows.length > 600 ? rows.filter((one, at) => one.fault || at % Math.ceil(rows.length / 600) === 0) : rows;
    opmeter.chart(grid, {
      title: t("Drift by device and day"),
      note: `${count(rows.length)} ${t("sessions")}, ${count(devices.length)} ${t("devices")}`,
      draw: (width) => ({
        width, height: 230, marginLeft: 48, marginBottom: 38,
        x: { type: "utc", label: t("begin of the session (UTC)"), ticks: Math.max(2, Math.floor(width / 110)), tickFormat: (at) => (at.getUTCHours() || at.getUTCMinutes() ? clock(at) : day(at)), labelAnchor: "center", labelArrow: "none" },
        y: { label: `${t("duration of the canaries over usual")} (×)`, grid: true, nice: true, ticks: 5, labelArrow: "none" },
        marks: [
          Plot.ruleY([1], { stroke: "currentColor", strokeOpacity: 0.5 }),
          Plot.ruleX(shown, { x: "at", y1: "low", y2: "high", stroke: colour, strokeOpacity: 0.5 }),
          Plot.dot(shown, { x: "at", y: "factor", r: 3, fill: colour, title: (d) => `${d.device}\n${d.at.toISOString().slice(0, 16)}\n× ${d.factor.toFixed(4)} (${d.low.toFixed(4)} – ${d.high.toFixed(4)})${d.fault ? `\n${d.fault}` : ""}`, tip: true }),
          Plot.dot(shown.filter((d) => d.fault), { x: "at", y: "factor", r: 6, symbol: "diamond", stroke: "var(--warn)", strokeWidth: 1.8 }),
        ],
      }),
      keys: [...devices.slice(0, 6).map((name, at) => [name, series[at]]), ...(devices.length > 6 ? [[t("other devices"), series[6]]] : []),
        ...(rows.some((one) => one.fault) ? [[t("suspect session"), "var(--warn)", d3.symbolDiamond]] : [])],
    });
  }

  function differences(grid) {
    const rows = [];
    if (q.sessions) rows.push([t("two sessions, same device"), q.sessions]);
    if (q.devices) rows.push([t("two devices"), q.devices]);
    const origins = Object.entries(q.origins).map(([name, n]) => `${t(name)} ${count(n)}`).join(" · ");
    const made = el("figure", {}, el("figcaption", {}, el("span", { class: "title" }, t("Differences between sessions"))));
    grid.append(made);
    if (!rows.length) made.append(el("p", { class: "muted small" }, untested ? t("No case of a kernel has two sessions without disturbance: disturbed sessions are not compared.") : t("No case has two sessions.")));
    else {
      opmeter.table(made, {
        name: t("Differences between sessions"), rows,
        columns: [
          { label: "", value: (row) => row[0] },
          { label: t("pairs"), kind: "number", value: (row) => row[1].pairs, text: (row) => count(row[1].pairs) },
          { label: t("median"), kind: "number", value: (row) => row[1].median, text: (row) => percent(row[1].median) },
          { label: "p90", kind: "number", value: (row) => row[1].p90, text: (row) => percent(row[1].p90) },
          { label: "p99", kind: "number", value: (row) => row[1].p99, text: (row) => percent(row[1].p99) },
        ],
      });
    }
    if (origins) made.append(el("p", { class: "muted small" }, `${t("variance from")}: ${origins}`));
  }

  function kernels() {
    const made = opmeter.section(main, t("Kernel types"), t("a page for each"), "kernels");
    const hasRoof = data.kernels.some((one) => isNumber(one.roofline_share));
    opmeter.table(made, {
      name: t("Kernel types"),
      search: t("search kernel types"),
      searched: (row) => `${row.kernel} ${row.family}`,
      rows: data.kernels,
      sort: [2, true],
      size: 60,
      columns: [
        { label: t("kernel type"), value: (row) => row.kernel, node: (row) => kernelLink(row.kernel) },
        { label: t("family"), kind: "word", wide: true, value: (row) => row.family },
        { label: t("durations"), kind: "number", value: (row) => row.durations, text: (row) => count(row.durations) },
        { label: t("without"), kind: "number", wide: true, value: (row) => row.without, text: (row) => count(row.without) },
        { label: t("warnings"), kind: "number", value: (row) => row.warned, text: (row) => count(row.warned) },
        { label: t("several sessions"), kind: "number", wide: true, value: (row) => row.several, text: (row) => count(row.several) },
        { label: t("median duration"), unit: "µs", kind: "number", wide: true, value: (row) => row.median_us, text: (row) => number(row.median_us) },
        { label: t("half-width"), kind: "number", value: (row) => row.half_width, text: (row) => reach(row.half_width) },
        ...(hasRoof ? [{ label: t("of roofline"), kind: "number", wide: true, value: (row) => row.roofline_share, text: (row) => percent(row.roofline_share) }] : []),
      ],
    });
  }

  function kernelLink(name) {
    const known = data.kernels.find((one) => one.kernel === name);
    return known ? el("a", { href: `kernels/${known.stem}.html` }, name) : name;
  }

  function warnings() {
    const made = opmeter.section(main, t("Warnings"), `${count(data.suspects)} ${t("cases")}`, "warnings");
    const gates = [...Object.entries(q.suspect).map(([gate, n]) => ({ gate, n, kind: t("warned") })),
      ...Object.entries(q.refused).map(([gate, n]) => ({ gate, n, kind: t("withheld") }))];
    if (!gates.length) {
      made.append(el("p", { class: "muted" }, t("No gate warns of a duration or withholds one.")));
      return;
    }
    opmeter.chart(made, {
      label: t("Warnings"),
      draw: (width) => ({
        width, height: 28 * gates.length + 56, marginTop: 8, marginLeft: Math.min(130, width / 3), marginRight: 44, marginBottom: 34,
        x: { label: t("cases"), grid: true, ticks: Math.max(3, Math.floor(width / 120)), tickFormat: "~s", labelAnchor: "center", labelArrow: "none" },
        y: { label: null, domain: gates.map((one) => one.gate) },
        marks: [
          Plot.barX(gates, { x: "n", y: "gate", fill: (d) => (d.kind === t("warned") ? series[0] : "var(--warn)"), insetTop: 4, insetBottom: 4, rx: 2 }),
          Plot.text(gates, { x: "n", y: "gate", text: (d) => count(d.n), textAnchor: "start", dx: 5, fill: "currentColor" }),
          Plot.ruleX([0]),
        ],
      }),
      keys: [[t("duration with a warning"), series[0]], [t("withheld"), "var(--warn)"]],
    });
    const place = el("div", {});
    const list = el("details", { id: "warning-rows" }, el("summary", {}, t("the cases, the widest interval first")), place);
    made.append(list);
    list.addEventListener("toggle", async () => {
      if (!list.open || place.childElementCount) return;
      const rows = await opmeter.load("warnings");
      opmeter.table(place, {
        name: t("Warnings"), search: t("search warnings"), rows, size: 25,
        searched: (row) => `${row[2]} ${row[5]} ${row[6]} ${row[1]}`,
        columns: [
          { label: t("case"), value: (row) => row[2], node: (row) => (row[7] ? el("a", { href: `kernels/${row[7]}.html#${row[1]}` }, row[2] || row[1]) : row[2] || row[1]) },
          { label: t("duration"), unit: "µs", kind: "number", value: (row) => row[3], text: (row) => number(row[3]) },
          { label: t("half-width"), kind: "number", value: (row) => row[4], text: (row) => reach(row[4]) },
          { label: t("gates"), value: (row) => row[5], node: (row) => row[5].split("; ").filter(Boolean).map((gate) => el("span", { class: "tag" }, gate)) },
          { label: t("reasons"), wide: true, value: (row) => row[6] },
        ],
      });
      if (data.suspects > rows.length) {
        place.append(el("p", { class: "muted small" }, `${count(rows.length)} ${t("of")} ${count(data.suspects)}; ${t("all are in")} warnings.csv`));
      }
    });
  }

  function provenance() {
    const made = opmeter.section(main, t("Stack and provenance"), "", "provenance");
    const { details, ...parts } = data.stack;
    const grid = el("div", { class: "grid" });
    made.append(grid);
    grid.append(
      el("div", {}, el("h3", {}, t("Stack")), opmeter.pairs([...Object.entries(parts), ...Object.entries(details)])),
      el("div", {}, el("h3", {}, t("Database")), opmeter.pairs([
        [t("store"), data.store], [t("version"), `${data.database}`], [t("content"), el("code", {}, data.content)],
        [t("committed"), data.time], [t("author"), data.author], [t("written by"), `opmeter ${data.written_by}`],
        [t("plans"), data.plans.map(([name, n]) => `${name} ${t("plan")} ${n}`).join(", ")],
        [t("proof of what ran"), Object.entries(q.proofs).map(([name, n]) => `${t(name)} ${count(n)}`).join(" · ")],
      ])),
    );
    const devices = el("div", {}, el("h3", {}, t("Devices")));
    made.append(devices);
    opmeter.table(devices, {
      name: t("Devices"), rows: data.spans, size: 20, search: data.spans.length > 20 ? t("search devices") : null,
      columns: [
        { label: t("node"), value: (row) => row[0] },
        { label: t("device"), value: (row) => row[1] || NONE },
        { label: t("measurements"), kind: "number", value: (row) => row[2], text: (row) => count(row[2]) },
        { label: t("first day"), kind: "word", wide: true, value: (row) => row[3] },
        { label: t("last day"), kind: "word", value: (row) => row[4] },
      ],
    });
  }
});
