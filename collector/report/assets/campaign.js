// A campaign: what each device did and when, how the forecast held, and what failed.
"use strict";

opmeter.view((data, main) => {
  const { t, el, count, number, percent, us, isNumber, NONE, series } = opmeter;
  const colours = {
    measuring: series[0], around: series[5], lost: series[4], discarded: series[6], without: "var(--bad)",
  };
  const MANY_ROWS = 60; // more rows have no room for names of devices
  const sessions = data.sessions.map((row) => {
    const [device, plan, start, begin, end, close, lost, cases, measured, busy, useful, counts, name] = row;
    return { device, plan, start, begin, end, close, lost, cases, measured, busy, useful, counts, name, node: data.device_nodes[device] };
  });
  const withSessions = [...new Set(sessions.map((one) => one.plan))].sort((a, b) => a - b);
  const chosen = {
    plan: withSessions.at(-1) ?? 0, words: "", sort: "node", ...remembered(),
  };
  // What a user chose, kept in the address, so that it stays when the page loads itself again.
  function remembered() {
    const found = new URLSearchParams(location.hash.slice(1));
    const plan = Number(found.get("plan") ?? NaN);
    return {
      ...(plan === 0 || withSessions.includes(plan) ? { plan } : {}),
      ...(["idle", "without"].includes(found.get("sort")) ? { sort: found.get("sort") } : {}),
      words: found.get("words") ?? "",
    };
  }
  function remember() {
    const { plan, sort, words } = chosen;
    history.replaceState(null, "", `#${new URLSearchParams({ plan, sort, words })}`);
  }
  const at = (seconds) => `${new Date(1000 * (data.origin_s + seconds)).toISOString().slice(0, 19).replace("T", " ")} UTC`;
  const duration = (seconds) => {
    if (!isNumber(seconds)) return NONE;
    if (seconds < 120) return `${number(Number(seconds.toFixed(seconds < 10 ? 1 : 0)))} s`;
    return seconds < 7200 ? `${number(Number((seconds / 60).toFixed(1)))} min` : `${number(Number((seconds / 3600).toFixed(1)))} h`;
  };
  // The unit of a time axis: [seconds of a unit, its name].
  const unit = (seconds) => (seconds < 300 ? [1, "s"] : seconds < 3 * 3600 ? [60, "min"] : [3600, "h"]);
  const newest = data.plans.at(-1) || {};
  const whole = data.efficiency.whole || 1;
  const state = data.finished ? t("merged") : !sessions.length ? t("no session yet") : newest.committed < newest.shards ? t("running") : t("measured, not merged yet");

  opmeter.head(main, {
    title: data.name,
    sub: sessions.length ? `${at(0)} – ${at(d3.max(sessions, (one) => one.close))} · ${data.store}` : data.store,
    facts: state,
  });
  opmeter.facts(main, [
    [t("cases measured"), count(newest.measured), `${t("of")} ${count(newest.cases)}, ${t("plan")} ${newest.number ?? NONE}`],
    [t("devices in use"), count(new Set(sessions.map((one) => one.device)).size), `${t("nodes")}: ${count(data.nodes.length)}`],
    [t("wall time of the newest plan"), duration(newest.wall_s), `${t("forecast")} ${duration(newest.forecast_wall_s)}`],
    [t("busy"), percent((data.efficiency.useful + data.efficiency.other_launches) / whole), `${t("of the device time in sessions")}${data.plans.length > 1 ? `, ${t("all plans")}` : ""}`],
    [t("useful"), percent(data.efficiency.useful / whole), t("launches that count")],
    [t("without a duration"), count(data.without_duration), data.failure_count ? `${t("reasons")}: ${count(data.failure_count)}` : ""],
    ...(data.finished || !data.remaining_s ? [] : [[t("time left"), duration(data.remaining_s), t("at the pace so far")]]),
  ]);

  if (data.unreadable.length) {
    const made = opmeter.section(main, t("Parts that cannot be read"), count(data.unreadable.length), "unreadable");
    made.append(...data.unreadable.slice(0, 20).map((text) => el("p", { class: "small code" }, text)));
  }
  timeline();
  forecasts();
  efficiency();
  failures();
  devices();
  statusLines();

  function timeline() {
    const made = opmeter.section(main, t("Timeline"), "", "timeline");
    const status = el("p", { class: "small muted", role: "status", style: { minHeight: "1.5em" } });
    const listed = el("div", {});
    if (!sessions.length) {
      made.append(el("p", { class: "muted" }, t("No session is stored yet.")));
      return;
    }
    const input = el("input", { type: "search", placeholder: t("search devices"), "aria-label": t("search devices"), oninput: () => { chosen.words = input.value; redraw(); } });
    const planChoice = el("select", { "aria-label": t("plan"), onchange: () => { chosen.plan = Number(planChoice.value); redraw(); } },
      withSessions.map((plan) => el("option", { value: plan, selected: plan === chosen.plan }, `${t("plan")} ${plan}`)),
      withSessions.length > 1 ? el("option", { value: 0, selected: !chosen.plan }, t("all plans")) : null);
    const sort = el("select", { "aria-label": t("order"), onchange: () => { chosen.sort = sort.value; redraw(); } },
      [["node", t("by name")], ["idle", t("most idle first")], ["without", t("most cases without a duration first")]]
        .map(([value, label]) => el("option", { value, selected: value === chosen.sort }, label)));
    input.value = chosen.words;
    made.append(el("div", { class: "tools" }, input, planChoice, sort));
    let view = chosenView();
    const area = opmeter.chart(made, { title: t("Devices at work"), label: t("Devices at work"), draw: (width) => drawArea(view, width) });
    const gantt = opmeter.chart(made, {
      title: t("Sessions of each device"), label: t("Sessions of each device"),
      draw: (width) => drawGantt(view, width, status),
      keys: [
        [t("cases run"), colours.measuring], [t("starting, writing records"), colours.around],
        [t("cases without a duration"), colours.without], [t("session without results"), colours.lost],
        [t("results that another attempt replaced"), colours.discarded],
      ],
    });
    made.append(status, listed);
    list();

    function redraw() {
      remember();
      view = chosenView();
      area.redraw();
      gantt.redraw();
      list();
    }
    function list() {
      listed.replaceChildren();
      const details = el("details", { open: view.devices.length <= 4 }, el("summary", {}, `${t("sessions")}: ${count(view.sessions.length)}`));
      listed.append(details);
      const fill = () => {
        if (!details.open || details.childElementCount > 1) return;
        opmeter.table(details, {
          name: t("sessions"), rows: view.sessions, size: 20,
          columns: [
            { label: t("device"), value: (row) => data.devices[row.device], node: (row) => el("button", { class: "plain", type: "button", onclick: () => openSession(row) }, data.devices[row.device]) },
            { label: t("begin"), value: (row) => row.start, text: (row) => at(row.start).slice(5, 19) },
            { label: t("duration"), kind: "number", value: (row) => row.close - row.start, text: (row) => duration(row.close - row.start) },
            { label: t("cases"), kind: "number", value: (row) => row.cases, text: (row) => count(row.cases) },
            { label: t("without a duration"), kind: "number", value: (row) => row.cases - row.measured, text: (row) => count(row.cases - row.measured) },
            { label: t("busy"), kind: "number", wide: true, value: (row) => row.busy, text: (row) => percent(row.busy) },
            { label: t("useful"), kind: "number", wide: true, value: (row) => row.useful, text: (row) => percent(row.useful) },
          ],
        });
      };
      details.addEventListener("toggle", fill);
      fill();
    }
  }

  // The sessions and devices that the controls choose, with their row from the top.
  function chosenView() {
    const words = chosen.words.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const fits = data.devices.map((name) => words.every((word) => name.toLowerCase().includes(word)));
    const shown = sessions.filter((one) => fits[one.device] && (!chosen.plan || one.plan === chosen.plan));
    const begin = d3.min(shown, (one) => one.start - one.lost) ?? 0;
    const end = d3.max(shown, (one) => one.close) ?? 1;
    const work = d3.rollup(shown, (own) => [d3.sum(own, (one) => one.close - one.start), d3.sum(own, (one) => one.cases - one.measured)], (one) => one.device);
    const order = [...work.keys()].sort((a, b) => {
      if (chosen.sort === "idle") return work.get(a)[0] - work.get(b)[0] || a - b;
      return chosen.sort === "without" ? work.get(b)[1] - work.get(a)[1] || a - b : a - b;
    });
    const row = new Map(order.map((device, place) => [device, place]));
    return { sessions: shown, devices: order, row, begin, end: Math.max(end, begin + 1) };
  }

  // The room for names of devices, which both charts leave, so that their times are aligned.
  function leftOf(view, width) {
    const longest = d3.max(view.devices, (device) => (view.devices.length > MANY_ROWS ? data.nodes[data.device_nodes[device]].node : data.devices[device]).length) || 0;
    return Math.max(40, Math.min(14 + 6.6 * longest, width * 0.36, 230));
  }

  // The height of a device's row: all fit into some 1,200 pixels, as far as they can be seen.
  const rowHeight = (rows) => Math.max(1.5, Math.min(18, 1200 / rows));

  function drawArea(view, width) {
    const { sessions: shown, begin, end } = view;
    const bins = Math.max(40, Math.min(300, Math.floor(width / 4)));
    const step = (end - begin) / bins;
    const kinds = [[t("cases run"), "begin", "end"], [t("starting, writing records"), "start", "begin"], [t("starting, writing records"), "end", "close"]];
    const sums = new Map([[kinds[0][0], new Float64Array(bins)], [kinds[1][0], new Float64Array(bins)]]);
    for (const one of shown) {
      for (const [kind, from, to] of kinds) spread(sums.get(kind), (one[from] - begin) / step, (one[to] - begin) / step);
    }
    const [scale, name] = unit(end - begin);
    const rows = [...sums].flatMap(([kind, values]) => Array.from(values, (value, place) => ({ kind, x: ((place + 0.5) * step) / scale, value })));
    return {
      width, height: 142, marginLeft: leftOf(view, width), marginBottom: 22, marginTop: 24, marginRight: 12,
      x: { label: null, domain: [0, (end - begin) / scale], ticks: Math.max(3, Math.floor(width / 110)), tickFormat: (v) => `${v} ${name}` },
      y: { label: t("devices in use"), grid: true, ticks: 4, nice: true, labelArrow: "none" },
      color: { domain: [...sums.keys()], range: [colours.measuring, colours.around] },
      marks: [Plot.areaY(rows, { x: "x", y: "value", fill: "kind", curve: "step", order: [...sums.keys()] }), Plot.ruleY([0])],
    };
  }

  // Add to each bin the share of it between two places.
  function spread(bins, from, to) {
    for (let place = Math.max(0, Math.floor(from)); place < Math.min(bins.length, Math.ceil(to)); place += 1) {
      bins[place] += Math.max(0, Math.min(to, place + 1) - Math.max(from, place));
    }
  }

  function drawGantt(view, width, status) {
    const { sessions: shown, devices: order, row, begin, end } = view;
    const [scale, name] = unit(end - begin);
    const isDense = order.length > MANY_ROWS;
    const each = rowHeight(order.length);
    const names = isDense ? nodeRows(order) : order.map((device, place) => [place + 0.5, data.devices[device]]);
    const left = leftOf(view, width);
    const letters = Math.max(6, Math.floor((left - 12) / 6.6));
    return {
      width, height: Math.ceil(each * order.length) + 44, marginLeft: left, marginRight: 12, marginTop: 6, marginBottom: 38,
      x: { label: `${t("time since")} ${at(begin)} (${name})`, domain: [0, (end - begin) / scale], ticks: Math.max(3, Math.floor(width / 110)), grid: true, labelAnchor: "center", labelArrow: "none" },
      y: { domain: [order.length, 0], label: null, axis: null },
      marks: [
        Plot.axisY(names.map(([place]) => place), { tickSize: 0, text: null, label: null }),
        Plot.text(names, { x: 0, y: (d) => d[0], text: (d) => (d[1].length > letters ? `${d[1].slice(0, letters - 1)}…` : d[1]), title: (d) => d[1], textAnchor: "end", dx: -8, fill: "currentColor" }),
        bars,
      ],
    };

    // One path for each colour: thousands of sessions are four elements.
    function bars(_index, scales, _values, _dimensions, context) {
      const group = opmeter.svg("g", {});
      const x = (seconds) => scales.x((seconds - begin) / scale);
      const paths = new Map();
      const gap = each > 6 ? 1.5 : each > 3 ? 0.5 : 0;
      for (const one of shown) {
        const top = scales.y(row.get(one.device)) + gap / 2;
        const height = Math.max(0.8, scales.y(row.get(one.device) + 1) - scales.y(row.get(one.device)) - gap);
        const box = (colour, from, to) => {
          if (to > from) add(paths, colour, x(from), top, Math.max(0.7, x(to) - x(from)), height);
        };
        const without = (one.cases - one.measured) / Math.max(1, one.cases);
        box(colours.lost, one.start - one.lost, one.start);
        box(colours.around, one.start, one.close);
        box(one.counts ? colours.measuring : colours.discarded, one.begin, Math.max(one.end, one.begin + 1e-3));
        if (without) box(colours.without, one.end - without * (one.end - one.begin), one.end);
      }
      for (const [colour, parts] of paths) group.append(opmeter.svg("path", { d: parts.join(""), fill: colour }));
      const svg = context.ownerSVGElement;
      const under = (event) => {
        const place = svg.getBoundingClientRect();
        const device = order[Math.floor(scales.y.invert(event.clientY - place.top))];
        const own = shown.filter((one) => one.device === device);
        const px = event.clientX - place.left;
        return own.find((one) => x(one.start - one.lost) - 2 <= px && px <= x(one.close) + 2);
      };
      svg.addEventListener("pointermove", (event) => {
        const one = under(event);
        svg.style.cursor = one ? "pointer" : "default";
        status.textContent = one ? sentence(one) : "";
      });
      svg.addEventListener("pointerleave", () => { status.textContent = ""; });
      svg.addEventListener("click", (event) => {
        const one = under(event);
        if (one) openSession(one);
      });
      return group;
    }
  }

  function add(paths, colour, left, top, width, height) {
    if (!paths.has(colour)) paths.set(colour, []);
    paths.get(colour).push(`M${left.toFixed(1)},${top.toFixed(1)}h${width.toFixed(1)}v${height.toFixed(1)}h${(-width).toFixed(1)}z`);
  }

  // The middle row of each run of devices of one node; names that would overlap are left out.
  function nodeRows(order) {
    const found = [];
    let first = 0;
    for (let place = 1; place <= order.length; place += 1) {
      if (place < order.length && data.device_nodes[order[place]] === data.device_nodes[order[first]]) continue;
      found.push([(first + place) / 2, data.nodes[data.device_nodes[order[first]]].node]);
      first = place;
    }
    const each = rowHeight(order.length);
    let last = -Infinity;
    return found.filter(([place]) => {
      if ((place - last) * each < 11) return false;
      last = place;
      return true;
    });
  }

  function sentence(one) {
    const without = one.cases - one.measured;
    return `${data.devices[one.device]} · ${at(one.start)} · ${duration(one.close - one.start)} · ${count(one.cases)} ${t("cases")}${without ? `, ${count(without)} ${t("without a duration")}` : ""} · ${t("busy")} ${percent(one.busy)}, ${t("useful")} ${percent(one.useful)}${one.lost ? ` · ${duration(one.lost)} ${t("lost before")}` : ""}`;
  }

  async function openSession(one) {
    const body = dialog(data.devices[one.device], sentence(one));
    const all = await opmeter.load(data.nodes[one.node].file);
    const [shard, attempt, session, cases] = all[one.name];
    const rows = cases.map(([kernel, id, outcome, reason, mean_us, begin, end, warns], place) => ({ kernel, id, outcome, reason, mean_us, begin, end, warns, place }));
    body.replaceChildren(opmeter.pairs([
      [t("plan"), String(one.plan)], [t("shard"), el("code", {}, shard)], [t("attempt"), `${attempt}, ${t("session")} ${session}`],
      [t("starting"), duration(one.begin - one.start)], [t("cases run"), duration(one.end - one.begin)], [t("writing records"), duration(one.close - one.end)],
      [t("log"), el("code", {}, logCommand(shard))],
    ]));
    const timed = rows.filter((row) => isNumber(row.begin) && isNumber(row.end));
    if (timed.length) {
      const first = d3.min(timed, (row) => row.begin);
      opmeter.chart(body, {
        title: t("Cases of the session"), label: t("Cases of the session"),
        draw: (width) => ({
          width, height: 76, marginLeft: 12, marginRight: 12, marginBottom: 36, marginTop: 6,
          x: { label: `${t("time since the first case")} (s)`, ticks: Math.max(3, Math.floor(width / 100)), labelAnchor: "center", labelArrow: "none" },
          y: { axis: null },
          marks: [Plot.rect(timed, { x1: (row) => row.begin - first, x2: (row) => row.end - first, y1: 0, y2: 1, fill: (row) => (row.outcome === "ok" ? colours.measuring : colours.without), stroke: "var(--surface)", strokeWidth: 0.5, title: (row) => `${row.kernel} ${isNumber(row.mean_us) ? us(row.mean_us) : row.outcome}`, tip: true })],
        }),
      });
    }
    opmeter.table(body, {
      name: t("cases"), search: t("search cases"), searched: (row) => `${row.kernel} ${row.id} ${row.outcome} ${row.reason}`, rows, size: 20,
      columns: [
        { label: t("kernel type"), value: (row) => row.kernel },
        { label: t("outcome"), value: (row) => row.outcome, text: (row) => [t(row.outcome), row.reason].filter(Boolean).join(": ") },
        { label: t("duration"), unit: "µs", kind: "number", value: (row) => row.mean_us, text: (row) => number(row.mean_us) },
        { label: t("took"), unit: "s", kind: "number", value: (row) => row.end - row.begin, text: (row) => (isNumber(row.begin) ? number(Number((row.end - row.begin).toFixed(3))) : NONE) },
        { label: t("case"), kind: "word", wide: true, value: (row) => row.id },
      ],
    });
  }

  function forecasts() {
    if (!data.plans.length) return;
    const made = opmeter.section(main, t("Forecast and actual time"), "", "forecast");
    const grid = el("div", { class: "grid two" });
    made.append(grid);
    const plan = newest;
    const points = (data.progress[plan.number] || []).map(([x, y]) => ({ x, y: y / (plan.forecast_device_s || 1) }));
    if (points.length > 1) {
      const begin = points[0].x;
      const last = points.at(-1);
      const ends = Math.max(plan.forecast_wall_s, last.x - begin, data.finished ? 0 : last.x - begin + data.remaining_s);
      const [scale, name] = unit(ends);
      const line = (rows) => rows.map((row) => ({ x: (row.x - begin) / scale, y: 100 * Math.min(1, row.y) }));
      const ahead = data.finished ? [] : [last, { x: last.x + data.remaining_s, y: 1 }];
      opmeter.chart(grid, {
        title: t("Progress"), note: `${t("plan")} ${plan.number}`, label: t("Progress"),
        draw: (width) => ({
          width, height: 250, marginLeft: 44, marginBottom: 38, marginTop: 14,
          x: { label: `${t("time")} (${name})`, domain: [0, ends / scale], ticks: Math.max(3, Math.floor(width / 90)), labelAnchor: "center", labelArrow: "none" },
          y: { label: null, domain: [0, 100], grid: true, ticks: 5, tickFormat: (v) => `${v} %` },
          marks: [
            Plot.line(line([{ x: begin, y: 0 }, { x: begin + plan.forecast_wall_s, y: 1 }]), { x: "x", y: "y", stroke: "currentColor", strokeOpacity: 0.6, strokeDasharray: "4,3" }),
            Plot.line(line(points), { x: "x", y: "y", stroke: series[0], strokeWidth: 2.2, curve: "step-after" }),
            Plot.line(line(ahead), { x: "x", y: "y", stroke: series[0], strokeDasharray: "2,3" }),
          ],
        }),
        keys: [[t("measured"), series[0], "line"], [t("forecast"), "currentColor", "dash"]],
      });
    }
    const took = data.shards.filter((row) => row[3] > 0 && row[4] > 0).map(([number, cases, committed, forecast, actual]) => ({ number, cases, committed, forecast, actual }));
    if (took.length) {
      const ends = [d3.min(took, (d) => Math.min(d.forecast, d.actual)) / 1.2, d3.max(took, (d) => Math.max(d.forecast, d.actual)) * 1.2];
      opmeter.chart(grid, {
        title: t("Each shard"), note: `${t("shards")}: ${count(took.length)}`, label: t("Each shard"),
        draw: (width) => ({
          width, height: 250, marginLeft: 48, marginBottom: 38, marginTop: 14,
          x: { type: "log", domain: ends, label: `${t("forecast")} (s)`, ticks: Math.max(2, Math.floor(width / 130)), tickFormat: (v) => number(v), labelAnchor: "center", labelArrow: "none" },
          y: { type: "log", domain: ends, label: `${t("took")} (s)`, ticks: 4, tickFormat: (v) => number(v), grid: true, labelArrow: "none" },
          marks: [
            Plot.line([[ends[0], ends[0]], [ends[1], ends[1]]], { stroke: "currentColor", strokeOpacity: 0.6, strokeDasharray: "4,3" }),
            Plot.dot(took, { x: "forecast", y: "actual", r: 3, fill: series[0], fillOpacity: 0.55, title: (d) => `${t("plan")} ${d.number}, ${count(d.cases)} ${t("cases")}\n${t("forecast")} ${duration(d.forecast)}, ${t("took")} ${duration(d.actual)}`, tip: true }),
          ],
        }),
        keys: [[t("as forecast"), "currentColor", "dash"]],
      });
    }
    const table = el("div", {});
    made.append(table);
    opmeter.table(table, {
      name: t("plans"), rows: data.plans, size: 20,
      columns: [
        { label: t("plan"), kind: "number", value: (row) => row.number },
        { label: t("cases"), kind: "number", value: (row) => row.measured, text: (row) => `${count(row.measured)} / ${count(row.cases)}` },
        { label: t("shards"), kind: "number", value: (row) => row.committed, text: (row) => `${count(row.committed)} / ${count(row.shards)}` },
        { label: t("devices in use"), kind: "number", wide: true, value: (row) => row.devices_seen, text: (row) => `${count(row.devices_seen)} / ${count(row.devices)}` },
        { label: t("wall time"), kind: "number", value: (row) => row.wall_s, text: (row) => duration(row.wall_s) },
        { label: t("forecast"), kind: "number", value: (row) => row.forecast_wall_s, text: (row) => duration(row.forecast_wall_s) },
        { label: t("device time"), kind: "number", wide: true, value: (row) => row.device_s, text: (row) => duration(row.device_s) },
        { label: t("forecast"), kind: "number", wide: true, value: (row) => row.forecast_device_s, text: (row) => duration(row.forecast_device_s) },
        { label: t("lower bound"), kind: "number", wide: true, value: (row) => row.lower_bound_s, text: (row) => duration(row.lower_bound_s) },
        { label: t("stack"), wide: true, value: (row) => row.stack },
      ],
    });
  }

  function efficiency() {
    const made = opmeter.section(main, t("Use of the device time"), duration(data.efficiency.whole), "efficiency");
    const rows = [
      ["useful", t("launches that count"), series[0]], ["other_launches", t("other launches: warm-up, pilots, disturbed"), series[5]],
      ["host", t("host work between launches"), series[6]], ["starting", t("starting sessions"), series[4]],
      ["export", t("writing the profiler's records"), series[3]], ["lost", t("sessions without results"), colours.lost],
      ["not_counted", t("results that another attempt replaced"), colours.without],
    ].map(([name, label, colour]) => ({ label, colour, seconds: data.efficiency[name] }));
    made.append(opmeter.bar(rows.map((row) => [row.seconds / whole, row.colour, row.label])));
    made.append(opmeter.legend(rows.filter((row) => row.seconds > 0).map((row) => [`${row.label} ${percent(row.seconds / whole)}`, row.colour])));
    const newestIdle = newest.wall_s * newest.devices_seen - newest.device_s;
    if (newest.wall_s > 0 && newestIdle > 0) {
      made.append(el("p", { class: "small muted", style: { marginTop: "6px" } },
        `${t("Besides, devices were without a session for")} ${duration(newestIdle)} (${percent(newestIdle / (newest.wall_s * newest.devices_seen))}) ${t("of the time of the newest plan.")}`));
    }
  }

  function failures() {
    const made = opmeter.section(main, t("Cases without a duration"), data.failure_count ? `${t("reasons")}: ${count(data.failure_count)}` : "", "failures");
    opmeter.table(made, {
      name: t("Cases without a duration"), search: data.failures.length > 8 ? t("search reasons") : null, rows: data.failures, size: 25,
      empty: sessions.length ? t("Every case that was tried has a duration.") : t("No session is stored yet."),
      columns: [
        { label: t("kernel type"), value: (row) => row[1], node: (row) => (row[7] ? el("button", { class: "plain", type: "button", "aria-label": `${t("log")}: ${row[1]}`, onclick: () => openLog(row) }, row[1]) : row[1]) },
        { label: t("reason"), value: (row) => `${row[0]} ${row[2]}`, text: (row) => `${t(row[0])}: ${row[2]}` },
        { label: t("cases"), kind: "number", value: (row) => row[3], text: (row) => count(row[3]) },
        { label: t("measured elsewhere"), kind: "number", wide: true, value: (row) => row[4], text: (row) => count(row[4]) },
        { label: t("nodes"), kind: "number", wide: true, value: (row) => row[5], text: (row) => count(row[5]) },
        { label: t("log"), wide: true, value: (row) => row[6], node: (row) => el("code", { class: "small" }, logCommand(row[6])) },
      ],
    });
    if (data.lost_sessions) {
      made.append(el("p", { class: "small muted" }, `${count(data.lost_sessions)} ${t("sessions began and stored no result: they still run, or their worker ended.")}`));
    }
  }

  function logCommand(shard) {
    return `opmeter logs ${shard} --campaign ${data.name}`;
  }

  async function openLog(row) {
    const body = dialog(`${row[1]}: ${t(row[0])}`, row[2]);
    const lines = await opmeter.load(row[7]);
    body.replaceChildren(
      el("p", { class: "small muted" }, logCommand(row[6])),
      el("pre", { class: "code", tabindex: "0", style: { whiteSpace: "pre-wrap", maxHeight: "60vh", overflow: "auto" } }, lines.join("\n")));
  }

  // Open a dialog and return its body.
  function dialog(title, sub) {
    document.querySelector("dialog")?.remove();
    const body = el("div", {}, el("p", { class: "muted" }, `${t("loading")}…`));
    const close = el("button", { type: "button", onclick: () => made.close() }, t("close"));
    const made = el("dialog", { "aria-label": title },
      el("div", { class: "top" }, el("div", {}, el("h2", {}, title), el("p", { class: "small muted" }, sub)), close), body);
    document.body.append(made);
    made.addEventListener("close", () => made.remove());
    made.showModal();
    return body;
  }

  function devices() {
    const suspects = data.nodes.filter((one) => one.failures || one.quarantined);
    const made = opmeter.section(main, t("Devices"), `${count(data.device_rows.length)}`, "devices");
    if (suspects.length) {
      made.append(el("p", { class: "small" }, `${t("Shards that failed on one node and nowhere else:")} `,
        suspects.map((one) => el("span", { class: "tag" }, `${one.node}: ${count(one.failures)}${one.quarantined ? `, ${t("quarantined")}` : ""}`))));
    }
    const slow = data.device_rows.filter((row) => row[12] > 0).sort((a, b) => b[9] - a[9]);
    if (slow.length) {
      made.append(el("p", { class: "small" }, `${t("Devices whose canaries are unlike those of the others:")} `,
        slow.slice(0, 24).map((row) => el("span", { class: "tag" }, `${row[0]} ${row[1]} × ${row[9].toFixed(2)}`)),
        slow.length > 24 ? ` … ${count(slow.length)}` : ""));
    }
    opmeter.table(made, {
      name: t("Devices"), search: t("search devices"), searched: (row) => `${row[0]} ${row[1]}`, rows: data.device_rows, size: 20,
      columns: [
        { label: t("node"), kind: "word", value: (row) => row[0] },
        { label: t("device"), kind: "word", value: (row) => row[1] },
        { label: t("sessions"), kind: "number", wide: true, value: (row) => row[2], text: (row) => count(row[2]) },
        { label: t("lost sessions"), kind: "number", wide: true, value: (row) => row[3], text: (row) => count(row[3]) },
        { label: t("cases"), kind: "number", wide: true, value: (row) => row[4], text: (row) => count(row[4]) },
        { label: t("without a duration"), kind: "number", value: (row) => row[5], text: (row) => count(row[5]) },
        { label: t("in sessions"), kind: "number", wide: true, value: (row) => row[6], text: (row) => duration(row[6]) },
        { label: t("busy"), kind: "number", wide: true, value: (row) => row[7] / (row[6] || 1), text: (row) => (row[6] ? percent(row[7] / row[6]) : NONE) },
        { label: t("useful"), kind: "number", wide: true, value: (row) => row[8] / (row[6] || 1), text: (row) => (row[6] ? percent(row[8] / row[6]) : NONE) },
        { label: t("duration of the canaries over usual"), kind: "number", wide: true, value: (row) => row[9], text: (row) => (isNumber(row[9]) ? `${row[9].toFixed(3)} (${row[10].toFixed(3)} – ${row[11].toFixed(3)})` : NONE) },
        { label: t("suspect session"), kind: "number", wide: true, value: (row) => row[12], text: (row) => count(row[12]) },
      ],
    });
  }

  function statusLines() {
    if (!data.lines.length) return;
    const made = opmeter.section(main, t("Status"), `opmeter status ${data.name}`, "status");
    made.append(el("pre", { class: "code", style: { whiteSpace: "pre-wrap", margin: "0" } }, data.lines.join("\n")));
  }
});
